//! The module directory stays locked while any process of the step lives.

use super::*;

fn take(path: &Path) -> Option<fs::File> {
    let file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.try_lock().is_ok().then_some(file)
}

#[tokio::test]
async fn it_stays_locked_until_the_engine_ends_although_only_the_supervisor_was_killed() {
    let hook = "for number in 3 4 5 6 7 8 9 10 11; do eval \"exec $number>&-\"; done";
    let engine = format!("echo $$ >engine; {AWAIT_GO}");
    let step = Step::of(&script(before(hook), &["bash", "-c", &engine], after("touch never")));
    let path = step.work.join("module.lock");
    let module = take(&path).unwrap();
    let lock = step.folder.try_lock().unwrap().unwrap();
    let supervisor = launch(Path::new(HAWSER), &step.folder, lock, Some(module), &step.to_launch()).unwrap();
    let engine = step.pid("engine").await;
    signal(supervisor, rustix::process::Signal::KILL);
    step.wait().await;
    assert!(runs(engine) && take(&path).is_none(), "the engine still runs in the directory");
    step.go();
    eventually("the lock is free", || take(&path).is_some()).await;
    assert!(!runs(engine) && !step.work.join("never").exists(), "nothing follows");
    assert_eq!(step.folder.part(), Some(ScriptPhase::Engine));
}

#[tokio::test]
async fn a_step_leaves_it_unlocked() {
    let step = Step::of(&script(before("sleep 600 &"), &["true"], after("true")));
    let path = step.work.join("module.lock");
    let lock = step.folder.try_lock().unwrap().unwrap();
    launch(Path::new(HAWSER), &step.folder, lock, take(&path), &step.to_launch()).unwrap();
    step.wait().await;
    assert_eq!(step.exit(), Exit::Code(0));
    eventually("the lock is free", || take(&path).is_some()).await;
}
