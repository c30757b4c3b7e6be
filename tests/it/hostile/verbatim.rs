//! What is legal data, however it looks: it arrives as it is and nothing in it is carried out.

use std::fs;

use serde_json::{Value, json};

use super::stage::{Answer, Stage};

/// Where a value is to be found afterwards.
enum Found {
    /// Among the words of an engine, whole.
    Word(String),
    /// As several words, one after the other.
    Words(Vec<String>),
    /// In the environment of an engine.
    Variable(&'static str, String),
    /// In no environment of an engine.
    NoVariable(&'static str),
    /// What was given to an engine on its stdin.
    Input(String),
    /// In a file below the working directory.
    File(String, String),
    /// In the answer.
    Says(String),
}

struct Row {
    method: &'static str,
    members: Vec<(String, Value)>,
    found: Vec<Found>,
}

fn members(members: &[(&str, Value)]) -> Vec<(String, Value)> {
    members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

fn row(method: &'static str, name: &str, value: impl Into<Value>, found: Found) -> Row {
    Row { method, members: members(&[(name, value.into())]), found: vec![found] }
}

fn check(stage: &Stage, found: &Found, answer: &Answer) -> bool {
    match found {
        Found::Word(word) => stage.recorded("args").contains(word),
        Found::Words(words) => stage.recorded("args").windows(words.len()).any(|it| it == words),
        Found::Variable(name, value) => stage.recorded("env").contains(&format!("{name}={value}")),
        Found::NoVariable(name) => {
            let there = stage.recorded("env");
            !there.is_empty() && !there.iter().any(|it| it.starts_with(&format!("{name}=")))
        }
        Found::Input(text) => stage.recorded("stdin").concat().trim_end_matches('\n') == text,
        Found::File(path, text) => {
            fs::read_to_string(stage.around().join("work").join(path)).is_ok_and(|there| there == *text)
        }
        Found::Says(text) => answer.text().contains(text),
    }
}

#[tokio::test]
async fn data_that_looks_like_code_is_not_executed() {
    let mut stage = Stage::new().await;
    let canary = stage.canary();
    let code = [
        format!("$(touch {canary})"),
        format!("`touch {canary}`"),
        format!("; touch {canary}"),
        format!("' ; touch {canary} ; '"),
        format!("\" && touch {canary} && \""),
        format!("x\ntouch {canary}\n"),
        format!("${{IFS}}|touch${{IFS}}{canary}"),
        "--help -h --version".to_owned(),
        "\\'$'\\x41'!! %s ~ * {a,b} é∕".to_owned(),
    ];
    let flag = |number: u8, value: &str| json!([{"task": 1, "flag": number, "value": value}]);
    let map =
        |name: &str, value: &str| Value::Object([(name.to_owned(), json!(value))].into_iter().collect());
    let private = "stack/space/module/.snapcd";
    let mut rows = Vec::new();
    for code in &code {
        let word = |name: &str| Found::Word(format!("{name}{code}"));
        let value = serde_json::to_string(code).unwrap().replace("${", "$${").replace("%{", "%%{");
        rows.push(Row {
            method: "Plan",
            members: members(&[
                ("terraformFlags", flag(3, code)),
                ("terraformArrayFlags", flag(0, code)),
                ("resolvedParameters", map("a", &value)),
            ]),
            found: vec![
                word("-lock-timeout="),
                word("-target="),
                Found::File(format!("{private}/inputs.tfvars"), format!("a={value}\n")),
            ],
        });
        rows.push(row("PlanDestroy", "terraformArrayFlags", flag(1, code), word("-replace=")));
        // In no argument list: values of variables may be secret.
        let quoted = format!("   '-var={}'", code.replace('\'', "'\\''"));
        let hidden = Found::Variable("TF_CLI_ARGS_apply", quoted);
        rows.push(row("ApplyFromPlan", "terraformArrayFlags", flag(3, code), hidden));
        rows.push(row("DestroyFromPlan", "terraformFlags", flag(14, code), word("-parallelism=")));
        rows.push(row("Output", "terraformFlags", flag(20, code), word("-raw=")));
        let extra = json!([{"fileName": "x.txt", "contents": code, "overwrite": false, "source": code}]);
        let file = Found::File("stack/space/module/x.txt".to_owned(), code.clone());
        rows.push(row("GetModule", "extraFiles", extra, file));
        // A dollar sign would be a variable there, which is for others to test.
        let setting = code.replace('$', "%");
        let backend = json!({"moduleBackendConfigs": [{"name": "path", "value": setting}]});
        let quoted = format!("   '-backend-config=path={}'", setting.replace('\'', "'\\''"));
        rows.push(Row {
            method: "Init",
            members: members(&[("resolvedEnvVars", map("A", code)), ("backendConfiguration", backend)]),
            found: vec![Found::Variable("A", code.clone()), Found::Variable("TF_CLI_ARGS_init", quoted)],
        });
        // Pulumi would read the argument after a switch as a separate one.
        let flags = json!([{"task": 1, "flag": 18, "value": code}, {"task": 1, "flag": 15, "value": code}]);
        rows.push(Row {
            method: "Plan",
            members: members(&[
                ("engine", json!("pulumi")),
                ("pulumiFlags", flags),
                ("pulumiArrayFlags", flag(3, code)),
                ("resolvedParameters", map(code, &value)),
            ]),
            found: vec![
                Found::Words(vec!["--message".to_owned(), code.clone()]),
                word("--diff="),
                Found::Words(vec!["--target".to_owned(), code.clone()]),
                Found::Words(vec!["--".to_owned(), code.clone()]),
                Found::Input(code.trim_end_matches('\n').to_owned()),
            ],
        });
    }
    for name in ["BASH_ENV", "SHELLOPTS", "PS4", "BASHOPTS"] {
        let value = format!("$(touch {canary})");
        rows.push(row("Init", "resolvedEnvVars", map(name, &value), Found::NoVariable(name)));
    }
    for name in
        ["GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "ENV", "PROMPT_COMMAND", "IFS_", "EDITOR", "POSIXLY_CORRECT"]
    {
        let value = format!("touch {canary}");
        rows.push(row("Init", "resolvedEnvVars", map(name, &value), Found::Variable(name, value.clone())));
    }
    // Names that stay one folder.
    for name in [
        "-rf",
        "--help",
        "$(touch x)",
        "`touch x`",
        "a;b",
        "'",
        "\"",
        "a b",
        "...",
        "dots..",
        "∕etc",
        "..∕x",
        "%2e%2e",
        "~",
        "stack",
    ] {
        let found = Found::File(format!("verbatim/{name}/{name}/x.txt"), name.to_owned());
        let extra = json!([{"fileName": "x.txt", "contents": name, "overwrite": false, "source": ""}]);
        let mut row = row("GetModule", "extraFiles", extra, found);
        let metadata = json!({"stackName": "verbatim", "namespaceName": name, "moduleName": name,
            "moduleId": uuid::Uuid::nil(), "sourceSubdirectory": ""});
        row.members.push(("metadata".to_owned(), metadata));
        rows.push(row);
    }
    for name in
        ["-rf.tf", "$(touch x).tf", "`x`.tf", "a;b.tf", "--help", "'.tf", "dir/--x/y.tf", "..x/y", "a\\b"]
    {
        let extra = json!([{"fileName": name, "contents": name, "overwrite": false, "source": ""}]);
        let file = Found::File(format!("stack/space/module/{name}"), name.to_owned());
        rows.push(row("GetModule", "extraFiles", extra, file));
    }
    // Names of extra files are only compared, so that nothing is read by them.
    let names = json!(["../../../../secret.tf", "/etc/passwd", "$(touch x)", "a\0b", "x\ny"]);
    rows.push(row("Input", "extraFileNames", names.clone(), Found::Says("\"name\":\"a\"".to_owned())));
    rows.push(row("Output", "extraFileNames", names, Found::Word("output".to_owned())));
    // git allows nearly everything in the name of a branch.
    let branch = "x;touch${IFS}CANARY`touch`$(touch)'\"&|<>";
    stage.repo.git(&["branch", branch]);
    rows.push(row("GetDefinitiveRevision", "sourceRevision", branch, Found::Says(stage.repo.head())));
    rows.push(row(
        "GetModule",
        "sourceSemanticVersion",
        format!("$(touch {canary})"),
        Found::Says(String::new()),
    ));

    let mut bad = Vec::new();
    let values: usize = rows.iter().map(|row| row.found.len()).sum();
    assert!(rows.len() > 100 && values > 150, "{} rows with {values} values", rows.len());
    for Row { method, members, found } in rows {
        let mut payload = stage.payload(method);
        for (at, value) in &members {
            payload.as_object_mut().unwrap().insert(at.clone(), value.clone());
        }
        if payload["engine"] == "pulumi" {
            stage.init_pulumi().await;
        }
        stage.plan_for(method, &payload).await;
        stage.forget_record();
        let answer = stage.ask(method, payload).await;
        if answer.is_fault() || !found.iter().all(|found| check(&stage, found, &answer)) {
            bad.push(format!("{method} {members:?} came to {answer:?}, {:?}", stage.recorded("args")));
        }
        let damage = stage.damage();
        if !damage.is_empty() {
            bad.push(format!("{method} {members:?} touched {damage:?}"));
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}
