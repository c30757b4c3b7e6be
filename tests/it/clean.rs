//! `hawser clean` while a runner is using the working directory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hawser_contract::EngineName;
use hawser_dev_server::{JobKind, JobState};

use crate::support::eventually::eventually;
use crate::support::world::{HAWSER, Runner, World, job};

/// A module with local state. Its apply waits while the file `hold` exists.
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
        let output = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        (status.code().unwrap(), output)
    }

    #[track_caller]
    fn cleans(&self, arguments: &[&str]) -> String {
        let (code, output) = self.run(arguments);
        assert_eq!(code, 0, "{output}");
        output
    }
}

fn folder(path: PathBuf) -> PathBuf {
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("file"), "left").unwrap();
    path
}

fn store(runner: &Runner) -> PathBuf {
    let own = fs::read_dir(runner.working.join(".hawser")).unwrap().flatten().map(|entry| entry.path());
    own.map(|path| path.join("one")).find(|path| path.join("steps").is_dir()).unwrap()
}

async fn apply(world: &World, url: &str, module: &str) {
    let mut spec = job(JobKind::Apply, url, module);
    spec.engine = EngineName::TERRAFORM;
    spec.parameters.insert("hold".into(), "\"/nowhere\"".into());
    let ended = world.ended(world.hub.submit(spec)).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_leftovers_are_removed_on_request_and_new_or_running_ones_are_kept() {
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

    let output = cleaner.cleans(&[]);
    assert!(
        output.contains("would remove") && output.contains("old.Plan.1") && output.contains("--yes"),
        "{output}"
    );
    assert!(old.exists() && staging.exists(), "a dry run removes nothing");

    let output = cleaner.cleans(&["--yes"]);
    assert!(!old.exists() && !staging.exists(), "{output}");
    for kept in [&young, &running, &only_copy, &rescued, &stranger] {
        assert!(kept.exists(), "{} is gone: {output}", kept.display());
    }
    if let (Some(scratch), Some(of_running)) = (&scratch, &of_running) {
        assert!(!scratch.exists() && of_running.exists(), "{output}");
    }
    assert!(output.contains("its script is still running") && output.contains("only copy"), "{output}");
    assert!(output.contains(" B") && output.contains("removed "), "{output}");
    lock.unlock().unwrap();
    let output = cleaner.cleans(&["--yes"]);
    assert!(!running.exists(), "{output}");
    assert!(cleaner.cleans(&[]).contains("nothing to remove"));
}

fn folder_at(path: &Path) -> PathBuf {
    folder(path.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_with_state_are_removed_only_on_explicit_request_and_never_while_in_use() {
    let world = World::new().await;
    let url = world.repository("repo", MODULE);
    let stateless = world.repository("stateless", &[("main.tf", "output \"x\" {\n  value = 1\n}\n")]);
    let runner = world.runner("one");
    let cleaner = Cleaner { world: &world, working: runner.working.clone() };
    apply(&world, &url, "with-state").await;
    let mut plan = job(JobKind::Plan, &stateless, "without");
    plan.engine = EngineName::TERRAFORM;
    world.ended(world.hub.submit(plan)).await;
    // One module is being applied during the whole test.
    fs::write(world.path("hold"), "").unwrap();
    let mut spec = job(JobKind::Apply, &url, "busy");
    spec.engine = EngineName::TERRAFORM;
    spec.parameters.insert("hold".into(), format!("{:?}", world.path("hold").to_str().unwrap()));
    let busy = world.hub.submit(spec);
    eventually("the apply is running", || {
        let processes = crate::support::processes::below(runner.pid());
        processes.iter().any(|process| process.name == "sleep")
    })
    .await;
    let module = |name: &str| runner.working.join("local/local").join(name);
    let copies = || {
        let files = fs::read_dir(runner.working.join("sourcecache")).unwrap().flatten();
        files.filter(|entry| entry.path().extension().is_some_and(|suffix| suffix == "git")).count()
    };
    assert_eq!(copies(), 2);

    cleaner.cleans(&["--yes", "--older-than", "0s"]);
    cleaner.cleans(&["--yes", "--caches", "--modules"]);
    assert!(module("without").exists() && copies() == 2, "not requested, or not old");

    let output = cleaner.cleans(&["--yes", "--older-than", "0s", "--modules", "--caches"]);
    assert!(!module("without").exists(), "{output}");
    assert!(module("with-state/terraform.tfstate").exists() && module("busy").exists(), "{output}");
    assert!(output.contains("contains state") && output.contains("--with-state"), "{output}");
    assert_eq!(copies(), 0, "{output}");

    let output = cleaner.cleans(&["--yes", "--older-than", "0s", "--modules", "--with-state"]);
    assert!(!module("with-state").exists() && module("busy/.snapcd/plan.out").exists(), "{output}");
    assert!(output.contains("local/busy: ") && output.contains("WITH ITS STATE"), "{output}");

    fs::remove_file(world.path("hold")).unwrap();
    let ended = world.ended(busy).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}\n{}", runner.log());
    // The next job restores a removed module.
    apply(&world, &url, "without").await;
    world.assert_no_violation();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rescued_state_is_removed_only_by_its_path_and_wrong_arguments_are_refused() {
    let world = World::new().await;
    let working = world.path("work");
    let cleaner = Cleaner { world: &world, working: working.clone() };
    let (code, output) = cleaner.run(&[]);
    assert!(code == 78 && output.contains("WorkingDirectory.WorkingDirectory"), "{code} {output}");
    let rescued = folder(working.join(".hawser/rescued/s/n/m"));
    let (state, other) = (rescued.join("file"), rescued.join("other"));
    fs::write(&other, "kept").unwrap();
    let outside = folder(working.join("s/n/m")).join("file");
    std::os::unix::fs::symlink(&outside, rescued.join("link")).unwrap();
    for (arguments, part) in [
        (&["--rescued", outside.to_str().unwrap()][..], "not in"),
        (&["--rescued", rescued.join("link").to_str().unwrap()], "not in"),
        (&["--rescued", rescued.to_str().unwrap()], "not a file"),
        (&["--rescued", "/nowhere"], "No such file"),
        (&["--older-than", "soon"], "number and a unit"),
        (&["--with-state"], "--modules"),
        (&["--everything"], "--everything is not an option"),
        (&["--older-then=1d"], "--older-then is not an option"),
    ] {
        let (code, output) = cleaner.run(&[&["--yes"], arguments].concat());
        assert!(matches!(code, 64 | 78) && output.contains(part), "{arguments:?}: {code} {output}");
    }
    cleaner.cleans(&["--yes", "--older-than", "0s", "--modules", "--with-state", "--caches"]);
    assert!(state.exists() && outside.exists());
    cleaner.cleans(&["--rescued", state.to_str().unwrap()]);
    assert!(state.exists(), "a dry run removes nothing");
    cleaner.cleans(&["--yes", "--rescued", state.to_str().unwrap()]);
    assert!(!state.exists() && other.exists() && outside.exists());
}
