//! Steps of an earlier process of the runner: continued from their phase, and reported once.

use std::fs;
use std::path::PathBuf;

use hawser_contract::Task;
use hawser_dev_server::{HubEvent, HubOptions, JobKind, JobState};
use uuid::Uuid;

use super::{UnderWay, assert_complete, numbers, printing, runs, seen, under_way};
use crate::support::eventually::{eventually, in_time};
use crate::support::world::{EMPTY, World, job};

#[tokio::test(flavor = "multi_thread")]
async fn a_runner_killed_in_the_middle_of_an_apply_delivers_every_line_and_the_result() {
    let world = World::new().await;
    let gate = world.path("gate");
    let command = format!(
        "echo run >> '{}'; seq -f 'line %.0f' 1 500; while [ ! -e '{}' ]; do sleep 0.05; done; seq -f 'line %.0f' 501 1000",
        world.path("apply.ran").display(),
        gate.display()
    );
    let module = format!(
        "resource \"terraform_data\" \"slow\" {{\n  provisioner \"local-exec\" {{\n    command = {command:?}\n  }}\n}}\n"
    );
    let url = world.repository("repo", &[("main.tf", &module)]);
    let mut runner = world.runner("one");
    let id = world.hub.submit(job(JobKind::Apply, &url, "apply"));
    eventually("the apply is under way", || world.messages(id).iter().any(|line| line.contains("line 500")))
        .await;

    runner.kill();
    fs::write(&gate, "").unwrap();
    runner.restart();
    let ended = world.ended(id).await;

    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(ended.resources, Some(1));
    assert_eq!(runs(&world, "apply"), 1);
    let lines: Vec<String> = world
        .messages(id)
        .iter()
        // Terraform puts its own colors and the resource before each line.
        .filter(|line| line.contains("(local-exec)"))
        .filter_map(|line| {
            Some(format!("line {}", line.rsplit_once("line ")?.1.trim_end_matches("\u{1b}[0m")))
        })
        .collect();
    assert_complete(&numbers(&lines), 1000);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_ends_while_runner_and_server_are_gone_is_delivered() {
    let world = World::new().await;
    let gate = world.path("gate");
    let url = world.repository("repo", EMPTY);
    let mut runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "away", 2000, Some(&gate)));
    seen(&world, id, "begin").await;

    world.hub.go_offline().await;
    runner.kill();
    fs::write(&gate, "").unwrap();
    eventually("the script has ended by itself", || {
        runner.steps().iter().any(|step| step.join("exit.json").exists())
    })
    .await;
    runner.restart();
    world.hub.go_online().await;

    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "away"), 1);
    assert_complete(&numbers(&world.messages(id)), 2000);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_an_adopted_step_and_its_duration_starts_with_its_script() {
    let UnderWay { world, mut runner, id, folder, gate } = under_way("adopted", 1).await;
    runner.kill();
    let path = folder.join("supervisor.json");
    let mut note: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let an_hour_ago = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(1);
    note["is"]["started"] = serde_json::json!(an_hour_ago);
    fs::write(&path, note.to_string()).unwrap();
    runner.restart();
    eventually("the step is adopted", || runner.log().contains("task resumed")).await;
    fs::write(&gate, "").unwrap();
    assert_eq!(world.ended(id).await.state, JobState::Completed);

    let log = runner.log();
    for event in ["task resumed", "task finished"] {
        let line = log.lines().rfind(|line| line.contains(event)).unwrap();
        for field in ["module=", "adopted", &format!("job={id}"), "task=\"Validate\""] {
            assert!(line.contains(field), "{field} is missing in {line}");
        }
        assert!(!line.contains("step="), "{line}");
    }
    let finished = log.lines().rfind(|line| line.contains("task finished")).unwrap();
    let duration = finished.split("duration=").nth(1).unwrap();
    let seconds: f64 = duration.split('s').next().unwrap().parse().unwrap();
    assert!(seconds >= 3600.0, "{finished}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outputs_of_an_adopted_step_arrive_and_secret_ones_stay_masked() {
    let world = World::new().await;
    let secret = "output \"hush\" {\n  value     = \"hidden-by-its-kind\"\n  sensitive = true\n}\n";
    let url = world.repository("repo", &[("main.tf", secret)]);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let mut spec = job(JobKind::Apply, &url, "upgraded");
    spec.hooks.output_after = Some(format!(
        "echo begin; while [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done",
        world.path("").display(),
        gate.display()
    ));
    let id = world.hub.submit(spec);
    seen(&world, id, "begin").await;
    let folder = runner.steps().into_iter().find(|step| step.to_string_lossy().ends_with(".Output"));
    let folder = folder.unwrap();
    runner.kill();
    fs::write(&gate, "").unwrap();
    eventually("the script has ended by itself", || folder.join("exit.json").exists()).await;

    runner.restart();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let outputs = ended.outputs.unwrap();
    assert_eq!(outputs.outputs[0].value, "hidden-by-its-kind");
    // The module's next task masks it from its first line on.
    let known = runner.working.join("local/local/upgraded/.snapcd/sensitive.json");
    let known: serde_json::Value = serde_json::from_slice(&fs::read(known).unwrap()).unwrap();
    assert!(known["outputs"].to_string().contains("hidden-by-its-kind"), "{known:#}");
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_pushed_again_is_reported_again_and_runs_once() {
    let world = World::with(HubOptions { redispatch_on_reconnect: true, ..HubOptions::default() }).await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let _runner = world.runner("one");
    let id = world.hub.submit(printing(&world, &url, "again", 10, Some(&gate)));
    seen(&world, id, "begin").await;
    for _ in 0..3 {
        let mut events = world.hub.events();
        while events.try_next().is_some() {}
        world.hub.drop_connections();
        in_time(
            "the task is pushed again",
            events.find(|event| matches!(event, HubEvent::Dispatched { again: true, .. }).then_some(())),
        )
        .await;
        in_time(
            "it is reported as running again",
            events
                .find(|event| matches!(event, HubEvent::Running { task: Task::Validate, .. }).then_some(())),
        )
        .await;
    }
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "again"), 1);
    assert_complete(&numbers(&world.messages(id)), 10);
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_connect_all_running_tasks_are_reported_at_once() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let _runner = world.runner("one");
    let jobs: Vec<Uuid> = ["a", "b", "c"]
        .map(|module| world.hub.submit(printing(&world, &url, module, 1, Some(&gate))))
        .into_iter()
        .collect();
    for id in &jobs {
        seen(&world, *id, "begin").await;
    }
    let mut events = world.hub.events();
    while events.try_next().is_some() {}
    world.hub.drop_connections();
    let mut reported = std::collections::HashSet::new();
    while reported.len() < 3 {
        let found = events.find(|event| match event {
            HubEvent::Running { job, .. } => Some(*job),
            _ => None,
        });
        reported.insert(in_time("the running tasks are reported", found).await);
    }
    fs::write(&gate, "").unwrap();
    for id in jobs {
        assert_eq!(world.ended(id).await.state, JobState::Completed);
    }
    world.assert_no_violation();
}

/// As after a host or container was created again under another name.
#[tokio::test(flavor = "multi_thread")]
async fn steps_of_an_abandoned_instance_cause_a_warning_and_those_of_a_running_one_do_not() {
    let UnderWay { world, mut runner, id, gate, .. } = under_way("left", 1).await;
    let working = runner.working.display().to_string();
    let temp = runner.working.join(".temp").display().to_string();
    let same_place = [
        ("WorkingDirectory__WorkingDirectory", working.as_str()),
        ("WorkingDirectory__TempDirectory", temp.as_str()),
    ];
    const WARNING: &str = "of an instance that is not running";
    let mut beside = world.runner_with("beside", &same_place);
    world.connected(2).await;
    assert!(!beside.log().contains(WARNING), "{}", beside.log());
    beside.kill();

    runner.kill();
    let after = world.runner_with("after", &same_place);
    let line = eventually("the runner warns", || {
        let log = after.log();
        log.lines().find(|line| line.contains(WARNING)).map(str::to_owned)
    })
    .await;
    let place = working + "/.hawser/" + &world.hub.identity().runner_id.to_string() + "/one";
    let words = ["WARN", place.as_str(), "steps=1", "instance=\"one\"", "Runner.Instance"];
    assert!(words.iter().all(|word| line.contains(word)), "{line}");

    // The advice in the warning helps.
    runner.restart();
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert_eq!(runs(&world, "left"), 1);
    assert_eq!(after.log().matches(WARNING).count(), 1, "{}", after.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_has_its_own_scratch_space_and_none_is_left() {
    let world = World::new().await;
    let url = world.repository("repo", EMPTY);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let mut spec = printing(&world, &url, "scratch", 1, None);
    spec.hooks.validate_before = Some(format!(
        "ls -A \"$TMPDIR\" | wc -l\ntouch \"$TMPDIR/left\"\necho \"scratch $TMPDIR\"\nwhile [ ! -e '{}' ]; do sleep 0.05; done\n\
         [ -e \"$TMPDIR/left\" ] && echo still there\n",
        gate.display()
    ));
    let id = world.hub.submit(spec);
    let scratch = eventually("the script prints its scratch space", || {
        world.messages(id).iter().find_map(|line| Some(PathBuf::from(line.strip_prefix("scratch ")?)))
    })
    .await;
    let temp = runner.working.join(".temp");
    assert!(scratch.starts_with(&temp) && scratch.join("left").exists());
    assert!(world.messages(id).iter().any(|line| line.trim() == "0"));

    // The next start removes leftovers of ended steps and keeps scratch space that is in use.
    runner.kill();
    let name = scratch.file_name().unwrap().to_str().unwrap();
    let leftover = temp.join(format!("{}-0123456789ab", name.split_once('-').unwrap().0));
    fs::create_dir(&leftover).unwrap();
    runner.restart();
    eventually("the leftover is removed", || !leftover.exists()).await;
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    assert!(world.messages(id).iter().any(|line| line == "still there"));
    eventually("the scratch space is removed", || !scratch.exists()).await;
}

/// Its git keeps writing for a while, and the next start must not mind.
#[tokio::test(flavor = "multi_thread")]
async fn a_runner_killed_while_it_fetches_a_large_module_fetches_it_after_the_restart() {
    let world = World::new().await;
    let names: Vec<String> =
        (0..20_000).map(|number| format!("folder-{}/{number}.txt", number % 100)).collect();
    let mut files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "some text")).collect();
    files.push(("main.tf", ""));
    let url = world.repository("repo", &files);
    let mut runner = world.runner("one");
    for at_least in [1, 30, 90] {
        let module = format!("at-{at_least}");
        let staging = runner.working.join(".hawser/checkout/local/local").join(&module);
        let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|it| it.path());
        let id = world.hub.submit(job(JobKind::Tasks(vec![Task::GetModule]), &url, &module));
        eventually("the checkout is under way", || {
            world.hub.job(id).is_some_and(|job| job.state.is_ended())
                || entries(staging.clone()).any(|attempt| entries(attempt).count() >= at_least)
        })
        .await;
        runner.restart();
        let ended = world.ended(id).await;
        assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    }
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_checkouts_are_removed_or_undone_when_the_runner_starts() {
    let world = World::new().await;
    let mut runner = world.runner("one");
    eventually("the runner is connected", || runner.log().contains("connected to the server")).await;
    runner.kill();
    let staging = runner.working.join(".hawser/checkout/stack/space");
    // The task that was killed had locked its module.
    let locks = runner.working.join(".hawser/locks/stack/space");
    fs::create_dir_all(&locks).unwrap();
    for module in ["fetched", "swapped"] {
        fs::write(locks.join(format!("{module}.lock")), "").unwrap();
    }
    // Killed while git was fetching.
    let (fetched, root) = (staging.join("fetched/new-x"), runner.working.join("stack/space/fetched"));
    fs::create_dir_all(&fetched).unwrap();
    fs::write(fetched.join("main.tf"), "half").unwrap();
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("main.tf"), "whole").unwrap();
    // Killed between the two renames.
    let (old, swapped) = (staging.join("swapped/old"), runner.working.join("stack/space/swapped"));
    fs::create_dir_all(&old).unwrap();
    fs::write(old.join("terraform.tfstate"), "the only copy").unwrap();

    runner.restart();
    eventually("the sweep has ended", || !fetched.exists() && !old.exists()).await;
    assert_eq!(fs::read_to_string(swapped.join("terraform.tfstate")).unwrap(), "the only copy");
    assert_eq!(fs::read_to_string(root.join("main.tf")).unwrap(), "whole");
    eventually("the folders are removed", || {
        !staging.join("fetched").exists() && !staging.join("swapped").exists()
    })
    .await;
}
