//! Environment and open files of engines, hooks and provisioners.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use super::{GATED, at_the_gate, gated, one};
use crate::support::processes::Process;
use crate::support::world::{HAWSER, World};

/// Settings of the runner from different sources. None may reach a child process.
const BY_FILE: &str = "canary-by-file";
const BY_ENVIRONMENT: &str = "canary-by-environment";
const BY_COMMAND_LINE: &str = "canary-by-command-line";

fn settings_everywhere(world: &World, command: &mut Command) {
    let file = serde_json::json!({ "JobLogStream": { "RedactValues": [BY_FILE] }, "Source": { "CacheEnabled": false } });
    fs::write(world.path("appsettings.json"), file.to_string()).unwrap();
    let secret = world.hub.identity().runner_variables(&world.hub.url(), "x");
    let (_, secret) = secret.into_iter().find(|(name, _)| name.ends_with("ClientSecret")).unwrap();
    command
        .env("JobLogStream__RedactValues__1", BY_ENVIRONMENT)
        .env("MY_COPY_OF_THE_SECRET", secret)
        .env("CREDENTIALS_DIRECTORY", "/run/credentials/hawser")
        .env("HOST_OWN", "host")
        .env("HOME", world.dir.path())
        .env("HOST_OTHER", "other")
        .arg(format!("--JobLogStream:RedactValues:2={BY_COMMAND_LINE}"));
}

fn assert_nothing_of_the_runners(processes: &[Process], secret: &str) {
    for process in processes {
        for (name, value) in process.environment() {
            let place = format!("{name} of {} ({})", process.name, process.pid);
            assert!(!name.contains("__") && name != "CREDENTIALS_DIRECTORY", "{place}");
            for canary in [BY_FILE, BY_ENVIRONMENT, BY_COMMAND_LINE, secret] {
                assert!(!value.contains(canary), "{place} has {canary}");
            }
        }
    }
}

fn secret_of(world: &World) -> String {
    let variables = world.hub.identity().runner_variables(&world.hub.url(), "x");
    variables.into_iter().find(|(name, _)| name.ends_with("ClientSecret")).unwrap().1.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_provisioners_and_hooks_get_the_hosts_environment_without_the_runners_settings() {
    let world = World::new().await;
    let url = world.repository("repo", GATED);
    let runner = world.runner_from("one", |command| settings_everywhere(&world, command));
    let mut spec = gated(&world, &url, "module");
    spec.env_vars.insert("MODULE_OWN".into(), "module".into());
    spec.hooks.apply_before = Some("echo \"hook: $(env | grep -c __) $HOST_OWN\"".to_owned());
    let job = world.hub.submit(spec);
    let processes = at_the_gate(&runner).await;
    let secret = secret_of(&world);
    // The runner itself has the secret in its environment.
    let own = fs::read(format!("/proc/{}/environ", runner.pid())).unwrap();
    assert!(own.windows(secret.len()).any(|part| part == secret.as_bytes()));
    assert_nothing_of_the_runners(&processes, &secret);
    for name in ["bash", "terraform", "sh"] {
        let environment = one(&processes, name).environment();
        let value =
            |wanted: &str| environment.iter().find(|(name, _)| name == wanted).map(|it| it.1.as_str());
        assert_eq!((value("HOST_OWN"), value("MODULE_OWN")), (Some("host"), Some("module")), "{name}");
        assert!(value("PATH").is_some() && value("HOME").is_some(), "{name}");
    }
    fs::write(world.path("gate"), "").unwrap();
    world.ended(job).await;
    assert!(world.messages(job).iter().any(|line| line == "hook: 0 host"), "{:#?}", world.messages(job));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allow_list_leaves_only_listed_essential_and_module_variables() {
    let world = World::new().await;
    let url = world.repository("repo", GATED);
    let runner = world.runner_from("one", |command| {
        settings_everywhere(&world, command);
        command
            .env("Engine__EnvironmentAllowList__0", "HOST_OW*")
            .env("HTTPS_PROXY", "http://u:p@localhost:1");
        command.env("NO_PROXY", "*");
    });
    let mut spec = gated(&world, &url, "module");
    spec.env_vars.insert("MODULE_OWN".into(), "module".into());
    let job = world.hub.submit(spec);
    let processes = at_the_gate(&runner).await;
    assert_nothing_of_the_runners(&processes, &secret_of(&world));
    // Added by bash and terraform.
    let theirs = ["_", "PWD", "OLDPWD", "SHLVL", "TF_IN_AUTOMATION", "TF_INPUT"];
    for name in ["bash", "terraform", "sh"] {
        for (variable, _) in one(&processes, name).environment() {
            let always = hawser::base::process::ALWAYS.iter();
            let known = always.chain(&theirs).any(|it| *it == variable) || variable.starts_with("LC_");
            assert!(known || ["HOST_OWN", "MODULE_OWN"].contains(&&*variable), "{name} has {variable}");
        }
        let environment = one(&processes, name).environment();
        for wanted in ["HOST_OWN", "MODULE_OWN", "PATH", "HOME"] {
            assert!(environment.iter().any(|(name, _)| name == wanted), "{name} has no {wanted}");
        }
    }
    fs::write(world.path("gate"), "").unwrap();
    world.ended(job).await;
}

/// Starts the runner with an inherited open file, as a service manager may.
fn leave_open(command: &mut Command, path: &Path) {
    fs::File::create(path).unwrap().write_all(b"open").unwrap();
    let script = format!("exec 7<'{}' 9</dev/null; exec '{HAWSER}' run \"$@\"", path.display());
    let mut through = Command::new("bash");
    through.args(["-c", &script, "bash"]).current_dir(path.parent().unwrap());
    for (name, value) in command.get_envs() {
        through.env(name, value.unwrap_or_default());
    }
    *command = through;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_empty_stdin_two_pipes_and_the_module_lock_are_open_in_engines_and_provisioners() {
    let world = World::new().await;
    let url = world.repository("repo", GATED);
    let runner = world.runner_from("one", |command| leave_open(command, &world.path("left-open")));
    let mut spec = gated(&world, &url, "module");
    spec.hooks.apply_before = Some("ls -l /proc/self/fd".to_owned());
    let job = world.hub.submit(spec);
    let processes = at_the_gate(&runner).await;
    let supervisor =
        processes.iter().find(|it| it.arguments().get(1).is_some_and(|it| it == "supervise")).unwrap();
    assert!(
        supervisor.open_files().iter().any(|(_, file)| file.ends_with("left-open")),
        "the supervisor did not inherit the file"
    );
    let mut seen = Vec::new();
    for process in processes.iter().filter(|it| it.pid != supervisor.pid) {
        let mut files = process.open_files();
        // Every process of the step keeps the module locked.
        let is_module_lock = |file: &Path| file.ends_with(".hawser/locks/local/local/module.lock");
        let all = files.len();
        files.retain(|(_, file)| !is_module_lock(file));
        // Others may be ending.
        let stays = ["bash", "terraform"].contains(&process.name.as_str());
        assert!(!stays || files.len() == all - 1, "{}: {files:?}", process.name);
        // The process has ended, like each `sleep` of the provisioner's loop.
        if files.is_empty() {
            continue;
        }
        seen.push(process.name.as_str());
        for (number, file) in &files {
            let file = file.to_string_lossy();
            let place = format!("{} has {file} open as {number}", process.name);
            match number {
                0 => assert_eq!(file, "/dev/null", "{place}"),
                1 | 2 => assert!(file.starts_with("pipe:"), "{place}"),
                // Bash has the script open, and an engine has its own files: pipes to its children, its event queue, its
                // state.
                _ => assert!(!file.ends_with("left-open") && !file.ends_with("lock"), "{place}"),
            }
        }
        // Only the first one: others, such as its children, may be about to start and have files open.
        if process.name == "sh" && seen.iter().filter(|name| **name == "sh").count() == 1 {
            assert_eq!(files.len(), 3, "{files:?}");
        }
        if process.name == "bash" {
            assert!(
                files.iter().all(|(number, file)| *number < 3 || file.ends_with("script.sh")),
                "{files:?}"
            );
        }
    }
    for name in ["bash", "terraform", "sh"] {
        assert!(seen.contains(&name), "{seen:?}");
    }
    fs::write(world.path("gate"), "").unwrap();
    world.ended(job).await;
    let messages = world.messages(job);
    assert!(
        messages.iter().any(|line| line.contains("0 -> /dev/null")),
        "no output of the hook: {messages:#?}"
    );
    assert!(!messages.iter().any(|line| line.contains("left-open")), "{messages:#?}");
}
