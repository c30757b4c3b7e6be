//! The host went down while a script was running: the outcome is reported as unknown.

use std::fs;

use hawser_dev_server::JobKind;
use rustix::process::Signal;

use super::{UnderWay, runs, supervisor_pid, under_way};
use crate::support::eventually::eventually;
use crate::support::processes::below;
use crate::support::world::{World, job};

#[tokio::test(flavor = "multi_thread")]
async fn a_host_crash_is_reported_as_an_unknown_outcome() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("lost", 1).await;

    // After a power cut there is no runner, no supervisor and no exit.
    runner.kill();
    rustix::process::kill_process(supervisor_pid(&folder), Signal::KILL).unwrap();
    fs::write(&gate, "").unwrap();
    runner.restart();

    let ended = world.ended(id).await;
    let error = ended.error.unwrap();
    assert!(error.message.contains("unknown outcome"), "{error:?}");
    // A Validate leaves no state behind.
    assert!(
        error.message.contains("Before the next run: check what its hooks changed.")
            && !error.message.contains("errored"),
        "{error:?}"
    );
    assert_eq!(runs(&world, "lost"), 1);
}

/// The acknowledged position may survive a power cut although the lines before it do not: they are on different pages.
#[tokio::test(flavor = "multi_thread")]
async fn lines_written_after_a_power_cut_that_truncated_the_log_are_delivered() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("cut", 1).await;
    eventually("the acknowledged position is saved", || folder.join("shipped").exists()).await;
    runner.kill();
    rustix::process::kill_process(supervisor_pid(&folder), Signal::KILL).unwrap();
    fs::write(&gate, "").unwrap();
    let log = fs::OpenOptions::new().write(true).open(folder.join("output.log")).unwrap();
    log.set_len(3).unwrap();
    // Far enough that no line of the next start reaches it.
    fs::write(folder.join("shipped"), format!("{:020} {:020}\n", 100_000, 0)).unwrap();

    runner.restart();
    let ended = world.ended(id).await;
    assert!(ended.error.unwrap().message.contains("unknown outcome"));
    let messages = world.messages(id);
    assert!(messages.iter().any(|line| line.contains("unknown outcome")), "{messages:#?}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leftovers_of_a_lost_step_are_not_touched_while_the_directory_is_in_use() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("busy", 1).await;
    runner.kill();
    rustix::process::kill_process(supervisor_pid(&folder), Signal::KILL).unwrap();
    let lock = fs::OpenOptions::new()
        .write(true)
        .open(runner.working.join(".hawser/locks/local/local/busy.lock"))
        .unwrap();
    // The lock is free as soon as the script is gone.
    assert!(lock.try_lock().is_err());
    fs::write(&gate, "").unwrap();
    eventually("the module's lock", || lock.try_lock().ok()).await;

    runner.restart();
    let error = world.ended(id).await.error.unwrap();
    assert!(error.message.contains("unknown outcome"), "{error:?}");
    assert!(error.message.contains("is in use") && error.message.contains("was not searched"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_an_apply_after_a_host_crash_are_reported_and_saved() {
    let world = World::new().await;
    let pid_file = world.path("terraform.pid");
    let command = format!(
        "echo $PPID $$ > '{}'; echo started; while [ -d '{}' ]; do sleep 0.2; done",
        pid_file.display(),
        world.dir.path().display()
    );
    let module = format!(
        "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = {command:?}\n  }}\n}}\n"
    );
    let url = world.repository("repo", &[("main.tf", &module)]);
    let mut runner = world.runner("one");
    let id = world.hub.submit(job(JobKind::Apply, &url, "lost"));
    let terraform = eventually("the apply runs", || {
        fs::read_to_string(&pid_file).ok().filter(|text| text.ends_with('\n'))
    })
    .await;
    let folder = runner.steps().into_iter().find(|step| step.to_string_lossy().ends_with(".ApplyFromPlan"));
    let folder = folder.unwrap();

    runner.kill();
    rustix::process::kill_process(supervisor_pid(&folder), Signal::KILL).unwrap();
    // The module stays locked while the provisioner runs, too.
    for pid in terraform.split_whitespace() {
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
    let place = runner.working.join("local/local/lost");
    let lock = fs::read(place.join(".terraform.tfstate.lock.info")).unwrap();
    let lock: serde_json::Value = serde_json::from_slice(&lock).unwrap();
    let state = "{\"version\": 4, \"resources\": []}";
    fs::write(place.join("errored.tfstate"), state).unwrap();

    runner.restart();
    let error = world.ended(id).await.error.unwrap();
    assert!(error.message.contains("unknown outcome"), "{error:?}");
    assert!(error.message.contains(lock["ID"].as_str().unwrap()), "{error:?}");
    let kept: Vec<_> =
        fs::read_dir(runner.working.join(".hawser/rescued/local/local/lost")).unwrap().collect();
    let [Ok(kept)] = kept.as_slice() else { panic!("{kept:?}") };
    assert_eq!(fs::read_to_string(kept.path()).unwrap(), state);
    let name = kept.file_name().into_string().unwrap();
    assert!(name.contains(&id.to_string()), "{name}");
    assert!(error.message.contains(&name), "{error:?}");
    let said = eventually("the log has it too", || {
        world.messages(id).into_iter().find(|line| line.contains("state push"))
    });
    assert!(said.await.contains(&name));
    assert!(!place.join("errored.tfstate").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leftovers_of_a_lost_step_are_not_touched_while_its_script_runs() {
    let UnderWay { world, runner: _runner, id, folder, gate } = under_way("runs", 1).await;
    rustix::process::kill_process(supervisor_pid(&folder), Signal::KILL).unwrap();
    let error = world.ended(id).await.error.unwrap();
    assert!(error.message.contains("unknown outcome"), "{error:?}");
    assert!(error.message.contains("is in use") && error.message.contains("was not searched"), "{error:?}");
    fs::write(&gate, "").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leftovers_of_a_lost_step_are_searched_when_its_script_is_gone() {
    let UnderWay { world, runner: _runner, id, folder, .. } = under_way("gone", 1).await;
    let supervisor = supervisor_pid(&folder);
    rustix::process::kill_process(supervisor, Signal::STOP).unwrap();
    eventually("the script is gone", || {
        // Zombies have no arguments.
        let mut running = below(supervisor.as_raw_pid().cast_unsigned());
        running.retain(|process| !process.arguments().is_empty());
        for process in &running {
            let pid = rustix::process::Pid::from_raw(process.pid.cast_signed()).unwrap();
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        running.is_empty()
    })
    .await;
    rustix::process::kill_process(supervisor, Signal::KILL).unwrap();
    let error = world.ended(id).await.error.unwrap();
    assert!(
        error.message.contains("unknown outcome") && !error.message.contains("was not searched"),
        "{error:?}"
    );
}
