//! A runner, a server that pushes any message, and files that must not change.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hawser_dev_server::Identity;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::git::Repo;
use crate::support::scripted_hub::{Peer, ScriptedHub};
use crate::support::world::HAWSER;

/// In the place of every engine, to see exactly what one would be given.
const RECORDER: &str = include_str!("argument_recorder.sh");

/// What a request came to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) method: String,
    pub(super) arguments: Vec<Value>,
}

impl Answer {
    pub(super) fn is_fault(&self) -> bool {
        self.method.ends_with("Faulted")
    }

    /// All that it says.
    pub(super) fn text(&self) -> String {
        let texts = self.arguments.iter().map(|it| it.as_str().map_or_else(|| it.to_string(), str::to_owned));
        texts.collect::<Vec<_>>().join(" ")
    }
}

pub(super) struct Stage {
    dir: tempfile::TempDir,
    peer: Peer,
    runner: Child,
    pub(super) repo: Repo,
    untouched: BTreeMap<PathBuf, String>,
    _hub: ScriptedHub,
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.runner.kill();
        let _ = self.runner.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            let warnings: Vec<_> = log.lines().filter(|line| !line.contains(" INFO ")).collect();
            eprintln!("{}", warnings.join("\n"));
        }
    }
}

impl Stage {
    /// With one module in place, initialised and planned.
    pub(super) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let files = [
            "around/secret.tf",
            "around/terraform.tfstate",
            "around/.terraform/x",
            "around/work/neighbour/space/module/main.tf",
            "around/work/neighbour/space/module/terraform.tfstate",
            "home/.ssh/id_rsa",
            "home/.bashrc",
            "record/bin/x",
            "pulumi/x",
        ];
        for file in files {
            fs::create_dir_all(path(file).parent().unwrap()).unwrap();
            fs::write(path(file), "variable \"secret_of_somebody_else\" {}").unwrap();
        }
        for engine in ["terraform", "tofu", "pulumi"] {
            let program = path("record/bin").join(engine);
            fs::write(&program, RECORDER.replace("RECORD", path("record").to_str().unwrap())).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut hub = ScriptedHub::start().await;
        let url = format!("http://{}", hub.address);
        let log = fs::File::create(path("log")).unwrap();
        let runner = Command::new(HAWSER)
            .arg("run")
            .current_dir(path("around"))
            .env("HOME", path("home"))
            .env("WorkingDirectory__WorkingDirectory", path("around/work"))
            .env("WorkingDirectory__TempDirectory", path("around/work/.temp"))
            .env("Engine__AdditionalBinaryPaths__0", path("record/bin"))
            .env("JobLogStream__PeriodSeconds", "1")
            .env("PULUMI_HOME", path("pulumi"))
            .env("NO_COLOR", "1")
            .envs(Identity::generate().runner_variables(&url, "i"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let peer = hub.connection().await;
        let repo = Repo::with(&[
            ("main.tf", "variable \"a\" {}"),
            ("Pulumi.yaml", "name: x"),
            ("sub/main.tf", ""),
            ("folder.tf/x", ""),
        ]);
        let untouched = BTreeMap::new();
        let mut stage = Self { dir, peer, runner, repo, untouched, _hub: hub };
        for method in ["GetModule", "Init", "Plan", "PlanDestroy"] {
            let answer = stage.ask(method, stage.payload(method)).await;
            assert!(answer.method.ends_with("Completed"), "{answer:?}");
        }
        stage.init_pulumi().await;
        stage.untouched = stage.snapshot();
        stage
    }

    /// What must not appear.
    pub(super) fn canary(&self) -> String {
        self.dir.path().join("around/CANARY").display().to_string()
    }

    pub(super) fn around(&self) -> PathBuf {
        self.dir.path().join("around")
    }

    pub(super) fn module(&self) -> PathBuf {
        self.around().join("work/stack/space/module")
    }

    fn record(&self) -> PathBuf {
        self.dir.path().join("record")
    }

    pub(super) fn forget_record(&self) {
        for name in ["args", "env", "stdin"] {
            let _ = fs::remove_file(self.record().join(name));
        }
    }

    /// The words that engines were given, in their order.
    pub(super) fn recorded(&self, what: &str) -> Vec<String> {
        let text = fs::read(self.record().join(what)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.split_terminator('\0').map(str::to_owned).collect()
    }

    /// A task of Pulumi needs an Init of Pulumi.
    pub(super) async fn init_pulumi(&mut self) {
        let mut init = self.payload("Init");
        init["engine"] = json!("pulumi");
        let answer = self.ask("Init", init).await;
        assert!(answer.method.ends_with("Completed"), "{answer:?}");
    }

    /// An apply or destroy needs a plan of its own job.
    pub(super) async fn plan_for(&mut self, method: &str, payload: &Value) {
        let plan = match method {
            "ApplyFromPlan" => "Plan",
            "DestroyFromPlan" => "PlanDestroy",
            _ => return,
        };
        let mut request = self.payload(plan);
        request["jobId"] = payload["jobId"].clone();
        let answer = self.ask(plan, request).await;
        assert!(!answer.is_fault(), "{answer:?}");
    }

    /// A request as a good server would make it.
    pub(super) fn payload(&self, method: &str) -> Value {
        let lists = json!({"terraformFlags": [{"task": 1, "flag": 3, "value": "5s"}],
            "terraformArrayFlags": [{"task": 1, "flag": 0, "value": "a.b"}],
            "pulumiFlags": [{"task": 1, "flag": 18, "value": "hello"}],
            "pulumiArrayFlags": [{"task": 1, "flag": 3, "value": "urn"}]});
        let guid = || json!(Uuid::new_v4());
        if method == "SourceRefresh" {
            return json!({"organizationId": guid(), "sourceUrl": self.repo.url(), "sourceRevision": "main",
                "sourceType": 0, "sourceRevisionType": 0});
        }
        let mut payload = json!({
            "jobId": guid(), "organizationId": guid(), "reportActiveJobFrequencySeconds": 60,
            "metadata": {"stackName": "stack", "namespaceName": "space", "moduleName": "module", "moduleId": guid(),
                "sourceSubdirectory": ""},
        });
        let mut add =
            |more: Value| payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if !matches!(method, "GetDefinitiveRevision" | "CancelGraceful" | "CancelKill") {
            add(json!({"engine": "terraform"}));
        }
        match method {
            "GetDefinitiveRevision" | "GetModule" => {
                add(json!({"sourceType": 0, "sourceRevisionType": 0, "sourceUrl": self.repo.url(),
                    "sourceRevision": "main", "sourceDefinitiveRevision": null, "sourceSemanticVersion": null}));
                if method == "GetModule" {
                    add(json!({"cleanInitEnabled": false, "extraFiles": [
                        {"fileName": "extra.tf", "contents": "# extra", "overwrite": false, "source": "x"}]}));
                }
            }
            "Init" => {
                let mut backend = json!({"ignoreNamespaceBackendConfigs": false,
                    "namespaceBackendConfigs": [{"name": "path", "value": "a", "id": "x"}],
                    "moduleBackendConfigs": [{"name": "workspace_dir", "value": "b", "id": "x"}]});
                backend.as_object_mut().unwrap().extend(lists.as_object().unwrap().clone());
                add(json!({"backendConfiguration": backend, "resolvedEnvVars": {"A": "b"}, "flags": {}}));
            }
            "Input" => add(json!({"extraFileNames": ["extra.tf"]})),
            "Plan" | "PlanDestroy" => {
                add(json!({"resolvedParameters": {"a": "\"b\""}}));
                add(lists);
            }
            "ApplyFromPlan" | "DestroyFromPlan" => add(lists),
            "Output" => {
                add(json!({"extraFileNames": ["extra.tf"]}));
                add(lists);
            }
            _ => {}
        }
        payload
    }

    pub(super) async fn push(&mut self, method: &str, payload: &Value) {
        self.peer.write_json(&json!({"type": 1, "target": method, "arguments": [payload]})).await;
    }

    /// Pushes a request and waits for its result.
    pub(super) async fn ask(&mut self, method: &str, payload: Value) -> Answer {
        self.push(method, &payload).await;
        let job = payload.get("jobId").cloned();
        self.result(|call| match &job {
            Some(job) => call.arguments.first() == Some(job),
            None => call.method.starts_with("SourceRefresh"),
        })
        .await
    }

    /// Sends a harmless request. When it is answered, all earlier pushes have been read.
    pub(super) async fn is_alive(&mut self) {
        let cancel = json!({"jobId": Uuid::new_v4()});
        self.ask("CancelKill", cancel).await;
    }

    async fn result(&mut self, is_it: impl Fn(&Answer) -> bool) -> Answer {
        loop {
            let message = self.peer.read_call().await;
            if let Some(id) = message.get("invocationId").and_then(Value::as_str) {
                self.peer.write_json(&json!({"type": 3, "invocationId": id, "result": null})).await;
            }
            let method = message["target"].as_str().unwrap_or_default().to_owned();
            let arguments = message["arguments"].as_array().cloned().unwrap_or_default();
            let call = Answer { method, arguments };
            let is_result =
                ["Completed", "Cancelled", "Faulted"].iter().any(|end| call.method.ends_with(end));
            if is_result && is_it(&call) {
                return call;
            }
        }
    }

    /// Says what has changed where nothing may; the next look begins from there.
    pub(super) fn damage(&mut self) -> Vec<String> {
        let now = self.snapshot();
        let differs = |path: &&PathBuf| now.get(*path) != self.untouched.get(*path);
        let paths: Vec<_> = now.keys().chain(self.untouched.keys()).filter(differs).cloned().collect();
        self.untouched = now;
        paths.iter().map(|path| path.display().to_string()).collect()
    }

    /// Everything but what is the runner's own and the module that the requests are for.
    fn snapshot(&self) -> BTreeMap<PathBuf, String> {
        let work = self.around().join("work");
        let own = [".hawser", ".temp", "sourcecache", "plugincache", "stack", "verbatim"];
        let own: Vec<_> = own.iter().map(|name| work.join(name)).collect();
        let mut found = BTreeMap::new();
        for root in ["around", "home"] {
            look(&self.dir.path().join(root), &own, &mut found);
        }
        // Beside the module, in the folders that are its own.
        for folder in ["stack", "stack/space"] {
            for entry in fs::read_dir(work.join(folder)).into_iter().flatten().flatten() {
                found.insert(entry.path(), String::new());
            }
        }
        found
    }
}

fn look(path: &Path, own: &[PathBuf], found: &mut BTreeMap<PathBuf, String>) {
    let about = path.symlink_metadata().unwrap();
    let mut text = format!("{:o}", about.mode());
    if about.is_file() {
        text.push_str(&String::from_utf8_lossy(&fs::read(path).unwrap()));
    }
    if about.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let entry = entry.unwrap().path();
            if !own.contains(&entry) {
                look(&entry, own, found);
            }
        }
    }
    found.insert(path.to_owned(), text);
}
