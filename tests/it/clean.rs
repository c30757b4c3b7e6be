//! `hawser clean` beside a runner that works.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hawser_contract::Engine;
use hawser_dev_server::{JobKind, JobState};

use crate::support::eventually::eventually;
use crate::support::world::{HAWSER, Runner, World, job};

/// An apply that leaves local state, and stands still while the file `hold` is there.
const MODULE: &[(&str, &str)] = &[(
    "main.tf",
    r#"
variable "hold" {}
resource "terraform_data" "x" {
  provisioner "local-exec" {
    command = "while [ -e '${var.hold}' ]; do sleep 0.05; done"
  }
}
"#,
)];

struct Cleaner<'a> {
    world: &'a World,
    working: PathBuf,
}

impl Cleaner<'_> {
    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let Output { status, stdout, stderr } = Command::new(HAWSER)
            .arg("clean")
            .args(arguments)
            .current_dir(self.world.dir.path())
            .env("WorkingDirectory__WorkingDirectory", &self.working)
            .env("WorkingDirectory__TempDirectory", self.working.join(".temp"))
            .envs(self.world.hub.identity().runner_variables(&self.world.hub.url(), "cleaner"))
            .output()
            .unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        (status.code().unwrap(), said)
    }

    #[track_caller]
    fn cleans(&self, arguments: &[&str]) -> String {
        let (code, said) = self.run(arguments);
        assert_eq!(code, 0, "{said}");
        said
    }
}

fn folder(path: PathBuf) -> PathBuf {
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("file"), "left").unwrap();
    path
}

fn store(runner: &Runner) -> PathBuf {
    let own = fs::read_dir(runner.working.join(".hawser")).unwrap().flatten().map(|it| it.path());
    own.map(|it| it.join("one")).find(|it| it.join("steps").is_dir()).unwrap()
}

async fn apply(world: &World, url: &str, module: &str) {
    let mut spec = job(JobKind::Apply, url, module);
    spec.engine = Engine::Terraform;
    spec.parameters.insert("hold".into(), "\"/nowhere\"".into());
    let ended = world.ended(world.hub.submit(spec)).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_old_jobs_left_goes_only_when_told_and_what_is_young_or_running_stays() {
    let world = World::new().await;
    let runner = world.runner("one");
    world.connected(1).await;
    let cleaner = Cleaner { world: &world, working: runner.working.clone() };
    let store = store(&runner);
    let old = folder(store.join("damaged/old.Plan.1"));
    let young = folder(store.join(format!("damaged/young.Plan.{}", jiff::Timestamp::now().as_millisecond())));
    let running = folder(store.join("damaged/running.Plan.3"));
    let lock = File::create(running.join("lock")).unwrap();
    lock.lock().unwrap();
    let step = hawser::step::StepFolder::at(store.join("steps/gone.Plan"));
    let scratch =
        hawser::step::Scratch::of(&runner.working.join(".temp"), &step).make().unwrap().map(folder_at);
    let of_running = hawser::step::StepFolder::at(store.join("steps/running.Plan"));
    let of_running = hawser::step::Scratch::of(&runner.working.join(".temp"), &of_running);
    let of_running = of_running.make().unwrap().map(folder_at);
    let staging = folder(runner.working.join(".hawser/checkout/s/n/m/new"));
    let only_copy = folder(runner.working.join(".hawser/checkout/s/n/swapped/old"));
    let rescued = folder(runner.working.join(".hawser/rescued/s/n/m"));
    let stranger = folder(runner.working.join(".temp/stranger"));

    let said = cleaner.cleans(&[]);
    assert!(said.contains("would remove") && said.contains("old.Plan.1") && said.contains("--yes"), "{said}");
    assert!(old.exists() && staging.exists(), "a look removes nothing");

    let said = cleaner.cleans(&["--yes"]);
    assert!(!old.exists() && !staging.exists(), "{said}");
    for kept in [&young, &running, &only_copy, &rescued, &stranger] {
        assert!(kept.exists(), "{} is gone: {said}", kept.display());
    }
    if let (Some(scratch), Some(of_running)) = (&scratch, &of_running) {
        assert!(!scratch.exists() && of_running.exists(), "{said}");
    }
    assert!(said.contains("its script still runs") && said.contains("only copy"), "{said}");
    assert!(said.contains(" B") && said.contains("removed "), "{said}");
    lock.unlock().unwrap();
    let said = cleaner.cleans(&["--yes"]);
    assert!(!running.exists(), "{said}");
    assert!(cleaner.cleans(&[]).contains("nothing to remove"));
}

fn folder_at(path: &Path) -> PathBuf {
    folder(path.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_go_when_asked_for_but_never_with_their_state_unless_that_is_said_and_never_while_they_are_used()
 {
    let world = World::new().await;
    let url = world.repository("repo", MODULE);
    let stateless = world.repository("stateless", &[("main.tf", "output \"x\" {\n  value = 1\n}\n")]);
    let runner = world.runner("one");
    let cleaner = Cleaner { world: &world, working: runner.working.clone() };
    apply(&world, &url, "with-state").await;
    let mut plan = job(JobKind::Plan, &stateless, "without");
    plan.engine = Engine::Terraform;
    world.ended(world.hub.submit(plan)).await;
    // One is being applied all the while.
    fs::write(world.path("hold"), "").unwrap();
    let mut spec = job(JobKind::Apply, &url, "busy");
    spec.engine = Engine::Terraform;
    spec.parameters.insert("hold".into(), format!("{:?}", world.path("hold").to_str().unwrap()));
    let busy = world.hub.submit(spec);
    eventually("the apply runs", || {
        let found = crate::support::processes::below(runner.pid());
        found.iter().any(|it| it.name == "sleep")
    })
    .await;
    let module = |name: &str| runner.working.join("local/local").join(name);
    let copies = || {
        let files = fs::read_dir(runner.working.join("sourcecache")).unwrap().flatten();
        files.filter(|it| it.path().extension().is_some_and(|it| it == "git")).count()
    };
    assert_eq!(copies(), 2);

    cleaner.cleans(&["--yes", "--older-than", "0s"]);
    cleaner.cleans(&["--yes", "--caches", "--modules"]);
    assert!(module("without").exists() && copies() == 2, "they are not asked for, or not old");

    let said = cleaner.cleans(&["--yes", "--older-than", "0s", "--modules", "--caches"]);
    assert!(!module("without").exists(), "{said}");
    assert!(module("with-state/terraform.tfstate").exists() && module("busy").exists(), "{said}");
    assert!(said.contains("holds state") && said.contains("--with-state"), "{said}");
    assert_eq!(copies(), 0, "{said}");

    let said = cleaner.cleans(&["--yes", "--older-than", "0s", "--modules", "--with-state"]);
    assert!(!module("with-state").exists() && module("busy/.snapcd/plan.out").exists(), "{said}");
    assert!(said.contains("local/busy: ") && said.contains("WITH ITS STATE"), "{said}");

    fs::remove_file(world.path("hold")).unwrap();
    let ended = world.ended(busy).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}\n{}", runner.log());
    // What was removed comes back with the next job.
    apply(&world, &url, "without").await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rescued_state_goes_only_by_its_name_and_wrong_orders_are_refused() {
    let world = World::new().await;
    let working = world.path("work");
    let cleaner = Cleaner { world: &world, working: working.clone() };
    let (code, said) = cleaner.run(&[]);
    assert!(code == 78 && said.contains("WorkingDirectory.WorkingDirectory"), "{code} {said}");
    let rescued = folder(working.join(".hawser/rescued/s/n/m"));
    let (state, other) = (rescued.join("file"), rescued.join("other"));
    fs::write(&other, "kept").unwrap();
    let outside = folder(working.join("s/n/m")).join("file");
    std::os::unix::fs::symlink(&outside, rescued.join("link")).unwrap();
    for (arguments, part) in [
        (&["--rescued", outside.to_str().unwrap()][..], "not below"),
        (&["--rescued", rescued.join("link").to_str().unwrap()], "not below"),
        (&["--rescued", rescued.to_str().unwrap()], "no file"),
        (&["--rescued", "/nowhere"], "No such file"),
        (&["--older-than", "soon"], "whole number and a unit"),
        (&["--with-state"], "--modules"),
        (&["--everything"], "--everything is no option"),
        (&["--older-then=1d"], "--older-then is no option"),
    ] {
        let (code, said) = cleaner.run(&[&["--yes"], arguments].concat());
        assert!(matches!(code, 64 | 78) && said.contains(part), "{arguments:?}: {code} {said}");
    }
    cleaner.cleans(&["--yes", "--older-than", "0s", "--modules", "--with-state", "--caches"]);
    assert!(state.exists() && outside.exists());
    cleaner.cleans(&["--rescued", state.to_str().unwrap()]);
    assert!(state.exists(), "a look removes nothing");
    cleaner.cleans(&["--yes", "--rescued", state.to_str().unwrap()]);
    assert!(!state.exists() && other.exists() && outside.exists());
}
