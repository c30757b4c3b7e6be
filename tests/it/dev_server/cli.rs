//! `hawser hub` and `hawser job` on the command line, with a scripted client as the runner.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use hawser_contract::Task;
use hawser_dev_server::{AdminClient, HubData, Identity, JobKind, JobSpec, listening_url};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::client::{Client, Reachable, entry, http};
use super::complete_task;
use crate::support::eventually::{eventually, in_time};
use crate::support::git::Repo;
use crate::support::own_loopback;

/// A `hawser hub` process.
struct HubProcess {
    process: Child,
    url: String,
    identity: Identity,
}

impl Reachable for HubProcess {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn identity(&self) -> &Identity {
        &self.identity
    }
}

fn hawser(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
    command
        .current_dir(directory)
        .env_remove("HAWSER_HUB_ADMIN_TOKEN")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

impl HubProcess {
    async fn start(directory: &Path, listen: &str) -> Self {
        let data = directory.join(".hawser-hub");
        let printed = directory.join("hub.out");
        let process = hawser(directory)
            .args(["hub", "--listen", listen])
            .stdout(std::fs::File::create(&printed).unwrap())
            .spawn()
            .unwrap();
        // The hub prints its last line after it has recorded its URL.
        let introduced = || std::fs::read_to_string(&printed).unwrap().contains(" SOURCE\n");
        let listening = || listening_url(&data).unwrap().filter(|_| introduced());
        let url = eventually("the hub to listen", listening).await;
        Self { process, url, identity: HubData::load(&data).unwrap().unwrap().identity }
    }

    /// Stops the hub as systemd does.
    async fn stop(mut self) {
        let id = self.process.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
        assert!(in_time("the end of the program", self.process.wait()).await.unwrap().success());
    }
}

async fn job(directory: &Path, arguments: &[&str]) -> Output {
    in_time("the end of the program", hawser(directory).arg("job").args(arguments).output()).await.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The `appsettings.json` that the hub prints.
fn printed_settings(printed: &str) -> Value {
    let from = printed.find('{').unwrap();
    serde_json::Deserializer::from_str(&printed[from..]).into_iter::<Value>().next().unwrap().unwrap()
}

/// Makes a directory look like a git repository to `hawser job`.
fn repository(directory: &Path) -> String {
    std::fs::create_dir_all(directory.join("repository/.git")).unwrap();
    std::fs::create_dir_all(directory.join("repository/modules/one")).unwrap();
    "repository/modules/one".to_owned()
}

#[tokio::test]
async fn a_submitted_job_is_followed_until_it_ends() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().canonicalize().unwrap();
    let hub = HubProcess::start(&directory, "127.0.0.1:0").await;
    let source = repository(&directory);
    let mut client = Client::connect(&hub, "a").await;
    let arguments = ["apply", &source, "--var", "name=it's \"me\"", "--env", "A=b", "--engine", "tofu"];
    let (output, ()) = tokio::join!(job(&directory, &arguments), async {
        for task in JobKind::Apply.tasks() {
            if task == Task::Variables {
                declare(&mut client, &[("name", "string")]).await;
                continue;
            }
            let request = complete_task(&mut client, task).await;
            match task {
                Task::GetModule => {
                    assert_eq!(request["sourceUrl"], json!(directory.join("repository")));
                    assert_eq!(request["metadata"]["sourceSubdirectory"], "modules/one");
                }
                Task::Init => assert_eq!(request["resolvedEnvVars"], json!({"A": "b"})),
                Task::Plan => {
                    assert_eq!(request["engine"], "tofu");
                    assert_eq!(request["resolvedParameters"], json!({"name": "\"it's \\\"me\\\"\""}));
                }
                _ => {}
            }
        }
    });
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    let at = |part: &str| shown.find(part).unwrap_or_else(|| panic!("{part:?} is missing in {shown}"));
    let ends: Vec<_> = shown.match_indices(" done in ").map(|(at, _)| at).collect();
    assert_eq!(ends.len(), JobKind::Apply.tasks().len(), "{shown}");
    for (task, end) in JobKind::Apply.tasks().into_iter().zip(ends) {
        assert!(at(&format!("{task} at work")) < end, "{shown}");
    }
    assert!(shown.contains("\n  o  v\n"), "{shown}");
    hub.stop().await;
    assert_eq!(listening_url(&directory.join(".hawser-hub")).unwrap(), None);
}

/// Completes `Variables` with these names and types.
async fn declare(client: &mut Client, variables: &[(&str, &str)]) {
    let task = Task::Variables;
    let request = client.pushed(task.pushed_as()).await;
    client.claim(&request["jobId"], task).await.unwrap();
    client.log(&request, task, &[&format!("{task} at work")]).await.unwrap();
    complete(client, &request, variables).await;
}

async fn complete(client: &mut Client, request: &Value, variables: &[(&str, &str)]) {
    let variables = variables.iter().map(|(name, kind)| {
        json!({
            "name": name, "type": kind, "description": null, "sensitive": false, "nullable": false,
            "fromExtraFile": false,
        })
    });
    let set = json!({
        "moduleId": request["metadata"]["moduleId"], "timestamp": 1_800_000_000_000_u64, "checksum": "0".repeat(64),
        "variables": variables.collect::<Vec<_>>(),
    });
    client.call("VariablesCompleted", vec![request["jobId"].clone(), set]).await.unwrap();
}

/// The variable decides what a value means, not its form. An unread file may declare any variable.
#[tokio::test]
async fn a_value_has_the_type_of_its_variable_and_an_unread_file_may_declare_any() {
    let home = tempfile::tempdir().unwrap();
    let hub = HubProcess::start(home.path(), "127.0.0.1:0").await;
    let mut client = Client::connect(&hub, "a").await;
    let source = "https://example.org/x.git";
    let arguments = ["plan", source, "--var", "text=[1]", "--var", "list=[1]", "--var", "zzz=1"];
    let (output, plan) = tokio::join!(job(home.path(), &arguments), async {
        for task in [Task::GetDefinitiveRevision, Task::GetModule, Task::Init, Task::Validate] {
            complete_task(&mut client, task).await;
        }
        let task = Task::Variables;
        let request = client.pushed(task.pushed_as()).await;
        client.claim(&request["jobId"], task).await.unwrap();
        let mut warning = entry(&request, task, "b.tf cannot be parsed");
        warning["level"] = json!(3);
        client.call("AddLogs", vec![json!([warning])]).await.unwrap();
        complete(&mut client, &request, &[("text", "string"), ("list", "list(number)")]).await;
        complete_task(&mut client, Task::Plan).await
    });
    assert!(output.status.success(), "{}", text(&output.stderr));
    let expected = json!({"text": "\"[1]\"", "list": "[1]", "zzz": "\"1\""});
    assert_eq!(plan["resolvedParameters"], expected);
    hub.stop().await;
}

#[tokio::test]
async fn a_variable_that_the_module_does_not_declare_fails_the_job_before_its_plan() {
    let home = tempfile::tempdir().unwrap();
    let hub = HubProcess::start(home.path(), "127.0.0.1:0").await;
    let mut client = Client::connect(&hub, "a").await;
    let source = "https://example.org/x.git";
    for (declared, part) in [
        (&[("name", "string")][..], "variable \"zzz\" is not declared by the module"),
        // A module without any variable.
        (&[], "variables \"name\", \"zzz\" are not declared by the module"),
    ] {
        let arguments = ["apply", source, "--var", "name=x", "--var", "zzz=1"];
        let (output, ()) = tokio::join!(job(home.path(), &arguments), async {
            let tasks = JobKind::Apply.tasks();
            for task in tasks.into_iter().take_while(|task| *task != Task::Plan) {
                match task {
                    Task::Variables if !declared.is_empty() => declare(&mut client, declared).await,
                    _ => drop(complete_task(&mut client, task).await),
                }
            }
        });
        let shown = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{shown}");
        assert!(shown.contains(part), "{shown}");
    }
    // Pulumi accepts any key.
    let arguments = ["plan", source, "--engine", "pulumi", "--var", "zzz=1"];
    let (output, ()) = tokio::join!(job(home.path(), &arguments), async {
        for task in JobKind::Plan.tasks() {
            complete_task(&mut client, task).await;
        }
    });
    assert!(output.status.success(), "{}", text(&output.stderr));
    hub.stop().await;
}

/// The job ID and module that `--no-wait` prints.
fn submitted(output: &Output) -> (Value, String) {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let module = text(&output.stderr).trim().strip_prefix("module ").unwrap().to_owned();
    (json!(text(&output.stdout).trim()), module)
}

#[tokio::test]
async fn each_source_is_its_own_module_unless_the_command_line_names_one() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().canonicalize().unwrap();
    let hub = HubProcess::start(&directory, "127.0.0.1:0").await;
    let mut client = Client::connect(&hub, "a").await;
    for root in ["one/infra", "two/infra"] {
        std::fs::create_dir_all(directory.join(root).join(".git")).unwrap();
        std::fs::create_dir_all(directory.join(root).join("net")).unwrap();
    }
    let mut module_of = async |arguments: &[&str]| {
        let (id, shown) = submitted(&job(&directory, &[arguments, &["--no-wait"]].concat()).await);
        let request = client.pushed("GetDefinitiveRevision").await;
        assert_eq!(request["jobId"], id);
        let metadata = &request["metadata"];
        let name = |member: &str| metadata[member].as_str().unwrap().to_owned();
        assert_eq!(shown, [name("stackName"), name("namespaceName"), name("moduleName")].join("/"));
        (shown, name("moduleId"))
    };
    let one = module_of(&["apply", "one/infra"]).await;
    let two = module_of(&["apply", "two/infra"]).await;
    assert!(one.0 != two.0 && one.1 != two.1, "{one:?} {two:?}");
    assert!(one.0.starts_with("local/infra-"), "{one:?}");
    for command in ["plan", "destroy"] {
        assert_eq!(module_of(&[command, "one/infra"]).await, one);
        assert_eq!(module_of(&[command, "./two/../one/infra/", "--revision", "v1"]).await, one);
    }
    let below = module_of(&["apply", "one/infra/net"]).await;
    assert_ne!(below, one);
    assert_eq!(module_of(&["destroy", "one/infra", "--subdirectory", "net/"]).await, below);
    let named = ["apply", "one/infra", "--stack", "s", "--namespace", "n", "--module", "m"];
    assert_eq!(module_of(&named).await.0, "s/n/m");
    let one = module_of(&["apply", "one/infra", "--namespace", "n"]).await;
    let two = module_of(&["apply", "two/infra", "--namespace", "n"]).await;
    assert!(one.0.starts_with("local/n/") && one != two, "{one:?} {two:?}");
    hub.stop().await;
}

#[tokio::test]
async fn the_secrets_of_a_hub_are_not_added_to_its_repository() {
    let repository = Repo::with(&[("main.tf", "")]);
    let directory = repository.path();
    let hub = HubProcess::start(directory, "127.0.0.1:0").await;
    // What git would add, and what `hawser local` would copy.
    let untracked = ["ls-files", "--others", "--exclude-standard"];
    let listed = in_time(
        "the end of the program",
        Command::new("git").current_dir(directory).args(untracked).output(),
    )
    .await
    .unwrap();
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    assert_eq!(text(&listed.stdout), "hub.out\n");
    hub.stop().await;

    let identity = directory.join(".hawser-hub/identity.json");
    std::fs::set_permissions(&identity, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut open = hawser(directory);
    open.args(["hub", "--listen", "127.0.0.1:0"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut open = open.spawn().unwrap();
    let mut warning = String::new();
    in_time("a line", BufReader::new(open.stderr.take().unwrap()).read_line(&mut warning)).await.unwrap();
    assert!(warning.contains("warning") && warning.contains(".hawser-hub/identity.json"), "{warning}");
    assert_eq!(identity.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn a_failed_or_cancelled_job_has_a_nonzero_exit_code() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path();
    let hub = HubProcess::start(directory, "127.0.0.1:0").await;
    let mut client = Client::connect(&hub, "a").await;
    let (output, ()) = tokio::join!(job(directory, &["plan", "https://example.org/x.git"]), async {
        let id = client.pushed("GetDefinitiveRevision").await["jobId"].clone();
        let arguments = vec![id, json!("no such branch"), json!("at line 1")];
        client.call("GetDefinitiveRevisionFaulted", arguments).await.unwrap();
    });
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(shown.matches("no such branch").count(), 1, "{shown}");
    assert!(shown.contains("at line 1"), "{shown}");

    let submitted = job(directory, &["destroy", "https://example.org/x.git", "--no-wait"]).await;
    let id = text(&submitted.stdout).trim().to_owned();
    client.pushed("GetDefinitiveRevision").await;
    let cancelled = job(directory, &["cancel", &id]).await;
    assert!(cancelled.status.success());
    let printed = text(&cancelled.stdout);
    assert!(
        printed.contains(&id) && printed.contains("cancel requested") && printed.contains("--kill"),
        "{printed}"
    );
    assert_eq!(client.pushed("CancelGraceful").await, json!({"jobId": id}));
    let killed = job(directory, &["cancel", &id, "--kill"]).await;
    assert!(killed.status.success() && text(&killed.stdout).contains("kill requested"));
    client.pushed("CancelKill").await;
    client.call("GetDefinitiveRevisionCancelled", vec![json!(id)]).await.unwrap();
    assert_eq!(job(directory, &["follow", &id]).await.status.code(), Some(1));
    let list = text(&job(directory, &["list"]).await.stdout);
    assert!(list.contains(&id) && list.contains("cancelled") && list.contains("failed"), "{list}");
    hub.stop().await;
}

#[tokio::test]
async fn the_printed_command_works_in_every_directory() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("it's here");
    std::fs::create_dir(&directory).unwrap();
    let hub = HubProcess::start(&directory, "127.0.0.1:0").await;
    let printed = std::fs::read_to_string(directory.join("hub.out")).unwrap();
    let command = printed.lines().find(|line| line.starts_with("hawser job apply ")).unwrap();
    let script = command.replace("SOURCE", "https://example.org/x.git --no-wait");
    let script = format!("hawser() {{ '{}' \"$@\"; }}\n{script}", env!("CARGO_BIN_EXE_hawser"));
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir("/").env_remove("HAWSER_HUB_ADMIN_TOKEN");
    let output = in_time("the end of the program", bash.output()).await.unwrap();
    assert!(output.status.success(), "{command}\n{}", text(&output.stderr));
    hub.stop().await;
}

#[tokio::test]
async fn a_rejected_job_is_not_shown_as_cancelled() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path();
    let hub = HubProcess::start(directory, "127.0.0.1:0").await;
    let mut client = Client::connect(&hub, "a").await;
    let arguments = ["apply", "https://example.org/x.git", "--no-wait", "--needs-approval"];
    let (id, _) = submitted(&job(directory, &arguments).await);
    for task in JobKind::Plan.tasks() {
        complete_task(&mut client, task).await;
    }
    let rejected = job(directory, &["reject", id.as_str().unwrap()]).await;
    assert!(rejected.status.success(), "{}", text(&rejected.stderr));
    let followed = job(directory, &["follow", id.as_str().unwrap()]).await;
    let shown = text(&followed.stdout);
    assert_eq!(followed.status.code(), Some(1), "{shown}");
    assert!(shown.contains("Rejected. Nothing was changed.") && !shown.contains("Cancelled"), "{shown}");
    hub.stop().await;
}

#[tokio::test]
async fn cancelling_a_job_names_its_runner_if_that_is_not_connected() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path();
    let hub = HubProcess::start(directory, "127.0.0.1:0").await;
    let mut client = Client::connect(&hub, "a").await;
    let (id, _) = submitted(&job(directory, &["plan", "https://example.org/x.git", "--no-wait"]).await);
    client.pushed("GetDefinitiveRevision").await;
    client.claim(&id, Task::GetDefinitiveRevision).await.unwrap();
    drop(client);
    let printed = || std::fs::read_to_string(directory.join("hub.out")).unwrap();
    eventually("the hub to lose the runner", || printed().contains("a disconnected")).await;
    for options in [&[][..], &["--kill"]] {
        let arguments = [&["cancel", id.as_str().unwrap()], options].concat();
        let cancelled = job(directory, &arguments).await;
        let shown = text(&cancelled.stdout);
        assert!(cancelled.status.success() && !shown.contains("take a while"), "{shown}");
        assert!(
            shown.contains("runner \"a\" is not connected") && shown.contains("when it returns"),
            "{shown}"
        );
    }
    let mut client = Client::connect(&hub, "a").await;
    assert_eq!(client.pushed("CancelKill").await, json!({"jobId": id}));
    hub.stop().await;
}

#[tokio::test]
async fn the_start_of_an_id_is_enough_if_only_one_job_has_it() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path();
    let hub = HubProcess::start(directory, "127.0.0.1:0").await;
    let token = HubData::load(&directory.join(".hawser-hub")).unwrap().unwrap().admin_token;
    let admin = AdminClient::new(&hub.url, &token).unwrap();
    let mut ids = Vec::new();
    // Two of them start with the same digit.
    for _ in 0..17 {
        let spec = JobSpec::new(JobKind::Plan, "https://example.org/x.git");
        ids.push(admin.submit(&spec).await.unwrap().to_string());
    }
    // As the hub logs it.
    let short = &ids[3][..8];
    let cancelled = job(directory, &["cancel", short]).await;
    assert!(cancelled.status.success(), "{}", text(&cancelled.stderr));
    assert!(text(&cancelled.stdout).contains(&ids[3]));
    let shown = text(&job(directory, &["follow", &ids[3][..10].to_uppercase()]).await.stdout);
    assert!(shown.contains("Cancelled"), "{shown}");

    let first = |id: &String| id[..1].to_owned();
    let digit =
        ids.iter().map(first).find(|it| ids.iter().filter(|id| first(id) == *it).count() > 1).unwrap();
    for command in ["follow", "cancel", "approve", "reject"] {
        let ambiguous = job(directory, &[command, &digit]).await;
        assert_eq!(ambiguous.status.code(), Some(64));
        let error = text(&ambiguous.stderr);
        let listed = ids.iter().filter(|id| error.contains(id.as_str())).count();
        let matching = ids.iter().filter(|id| first(id) == digit).count();
        assert_eq!(listed, matching.min(10), "{error}");
    }
    hub.stop().await;
}

#[tokio::test]
async fn flags_reach_the_tasks_that_they_are_for() {
    let home = tempfile::tempdir().unwrap();
    let hub = HubProcess::start(home.path(), "127.0.0.1:0").await;
    let mut client = Client::connect(&hub, "a").await;
    let flags =
        ["--flag", "Init:CloudUrl=file:///state", "--flag", "plan:target=a", "--flag", "Plan:Target=b=c"];
    std::fs::write(home.path().join("hook.sh"), "echo from the file\n").unwrap();
    let flags = [&flags[..], &["--hook", "init:before=hook.sh", "--hook", "Plan:after=hook.sh"]].concat();
    let arguments =
        [&["plan", "https://example.org/x.git", "--engine", "pulumi", "--stack", "s"], &flags[..]].concat();
    let (output, ()) = tokio::join!(job(home.path(), &arguments), async {
        for task in JobKind::Plan.tasks() {
            let request = complete_task(&mut client, task).await;
            let values = |request: &Value, list: &str| -> Vec<String> {
                let entries = request[list].as_array().cloned().unwrap_or_default();
                entries.iter().map(|it| it["value"].as_str().unwrap().to_owned()).collect()
            };
            match task {
                Task::Init => {
                    assert_eq!(
                        values(&request["backendConfiguration"], "pulumiFlags"),
                        ["s", "file:///state"]
                    );
                    assert_eq!(request["initBeforeHook"], "echo from the file\n");
                }
                Task::Plan => {
                    assert_eq!(values(&request, "pulumiArrayFlags"), ["a", "b=c"]);
                    assert_eq!(request["planAfterHook"], "echo from the file\n");
                }
                _ => {}
            }
        }
    });
    assert!(output.status.success(), "{}", text(&output.stderr));
    let refused = job(home.path(), &["plan", "https://example.org/x.git", "--flag", "Init:CloudUrl=x"]).await;
    assert_eq!(refused.status.code(), Some(64));
    assert!(text(&refused.stderr).contains("terraform"), "{}", text(&refused.stderr));
    for wrong in ["init=hook.sh", "Variables:before=hook.sh", "init:before=none.sh"] {
        let refused = job(home.path(), &["plan", "https://example.org/x.git", "--hook", wrong]).await;
        assert!(!refused.status.success(), "{wrong}");
    }
    hub.stop().await;
}

#[tokio::test]
async fn interrupting_follow_prints_that_the_job_continues() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path();
    let hub = HubProcess::start(directory, "127.0.0.1:0").await;
    let mut client = Client::connect(&hub, "a").await;
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut follow = hawser(directory);
        follow.args(["job", "apply", "https://example.org/x.git", "--data", "."]);
        let follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let process = follow.id().unwrap().to_string();
        let (mut follow, mut shown) = (follow, String::new());
        let request = client.pushed("GetDefinitiveRevision").await;
        let id = request["jobId"].as_str().unwrap();
        client.claim(&request["jobId"], Task::GetDefinitiveRevision).await.unwrap();
        // It follows the job once it prints the task.
        let mut lines = BufReader::new(follow.stdout.take().unwrap());
        while !shown.contains("running on a") {
            assert_ne!(in_time("a line", lines.read_line(&mut shown)).await.unwrap(), 0, "{shown}");
        }
        assert!(Command::new("kill").args([name, &process]).status().await.unwrap().success());
        let output = in_time("the end of the program", follow.wait_with_output()).await.unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        // The printed command must find the same hub.
        let cancel = format!("hawser job cancel {id} --data .");
        assert!(error.contains("still running") && error.contains(&cancel), "{error}");
        for command in ["follow", "cancel"] {
            assert!(error.contains(&format!("hawser job {command} {id}")), "{error}");
        }
        let list = text(&job(directory, &["list"]).await.stdout);
        assert!(list.lines().any(|line| line.contains(id) && line.ends_with("running")), "{list}");
    }
    hub.stop().await;
}

#[tokio::test]
async fn a_job_for_an_absent_runner_lists_the_connected_ones_and_waits() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path();
    let hub = HubProcess::start(directory, "127.0.0.1:0").await;
    let mut follow = hawser(directory);
    follow.args(["job", "plan", "https://example.org/x.git", "--instance", "absent"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap());
    let mut shown = String::new();
    let mut expect_line = async |part: &str| {
        while !shown.contains(part) {
            assert_ne!(in_time("a line", lines.read_line(&mut shown)).await.unwrap(), 0, "{shown}");
        }
    };
    expect_line("waiting for runner \"absent\": no runner is connected\n").await;
    let _a = Client::connect(&hub, "a").await;
    expect_line("it is not connected (connected: a)\n").await;
    let _b = Client::connect(&hub, "b").await;
    expect_line("it is not connected (connected: a, b)\n").await;
    let mut absent = Client::connect(&hub, "absent").await;
    let tasks = JobKind::Plan.tasks();
    let (first, later) = tasks.split_first().unwrap();
    complete_task(&mut absent, *first).await;
    expect_line("running on absent").await;
    drop(absent);
    expect_line("waiting for its runner: runner \"absent\" is not connected\n").await;
    let mut absent = Client::connect(&hub, "absent").await;
    for task in later {
        complete_task(&mut absent, *task).await;
    }
    expect_line("Planned in").await;
    assert!(in_time("the end of the program", follow.wait()).await.unwrap().success());
    hub.stop().await;
}

#[tokio::test]
async fn a_restarted_hub_keeps_its_identity_and_accepts_results_of_unknown_jobs() {
    let home = tempfile::tempdir().unwrap();
    let hub = HubProcess::start(home.path(), &format!("{}:0", own_loopback())).await;
    let printed = std::fs::read_to_string(home.path().join("hub.out")).unwrap();
    let settings = printed_settings(&printed);
    assert_eq!(settings["Runner"]["Id"], json!(hub.identity.runner_id));
    assert_eq!(settings["Server"]["Url"], json!(hub.url));
    assert_eq!(settings["JobLogStream"]["PeriodSeconds"], 1);
    assert!(printed.contains("export JobLogStream__PeriodSeconds=1") && !printed.contains("another machine"));
    assert!(printed.contains(&format!("export Runner__Credentials__ClientId={}", hub.identity.client_id)));

    let mut client = Client::connect(&hub, "a").await;
    let submitted = job(home.path(), &["apply", "https://example.org/x.git", "--no-wait"]).await;
    let id = json!(text(&submitted.stdout).trim());
    client.pushed("GetDefinitiveRevision").await;
    let (address, identity) = (hub.url.trim_start_matches("http://").to_owned(), hub.identity.clone());
    hub.stop().await;
    client.expect_close(None, true).await;

    let mut hub = HubProcess::start(home.path(), &address).await;
    hub.identity = identity;
    let mut client = Client::connect(&hub, "a").await;
    // The new hub does not know the job, but must acknowledge its result.
    client.call("GetDefinitiveRevisionCompleted", vec![id, json!("c0ffee")]).await.unwrap();
    let submitted = job(home.path(), &["apply", "https://example.org/x.git", "--no-wait"]).await;
    assert!(submitted.status.success());
    client.pushed("GetDefinitiveRevision").await;
    hub.stop().await;
}

#[tokio::test]
async fn a_runner_with_the_printed_settings_survives_a_restart_of_the_hub() {
    let home = tempfile::tempdir().unwrap();
    let repository = Repo::with(&[("main.tf", "output \"greeting\" {\n  value = \"ahoy\"\n}\n")]);
    let source = repository.path().display().to_string();
    let hub = HubProcess::start(home.path(), &format!("{}:0", own_loopback())).await;
    let printed = || std::fs::read_to_string(home.path().join("hub.out")).unwrap();

    // The file contains the printed settings and the directories of this test.
    let place = home.path().join("runner");
    std::fs::create_dir(&place).unwrap();
    let mut settings = printed_settings(&printed());
    settings["WorkingDirectory"] =
        json!({ "WorkingDirectory": place.join("work"), "TempDirectory": place.join("temp") });
    std::fs::write(place.join("appsettings.json"), settings.to_string()).unwrap();
    let log = std::fs::File::create(place.join("runner.log")).unwrap();
    let mut runner = hawser(&place).arg("run").stdout(log).spawn().unwrap();
    eventually("the runner to connect", || printed().contains("runner-1 connected")).await;

    let applied = || async {
        let output = job(home.path(), &["apply", &source]).await;
        let shown = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success() && shown.contains("greeting  ahoy"), "{shown}");
    };
    applied().await;
    let address = hub.url.trim_start_matches("http://").to_owned();
    hub.stop().await;
    assert!(runner.try_wait().unwrap().is_none(), "the runner outlives its hub");

    // No wait: a job may be submitted before the runner reconnects.
    let hub = HubProcess::start(home.path(), &address).await;
    applied().await;
    hub.stop().await;
    let log = std::fs::read_to_string(place.join("runner.log")).unwrap();
    assert!(log.contains("connected again") && !log.contains("panicked"), "{log}");
    // The new hub rejects the old token, although the settings are right.
    assert!(log.contains("cached token rejected") && !log.contains("Runner.OrganizationId"), "{log}");
}

#[tokio::test]
async fn the_hub_survives_when_its_output_is_closed() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path();
    let mut hub =
        hawser(directory).args(["hub", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(hub.stdout.take());
    let listening = || listening_url(&directory.join(".hawser-hub")).unwrap();
    eventually("the hub to listen", listening).await;
    // The hub prints an event for each submission.
    for _ in 0..3 {
        let submitted = job(directory, &["plan", "https://example.org/x.git", "--no-wait"]).await;
        assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    }
    assert!(hub.try_wait().unwrap().is_none(), "the hub has ended");
}

#[tokio::test]
async fn errors_are_reported_with_a_hint() {
    let home = tempfile::tempdir().unwrap();
    let (one, two) = (home.path().join("one"), home.path().join("two"));
    std::fs::create_dir_all(&one).unwrap();
    std::fs::create_dir_all(&two).unwrap();
    let check = |output: &Output, code: i32, parts: &[&str]| {
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    };
    check(&job(&one, &["list"]).await, 69, &["no hub was started", "--data"]);
    let hub = HubProcess::start(&one, &format!("{}:0", own_loopback())).await;
    let other = HubProcess::start(&two, "127.0.0.1:0").await;
    check(&job(&one, &["list", "--hub", &other.url]).await, 1, &["admin token", "--data"]);
    let missing = ["admin token", &hub.url, "--data", "HAWSER_HUB_ADMIN_TOKEN", "identity.json"];
    check(&job(home.path(), &["--hub", &hub.url, "list"]).await, 69, &missing);
    check(&job(home.path(), &["--data", "one/.hawser-hub", "list"]).await, 0, &["no jobs"]);
    check(&job(home.path(), &["--data", "one", "list"]).await, 0, &["no jobs"]);
    let token = HubData::load(&one.join(".hawser-hub")).unwrap().unwrap().admin_token;
    let mut with_token = hawser(home.path());
    with_token.args(["job", "--hub", &hub.url, "list"]).env("HAWSER_HUB_ADMIN_TOKEN", token);
    check(&in_time("the end of the program", with_token.output()).await.unwrap(), 0, &["no jobs"]);
    let unknown = uuid::Uuid::new_v4().to_string();
    check(&job(&one, &["cancel", &unknown]).await, 1, &[&unknown, "hawser job list"]);
    check(&job(&one, &["cancel", "xyz"]).await, 64, &["xyz", "hawser job list"]);
    check(&job(&one, &["cancel", "abc"]).await, 1, &["abc", "hawser job list"]);
    check(&job(&one, &["list"]).await, 0, &["no jobs"]);
    check(&job(&one, &["plan", "no-such-place"]).await, 64, &["no-such-place"]);
    std::fs::create_dir(one.join("plain")).unwrap();
    check(&job(&one, &["plan", "plain"]).await, 64, &["git repository", "hawser local"]);
    let taken = hub.url.trim_start_matches("http://").to_owned();
    let three = home.path().join("three");
    std::fs::create_dir(&three).unwrap();
    let output = in_time("the end of the program", hawser(&three).args(["hub", "--listen", &taken]).output())
        .await
        .unwrap();
    check(&output, 69, &[&taken, "--listen"]);
    let output =
        in_time("the end of the program", hawser(&three).args(["hub", "--listen", "localhost"]).output())
            .await
            .unwrap();
    check(&output, 64, &["IP address", "127.0.0.1:8900"]);
    // A second hub would replace the recorded URL, and remove it when it stops.
    let output =
        in_time("the end of the program", hawser(&one).args(["hub", "--listen", "127.0.0.1:0"]).output())
            .await
            .unwrap();
    check(&output, 75, &["another hawser hub", &hub.url, "--data"]);
    check(&job(&one, &["list"]).await, 0, &["no jobs"]);
    check(&job(&one, &["list", "--hub", &taken]).await, 64, &["scheme", "http://127.0.0.1:8900"]);
    let url = hub.url.clone();
    hub.stop().await;
    check(&job(&one, &["list"]).await, 69, &["no hub is running"]);
    check(&job(&one, &["list", "--hub", &url]).await, 69, &["no hub is running", "refused", "hawser hub"]);
}

#[tokio::test]
async fn closed_output_is_not_a_failure() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path();
    let hub = HubProcess::start(directory, "127.0.0.1:0").await;
    let submitted = job(directory, &["plan", &repository(directory), "--no-wait"]).await;
    assert!(submitted.status.success(), "{}", text(&submitted.stderr));
    for arguments in [&["job", "list"][..], &["schema"]] {
        // The read end is closed before the program starts.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = in_time(
            "the end of the program",
            hawser(directory).args(arguments).stdout(writer).stderr(Stdio::piped()).output(),
        );
        let output = output.await.unwrap();
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{arguments:?}");
    }
    hub.stop().await;
}

#[tokio::test]
async fn a_hub_on_all_addresses_prints_a_hint_for_other_machines() {
    let home = tempfile::tempdir().unwrap();
    let hub = HubProcess::start(home.path(), "0.0.0.0:0").await;
    let port = hub.url.rsplit(':').next().unwrap().to_owned();
    let hint = format!("another machine needs this machine's address in Server.Url: http://ADDRESS:{port}");
    let printed = || std::fs::read_to_string(home.path().join("hub.out")).unwrap();
    eventually("the hint", || printed().contains(&hint)).await;
    hub.stop().await;
}

#[tokio::test]
async fn an_unknown_path_is_not_found() {
    let home = tempfile::tempdir().unwrap();
    let hub = HubProcess::start(home.path(), "127.0.0.1:0").await;
    for path in ["/", "/prefix/connect/token", "/admin"] {
        let answer = http().get(format!("{}{path}", hub.url)).send().await.unwrap();
        assert_eq!(answer.status(), 404, "{path}");
    }
    hub.stop().await;
}
