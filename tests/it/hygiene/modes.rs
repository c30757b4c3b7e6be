//! Modes of files and folders under any umask.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use hawser_dev_server::JobState;

use super::{GATED, at_the_gate, gated};
use crate::support::eventually::eventually;
use crate::support::git::git_in;
use crate::support::world::{HAWSER, World};

/// All files and folders below a folder that other users may access by their mode. Symlinks have no mode.
fn open_to_others(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        // The runner may have removed it.
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

/// The paths below a folder that another user can read or enter. Only root can check this.
fn within_reach(folder: &Path) -> Option<Vec<PathBuf>> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can check as another user");
        return None;
    }
    let all = find(folder, &|_| true);
    let list: String = all.iter().map(|path| format!("{}\0", path.display())).collect();
    let paths = tempfile::NamedTempFile::new().unwrap();
    fs::write(paths.path(), list).unwrap();
    let check = r#"while IFS= read -r -d '' path; do if [[ -r $path || -x $path ]]; then printf '%s\0' "$path"; fi; done"#;
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c", check])
        .stdin(fs::File::open(paths.path()).unwrap())
        .current_dir("/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let reached = String::from_utf8(output.stdout).unwrap();
    Some(reached.split_terminator('\0').map(PathBuf::from).collect())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_umask_0_a_checkout_has_the_usual_modes_and_other_users_cannot_reach_it() {
    let world = World::new().await;
    let url = world.repository("repo", GATED);
    let program = Path::new(&url).join("code/program.sh");
    fs::create_dir(program.parent().unwrap()).unwrap();
    fs::write(&program, "#!/bin/sh\necho it runs\n").unwrap();
    set_mode(&program, 0o755);
    git_in(Path::new(&url), &["add", "code"]);
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
    spec.hooks.apply_before = Some(
        "./code/program.sh; touch by-the-hook; mkdir folder-of-the-hook; touch \"$TMPDIR/scratch\"".into(),
    );
    let job = world.hub.submit(spec);
    at_the_gate(&runner).await;
    // At this point there are a step with its request and script, the lock of the state, scratch space and caches.
    let steps = runner.steps();
    assert!(steps.iter().any(|step| step.join("request.json").exists() && step.join("script.sh").exists()));
    assert_eq!(mode(&runner.working), 0o700);
    assert!(count(&runner.working) > 50, "there are too few files to check");
    // If an operator opens the working directory to others, the folders in it still protect everything.
    let canary = runner.working.join("canary");
    fs::write(&canary, "").unwrap();
    for (path, mode) in [(world.dir.path(), 0o755), (&runner.working, 0o755), (&canary, 0o644)] {
        set_mode(path, mode);
    }
    let only_the_canary = || {
        if let Some(reached) = within_reach(&runner.working) {
            assert_eq!(reached, [canary.as_path()]);
        }
    };
    only_the_canary();
    // The runner's own files are private by themselves, and so are those that the script writes to the step folder.
    assert_eq!(open_to_others(&runner.working.join(".hawser")), []);

    fs::write(world.path("gate"), "").unwrap();
    let ended = world.ended(job).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}\n{}", runner.log());
    eventually("every step folder is removed, and its request with it", || runner.steps().is_empty()).await;
    only_the_canary();
    let module = runner.working.join("local/local/module");
    for secret in [".snapcd/snapcd.env", ".snapcd/inputs.tfvars"] {
        assert_eq!(mode(&module.join(secret)), 0o600, "{secret}");
    }
    assert!(module.join("terraform.tfstate").is_file() && module.join(".snapcd/plan.out").is_file());
    // These modes end up in packages.
    let usual = [
        ("main.tf", 0o644),
        ("code", 0o755),
        ("code/program.sh", 0o755),
        ("by-the-hook", 0o644),
        ("folder-of-the-hook", 0o755),
    ];
    for (path, expected) in usual {
        assert_eq!(mode(&module.join(path)), expected, "{path}");
    }
    assert!(world.messages(job).contains(&"it runs".to_owned()), "{:#?}", world.messages(job));
    // A step is moved first and removed a moment later.
    let is_request = |path: &Path| path.ends_with("request.json");
    eventually("no request is left anywhere", || find(&runner.working, &is_request).is_empty()).await;
}

fn find(folder: &Path, wanted: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if wanted(&entry.path()) {
            found.push(entry.path());
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(find(&entry.path(), wanted));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_open_folders_are_made_private_at_the_start_with_a_warning() {
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
    assert!(runner.log().contains("work-one/stack was open to other users (mode 777)"), "{}", runner.log());
}
