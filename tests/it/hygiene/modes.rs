//! Modes of files and folders, whatever the umask.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use hawser::embedded_hub::JobState;

use super::{GATED, at_the_gate, gated};
use crate::support::git::git_in;
use crate::support::world::{HAWSER, World, until};

/// Everything below a folder with a mode that lets others in. Symlinks have none.
fn open_to_others(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        // Files come and go while a runner works.
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_symlink() {
            continue;
        }
        if metadata.mode() & 0o077 != 0 {
            found.push((entry.path(), format!("{:o}", metadata.mode() & 0o7777)));
        }
        if metadata.is_dir() {
            found.extend(open_to_others(&entry.path()));
        }
    }
    found
}

fn count(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|it| 1 + if it.path().is_dir() { count(&it.path()) } else { 0 }).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_umask_of_nothing_all_that_a_job_writes_is_private_and_its_request_goes_with_the_step() {
    let world = World::new().await;
    let url = world.repository("repo", GATED);
    let program = Path::new(&url).join("program.sh");
    fs::write(&program, "#!/bin/sh\necho it runs\n").unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    git_in(Path::new(&url), &["add", "program.sh"]);
    git_in(Path::new(&url), &["commit", "--quiet", "--message=a program"]);
    let runner = world.runner_from("one", |command| {
        let mut through = Command::new("bash");
        let script = format!("umask 0000; exec '{HAWSER}' run");
        through.args(["-c", &script]).current_dir(world.dir.path());
        for (name, value) in command.get_envs() {
            through.env(name, value.unwrap_or_default());
        }
        *command = through;
    });
    let mut spec = gated(&world, &url, "module");
    spec.env_vars.insert("MY_TOKEN".into(), "hush".into());
    spec.hooks.apply_before =
        Some("./program.sh; touch by-the-hook; mkdir folder-of-the-hook; touch \"$TMPDIR/scratch\"".into());
    let job = world.hub.submit(spec);
    at_the_gate(&runner).await;
    // While it runs there are the step with its request and script, the lock of the state, scratch space, caches.
    let steps = runner.steps();
    assert!(steps.iter().any(|step| step.join("request.json").exists() && step.join("script.sh").exists()));
    assert_eq!(open_to_others(&runner.working), []);
    assert!(count(&runner.working) > 50, "the test looks at nothing");
    let root = fs::metadata(&runner.working).unwrap();
    assert_eq!(root.mode() & 0o7777, 0o700);

    fs::write(world.path("gate"), "").unwrap();
    let ended = world.ended(job).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}\n{}", runner.log());
    until("every step folder is removed, and its request with it", || {
        runner.steps().is_empty().then_some(())
    })
    .await;
    assert_eq!(open_to_others(&runner.working), []);
    let module = runner.working.join("local/local/module");
    for written in ["terraform.tfstate", "by-the-hook", "main.tf", ".snapcd/snapcd.env", ".snapcd/plan.out"] {
        assert!(module.join(written).is_file(), "{written}");
    }
    // Private is not broken: what is executable in a repository is so for its owner.
    assert_eq!(fs::metadata(module.join("program.sh")).unwrap().mode() & 0o7777, 0o700);
    assert!(world.messages(job).contains(&"it runs".to_owned()), "{:#?}", world.messages(job));
    // A step leaves its place at once, and is removed a moment later.
    until("no request is left anywhere", || find(&runner.working, "request.json").is_empty().then_some(()))
        .await;
}

fn find(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name() == name {
            found.push(entry.path());
        }
        if entry.file_type().unwrap().is_dir() {
            found.extend(find(&entry.path(), name));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_that_were_open_before_are_narrowed_at_the_start_and_the_log_says_so() {
    let world = World::new().await;
    let working = world.path("work-one");
    for name in ["stack", ".hawser"] {
        fs::create_dir_all(working.join(name)).unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(working.join(name), open).unwrap();
    }
    let runner = world.runner("one");
    world.connected(1).await;
    assert_eq!(open_to_others(&runner.working), []);
    assert!(runner.log().contains("work-one/stack was open to others (mode 777)"), "{}", runner.log());
}
