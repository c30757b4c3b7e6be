//! What faults.

use std::fs;
use std::os::unix::fs::symlink;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use serde_json::{Value, json};

use super::stage::Stage;
use crate::support::git::Repo;

/// A request with some of its members replaced, and what the fault must say.
struct Row {
    method: &'static str,
    members: Vec<(&'static str, Value)>,
    says: &'static str,
}

fn row(method: &'static str, at: &'static str, value: impl Into<Value>, says: &'static str) -> Row {
    Row { method, members: vec![(at, value.into())], says }
}

fn set(payload: &mut Value, at: &str, value: Value) {
    let (parent, name) = at.rsplit_once('/').unwrap();
    let parent = payload.pointer_mut(parent).unwrap();
    parent.as_object_mut().unwrap().insert(name.to_owned(), value);
}

/// Pushes each, and names every one that did not fault as it should or left something behind.
async fn all_refused(stage: &mut Stage, rows: Vec<Row>, at_least: usize) {
    assert!(rows.len() >= at_least, "{} rows", rows.len());
    let mut bad = Vec::new();
    for Row { method, members, says } in rows {
        let mut payload = stage.payload(method);
        let mut shown = format!("{members:?}");
        shown.truncate(shown.char_indices().nth(200).map_or(shown.len(), |(at, _)| at));
        for (at, value) in members {
            set(&mut payload, at, value);
        }
        stage.plan_for(method, &payload).await;
        stage.forget_record();
        let answer = stage.ask(method, payload).await;
        if !answer.is_fault() || !answer.text().contains(says) {
            bad.push(format!("{method} {shown} came to {} {}", answer.method, answer.text()));
        }
        let ran = stage.recorded("args");
        if !ran.is_empty() {
            bad.push(format!("{method} {shown} ran {ran:?}"));
        }
        let damage = stage.damage();
        if !damage.is_empty() {
            bad.push(format!("{method} {shown} touched {damage:?}"));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

#[tokio::test]
async fn names_that_lead_out_are_refused_by_every_task() {
    let mut stage = Stage::new().await;
    let long = "x".repeat(300);
    let mut rows = Vec::new();
    let nowhere =
        ["", " ", ".", "..", "../x", "a/b", "/etc", "/", "a\0b", "a\nb", "\u{1b}[2J", ".git", ".GIT", &long];
    for name in nowhere {
        rows.push(row("GetModule", "/metadata/stackName", name, "the stack name"));
    }
    for name in [".hawser", ".HAWSER", ".temp", "sourcecache", "SourceCache", "plugincache"] {
        rows.push(row("GetModule", "/metadata/stackName", name, "reserved for the runner"));
    }
    for name in ["..", ".", "", "../../neighbour", "/etc", "a\nb", ".git"] {
        rows.push(row("GetModule", "/metadata/namespaceName", name, "the namespace name"));
        rows.push(row("Plan", "/metadata/moduleName", name, "the module name"));
    }
    let subdirectories = [
        "..",
        "../..",
        "sub/../..",
        "/etc",
        "/",
        ".git",
        ".git/hooks",
        "sub/.GIT",
        ".snapcd",
        "a\0b",
        "a\nb",
    ];
    for path in subdirectories {
        rows.push(row("GetModule", "/metadata/sourceSubdirectory", path, "the source subdirectory"));
    }
    for path in ["missing", "--help", "-", "~", "$HOME", "sub/${IFS}", "%2e%2e", "main.tf"] {
        rows.push(row("GetModule", "/metadata/sourceSubdirectory", path, "the source has no folder"));
    }
    rows.push(row("GetModule", "/metadata/sourceSubdirectory", long.as_str(), "File name too long"));
    for method in
        ["Init", "Validate", "Input", "Plan", "PlanDestroy", "ApplyFromPlan", "DestroyFromPlan", "Output"]
    {
        rows.push(row(
            method,
            "/metadata/sourceSubdirectory",
            "../../../neighbour/space/module",
            "it contains `..`",
        ));
        rows.push(row(method, "/metadata/stackName", "..", "the stack name"));
    }
    for method in ["GetModule", "Init", "Output"] {
        rows.push(row(method, "/organizationId", "../../x", "organizationId"));
        rows.push(row(method, "/metadata/moduleId", "$(touch x)", "moduleId"));
    }
    for engine in ["../../bin/sh", "terraform; touch x", "/bin/sh", "terraform -chdir=/", "-c"] {
        rows.push(row("Init", "/engine", engine, "invalid engine name"));
    }
    all_refused(&mut stage, rows, 60).await;

    // Without a job there is no answer; the runner continues.
    for method in ["GetModule", "Init", "Output", "CancelGraceful", "CancelKill"] {
        let mut payload = stage.payload(method);
        payload["jobId"] = "../../../../CANARY".into();
        stage.push(method, &payload).await;
    }
    stage.is_alive().await;
    assert_eq!(stage.damage(), [""; 0]);
}

#[tokio::test]
async fn sources_that_git_would_execute_are_refused() {
    let mut stage = Stage::new().await;
    let canary = stage.canary();
    let touch = |text: &str| text.replace("CANARY", &canary);
    let urls = [
        "ext::sh -c touch% CANARY",
        "git::ext::sh -c touch% CANARY",
        "--upload-pack=touch CANARY",
        "-c core.sshCommand=touch CANARY",
        "-oProxyCommand=touch CANARY",
        "ssh://-oProxyCommand=touch CANARY/x",
        "ssh://git@-oProxyCommand=touch CANARY/x",
        "git@-oProxyCommand=touch:x",
        "fd::17",
        "transport-helper::x",
        "relative/path",
        "../repo",
        "./repo",
        "ftp://host/x",
        "https://host/a\nb",
        "$(touch CANARY)",
        "; touch CANARY",
        "",
        "javascript://x",
    ];
    let revisions = [
        "--upload-pack=touch CANARY",
        "-c",
        "--",
        "main; touch CANARY",
        "$(touch CANARY)x y",
        "main\ntouch CANARY",
        "../../heads/main",
        "refs/heads/*",
        "main..x",
        "@{-1}",
        "main:refs/heads/x",
        "main^{/x}",
        "^main",
        "a\0b",
    ];
    let mut rows = Vec::new();
    for method in ["GetDefinitiveRevision", "GetModule", "SourceRefresh"] {
        rows.extend(urls.map(|url| row(method, "/sourceUrl", touch(url), "the source URL")));
        rows.extend(revisions.map(|it| row(method, "/sourceRevision", touch(it), "the revision")));
    }
    for it in revisions {
        rows.push(row("GetModule", "/sourceDefinitiveRevision", touch(it), "the revision"));
    }
    for range in ["--upload-pack=x", "$(touch x)", "1.*; touch x", "*", "1.*\n2.*"] {
        let members = vec![("/sourceRevisionType", json!(1)), ("/sourceRevision", json!(range))];
        rows.push(Row { method: "GetDefinitiveRevision", members, says: "" });
    }
    for kind in 2..=7 {
        rows.push(row("GetModule", "/sourceType", kind, "not supported"));
    }
    let registry = |url: &str, revision: &str, says| {
        let members =
            vec![("/sourceType", json!(1)), ("/sourceUrl", json!(url)), ("/sourceRevision", json!(revision))];
        Row { method: "GetModule", members, says }
    };
    for url in ["file:///etc/passwd", "ext::sh -c x", "--x", "org/vpc/aws", "data:text/plain,x"] {
        rows.push(registry(url, "1.0.0", "the registry address"));
    }
    let file = stage.repo.url();
    let answers = [
        (format!("git::ext::sh -c touch% {canary}"), "remote helpers"),
        (format!("git::--upload-pack=touch {canary}"), "starts with a dash"),
        ("git::fd::17".to_owned(), "remote helpers"),
        ("git::ssh://-oProxyCommand=x/r".to_owned(), "its host starts with a dash"),
        (format!("git::{file}//../../etc?ref=main"), "the registry folder"),
        (format!("git::{file}//.git?ref=main"), "the registry folder"),
        (format!("git::{file}//sub/../..?ref=main"), "the registry folder"),
        (format!("git::{file}?ref=--upload-pack%3Dx"), "the revision"),
        (format!("git::{file}?ref=a%0Ab"), "the revision"),
        ("https://host/module.zip?archive=../../x".to_owned(), "not a Git repository"),
        ("s3::https://host/x".to_owned(), "not a Git repository"),
    ];
    let mut router = Router::new();
    for (number, (address, _)) in answers.iter().enumerate() {
        let address = address.clone();
        let answer = move || async move { (StatusCode::NO_CONTENT, [("X-Terraform-Get", address)]) };
        router = router.route(&format!("/m/{number}/download"), get(answer));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/m", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    for (number, (_, says)) in answers.iter().enumerate() {
        rows.push(registry(&url, &number.to_string(), says));
    }
    rows.push(registry(&url, "..", "the registry address"));
    rows.push(registry(&url, "0/../../x", "no module at"));
    all_refused(&mut stage, rows, 60).await;
}

#[tokio::test]
async fn a_symlink_that_leads_out_of_the_repository_is_refused_by_name() {
    let mut stage = Stage::new().await;
    let around = stage.around().display().to_string();
    let links: [(&str, &str); 18] = [
        ("link", "/etc"),
        ("link", "AROUND/secret.tf"),
        ("link", "../../../.."),
        ("link", "../module"),
        (".snapcd", "AROUND"),
        (".snapcd", "../../../../../home"),
        (".terraform", "AROUND/.terraform"),
        (".terraform", "../../../neighbour/space/module"),
        ("terraform.tfstate", "AROUND/terraform.tfstate"),
        ("terraform.tfstate", "../../../neighbour/space/module/terraform.tfstate"),
        (".terraform.lock.hcl", "/etc/passwd"),
        ("secret.tf", "AROUND/secret.tf"),
        ("secret.tf", "../../../neighbour/space/module/main.tf"),
        ("sub/deep", "../../x"),
        ("hidden", "sub/../../x"),
        ("config", ".git/config"),
        ("hooks", "sub/../.git/hooks"),
        ("dangling", "nothing/../../x"),
    ];
    let mut rows = Vec::new();
    let mut repos = Vec::new();
    for (link, target) in links {
        let repo = Repo::with(&[("main.tf", ""), ("sub/main.tf", "")]);
        symlink(target.replace("AROUND", &around), repo.path().join(link)).unwrap();
        repo.commit(&[]);
        rows.push(Row { method: "GetModule", members: vec![("/sourceUrl", json!(repo.url()))], says: link });
        repos.push(repo);
    }
    // The init directory itself, on the way and at its end.
    for subdirectory in ["init", "init/sub"] {
        let repo = Repo::with(&[("main.tf", "")]);
        symlink(&around, repo.path().join("init")).unwrap();
        repo.commit(&[]);
        let mut row = row("GetModule", "/sourceUrl", repo.url(), "init -> ");
        let mut metadata = stage.payload("GetModule")["metadata"].clone();
        metadata["sourceSubdirectory"] = subdirectory.into();
        row.members.push(("/metadata", metadata));
        rows.push(row);
        repos.push(repo);
    }
    all_refused(&mut stage, rows, 20).await;
    assert!(fs::read_to_string(stage.module().join("main.tf")).unwrap().contains("variable"));
}

#[tokio::test]
async fn inputs_that_reach_outside_the_module_are_refused() {
    let mut stage = Stage::new().await;
    let mut rows = Vec::new();
    let extra = |name: &str| json!([{"fileName": name, "contents": "evil", "overwrite": true, "source": ""}]);
    for name in [
        "../x.tf",
        "../../../../CANARY",
        "sub/../../x",
        "/etc/x.tf",
        "",
        ".",
        "sub/",
        "sub/.",
        ".git/hooks/post-checkout",
        ".git/config",
        "sub/.GIT/x",
        ".snapcd/snapcd.env",
        ".snapcd/init.sh",
        "a\nb.tf",
        "a\0b",
        "..",
    ] {
        rows.push(row("GetModule", "/extraFiles", extra(name), "the extra file name"));
    }
    rows.push(row("GetModule", "/extraFiles", extra("folder.tf"), "there is a folder with that name"));
    rows.push(row("GetModule", "/extraFiles", extra("main.tf/x"), "main.tf"));
    rows.push(row("GetModule", "/extraFiles", extra(&"x".repeat(300)), "File name too long"));

    let map =
        |name: &str, value: &str| Value::Object([(name.to_owned(), json!(value))].into_iter().collect());
    for name in ["A=B", "", "A\nB", "A\rB", "A\0B", "=", "LD_PRELOAD=/x"] {
        rows.push(row("Init", "/resolvedEnvVars", map(name, "x"), "the environment variable"));
    }
    rows.push(row("Init", "/resolvedEnvVars", map("A", "a\0b"), "the environment variable"));
    let flag = |number: u8, value: &str| json!([{"task": 1, "flag": number, "value": value}]);
    // While there still is a plan: one that is refused leaves none.
    for method in ["ApplyFromPlan", "DestroyFromPlan", "Output", "Plan", "PlanDestroy"] {
        rows.push(row(method, "/terraformArrayFlags", flag(0, "a\0b"), "NUL"));
    }
    for name in ["a=1\nb", "a=1 #", "a b", "-a", "", "a\n", "a.b", "\"a\"", "a[0]", "1a", "$(touch x)", "/*"]
    {
        rows.push(row("Plan", "/resolvedParameters", map(name, "1"), "not the name of a variable"));
    }
    for value in ["1\nadmin = true", "\"x\"\nadmin=true", "{}\nb {}", "1\r\nb=2"] {
        rows.push(row("Plan", "/resolvedParameters", map("a", value), "the parameter \"a\""));
        rows.push(row("PlanDestroy", "/resolvedParameters", map("a", value), "the parameter \"a\""));
    }
    for value in ["\"open", "<<EOT\nx", "[1", "1 /*", ""] {
        rows.push(row("Plan", "/resolvedParameters", map("a", value), "not HCL"));
    }

    for file in ["../x.tf", "/etc/x.tf", "sub/../../x.tf", ".git/config", ""] {
        rows.push(row("Plan", "/terraformFlags", flag(18, file), "GenerateConfigOut"));
        rows.push(Row {
            method: "Plan",
            members: vec![("/engine", json!("pulumi")), ("/pulumiFlags", flag(33, file))],
            says: "ImportFile",
        });
    }
    // Without a value, the next argument would be taken for it, and its value would stand alone.
    let no_value = |number: usize| json!([{"task": 1, "flag": number, "value": null}]);
    let plan = |engine: &str, members: [(&'static str, Value); 2], says| {
        let members = [("/engine", json!(engine))].into_iter().chain(members).collect();
        Row { method: "Plan", members, says }
    };
    for (number, says) in
        [(1, "FromModule"), (3, "LockTimeout"), (14, "Parallelism"), (18, "GenerateConfigOut")]
    {
        let members =
            [("/terraformFlags", no_value(number)), ("/terraformArrayFlags", flag(0, "/../../../../x.tf"))];
        rows.push(plan("terraform", members, says));
    }
    for (number, says) in [(13, "ConfigFile"), (18, "Message"), (33, "ImportFile"), (40, "Color")] {
        let members = [("/pulumiFlags", no_value(number)), ("/pulumiArrayFlags", flag(3, "https://evil/x"))];
        rows.push(plan("pulumi", members, says));
    }
    for (number, says) in ["Target", "Replace", "Exclude", "Var", "BackendConfig"].into_iter().enumerate() {
        rows.push(row("Plan", "/terraformArrayFlags", no_value(number), says));
        let flags = json!({"terraformArrayFlags": no_value(number)});
        rows.push(row("Init", "/backendConfiguration", flags, says));
    }
    for (number, says) in
        ["PolicyPack", "PolicyPackConfig", "AttachDebugger", "Target"].into_iter().enumerate()
    {
        rows.push(plan(
            "pulumi",
            [("/pulumiFlags", json!([])), ("/pulumiArrayFlags", no_value(number))],
            says,
        ));
    }
    for (engine, list, number, says) in [
        ("terraform", "terraformFlags", 1, "FromModule"),
        ("tofu", "terraformFlags", 4, "Lockfile"),
        ("pulumi", "pulumiFlags", 3, "DefaultOrg"),
        ("pulumi", "pulumiFlags", 40, "Color"),
    ] {
        let flags = Value::Object([(list.to_owned(), no_value(number))].into_iter().collect());
        let members = vec![("/engine", json!(engine)), ("/backendConfiguration", flags)];
        rows.push(Row { method: "Init", members, says });
    }
    for address in ["git::https://me:pw-of-mine@host/r", "https://token-of-mine@host/r.git"] {
        let flags = json!({"terraformFlags": flag(1, address)});
        rows.push(row("Init", "/backendConfiguration", flags, "contains a user or password"));
    }
    for name in ["--cwd=/", "-C/", "--help", "-"] {
        for (number, says) in [(10, "StackName"), (0, "CloudUrl")] {
            let mut init = row("Init", "/engine", "pulumi", says);
            init.members.push(("/backendConfiguration", json!({"pulumiFlags": flag(number, name)})));
            rows.push(init);
        }
    }
    for (method, hook) in
        [("Init", "/initBeforeHook"), ("Plan", "/planAfterHook"), ("Output", "/outputBeforeHook")]
    {
        rows.push(row(method, hook, "echo a\0b", "NUL"));
    }
    rows.push(row(
        "Init",
        "/backendConfiguration",
        json!({"moduleBackendConfigs": [{"name": "a\0", "value": "b"}]}),
        "NUL",
    ));
    all_refused(&mut stage, rows, 60).await;
}

/// Git settings can name programs, and code in a module can write them to its checkout.
#[tokio::test]
async fn git_settings_of_a_hook_in_the_checkout_run_nothing() {
    let mut stage = Stage::new().await;
    let canary = stage.canary();
    stage.repo.commit(&[(".gitattributes", "* filter=evil\n")]);
    let evil = format!("git config --file FILE filter.evil.clean \"touch '{canary}'; cat\"");
    let cases = [
        evil.replace("FILE", ".git/config"),
        format!("git config --file .git/config filter.evil.process \"touch '{canary}'\""),
        format!(
            "git config --file .git/config extensions.worktreeConfig true; {}",
            evil.replace("FILE", ".git/config.worktree")
        ),
        // Another repository's settings.
        format!("cp -r .git other; {}; echo ../other >.git/commondir", evil.replace("FILE", "other/config")),
        format!("echo '[include] path = ../evil' >>.git/config; {}", evil.replace("FILE", "evil")),
        // A missing object, and where to get it from.
        format!(
            "rm -rf .git/objects; mkdir .git/objects; git config --file .git/config core.repositoryFormatVersion 1; \
             git config --file .git/config extensions.partialClone origin; \
             git config --file .git/config remote.origin.url ssh://h/x; ln -sf sub main.tf; \
             git config --file .git/config core.sshCommand \"touch '{canary}'\""
        ),
        // A symlink to another folder in its place.
        format!("mv .git real; {}; ln -s real .git", evil.replace("FILE", "real/config")),
    ];
    for (number, hook) in cases.into_iter().enumerate() {
        let mut module = stage.payload("GetModule");
        module["cleanInitEnabled"] = true.into();
        for (method, payload) in [("GetModule", module), ("Init", stage.payload("Init"))] {
            let answer = stage.ask(method, payload).await;
            assert!(!answer.is_fault(), "before {hook}: {answer:?}");
        }
        let mut validate = stage.payload("Validate");
        // Whatever git has noted of these files, it has to look at them again.
        validate["validateAfterHook"] = format!("{hook}; find . -name '*.tf' -exec touch {{}} +").into();
        let answer = stage.ask("Validate", validate).await;
        assert_eq!(answer.method, "ValidateCompleted", "{hook}: {answer:?}");
        stage.repo.commit(&[("number.tf", &format!("# {number}\n"))]);
        let answer = stage.ask("GetModule", stage.payload("GetModule")).await;
        assert_eq!(answer.method, "GetModuleCompleted", "{hook}: {answer:?}");
        assert_eq!(stage.damage(), [""; 0], "{hook}");
        assert!(stage.module().join("number.tf").exists(), "{hook}");
    }
}

/// A hook may leave links behind, and the runner must not follow them afterwards.
#[tokio::test]
async fn symlinks_and_pipes_of_hooks_are_not_opened() {
    let mut stage = Stage::new().await;
    let around = format!("'{}'", stage.around().display());
    let cases = [
        ("mkdir OUT 2>/dev/null; mv .snapcd real; ln -s AROUND .snapcd", "Plan", "must be a folder"),
        ("mv .snapcd real; ln -s ../../.. .snapcd", "Output", "must be a folder"),
        ("ln -sf AROUND/secret.tf .snapcd/snapcd.env", "Plan", "snapcd.env"),
        ("rm .snapcd/snapcd.env; mkfifo .snapcd/snapcd.env", "Plan", "not a regular file"),
        ("ln -sf AROUND/secret.tf secret.tf", "Input", "secret.tf"),
        ("rm .snapcd/plan.out; ln -s AROUND/secret.tf .snapcd/plan.out", "ApplyFromPlan", "plan.out"),
        ("rm .snapcd/plan.out; mkfifo .snapcd/plan.out", "ApplyFromPlan", "plan.out"),
    ];
    for (hook, method, says) in cases {
        let hook = hook.replace("AROUND", &around).replace("mkdir OUT 2>/dev/null; ", "");
        let payload = stage.payload(method);
        stage.plan_for(method, &payload).await;
        let mut validate = stage.payload("Validate");
        validate["validateAfterHook"] = hook.clone().into();
        let answer = stage.ask("Validate", validate).await;
        assert_eq!(answer.method, "ValidateCompleted", "{hook}: {answer:?}");
        let answer = stage.ask(method, payload).await;
        assert!(answer.is_fault() && answer.text().contains(says), "{hook}: {answer:?}");
        assert!(!answer.text().contains("secret_of_somebody_else"), "{answer:?}");
        assert_eq!(stage.damage(), [""; 0], "{hook}");
        // Clean again, with everything that the next case needs.
        let mut module = stage.payload("GetModule");
        module["cleanInitEnabled"] = true.into();
        for (method, payload) in
            [("GetModule", module), ("Init", stage.payload("Init")), ("Plan", stage.payload("Plan"))]
        {
            let answer = stage.ask(method, payload).await;
            assert!(!answer.is_fault(), "after {hook}: {answer:?}");
        }
    }

    // What an engine prints is read from the step's file, which its script might have swapped, and not from the module's.
    for (hook, place, is_fault) in [
        ("rm PLACE/output.json; mkfifo PLACE/output.json", "\"${0%/*}\"", true),
        ("ln -sf AROUND/secret.tf PLACE/output.json", "\"${0%/*}\"", true),
        ("rm PLACE/output.json; mkfifo PLACE/output.json", ".snapcd", false),
        ("ln -sf AROUND/secret.tf PLACE/output.json", ".snapcd", false),
    ] {
        let mut payload = stage.payload("Output");
        let hook = hook.replace("AROUND", &around).replace("PLACE", place);
        payload["outputAfterHook"] = hook.clone().into();
        let answer = stage.ask("Output", payload).await;
        assert_eq!(answer.is_fault(), is_fault, "{hook}: {answer:?}");
        assert!(!is_fault || answer.text().contains("output.json"), "{hook}: {answer:?}");
        assert!(!answer.text().contains("secret_of_somebody_else"), "{answer:?}");
        assert_eq!(stage.damage(), [""; 0], "{hook}");
    }
}
