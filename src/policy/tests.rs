//! Every rule as a table: the settings, the request, and the rule that refuses the request.

use crate::settings::patterns::{BackendPattern, FilePattern, FlagName, ModulePattern, VariablePattern};
use hawser_contract::Push;

use crate::engines::Engines;
use serde_json::{Value, json};
use uuid::Uuid;

use super::*;

fn settings(policy: &Value) -> Settings {
    let settings = json!({
        "Runner": {
            "Id": Uuid::from_u128(1), "OrganizationId": Uuid::from_u128(2), "Instance": "test",
            "Credentials": {"ClientId": "id", "ClientSecret": "hush"},
        },
        "Server": {"Url": "http://localhost:1/"},
        "Policy": policy,
    });
    serde_json::from_value(settings).unwrap()
}

fn policy(policy: &Value) -> Policy {
    Policy::new(&settings(policy))
}

/// A push of `method` for the module `prod/net/vpc`, with these additional members.
fn request(method: &str, own: &Value) -> Request {
    let mut payload = json!({
        "jobId": Uuid::from_u128(3), "organizationId": Uuid::from_u128(2),
        "metadata": {
            "stackName": "prod", "namespaceName": "net", "moduleName": "vpc", "moduleId": Uuid::from_u128(4),
        },
    });
    for (name, value) in own.as_object().unwrap() {
        payload[name] = value.clone();
    }
    match Push::read(method, &[payload]).unwrap() {
        Push::Task(request) => *request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn malformed_patterns_are_rejected() {
    for pattern in ["prod/net", "prod", "prod/net/vpc/x", "/net/vpc", "prod//vpc", "*"] {
        pattern.parse::<ModulePattern>().unwrap_err();
    }
    for pattern in ["", " ", "=x", "="] {
        pattern.parse::<BackendPattern>().unwrap_err();
    }
    for pattern in ["", "..", "../a", "/etc/*", "conf/", "a/../b", "."] {
        pattern.parse::<FilePattern>().unwrap_err();
    }
    for pattern in ["", " ", "A=b"] {
        pattern.parse::<VariablePattern>().unwrap_err();
    }
    assert!("Paralelism".parse::<FlagName>().unwrap_err().ends_with("did you mean Parallelism?"));
    for name in ["terraform:Var", "-target", "backend-config", ""] {
        name.parse::<FlagName>().unwrap_err();
    }
    for name in ["var", " TARGET ", "SkipPreview", "PolicyPack"] {
        name.parse::<FlagName>().unwrap();
    }
}

/// Settings, method, members, and the expected refusal: its rule and the refused part.
type Row<'a> = (Value, &'a str, Value, Option<(&'a str, String)>);

#[test]
fn each_rule_refuses_its_own_case_and_nothing_else() {
    let git = json!({"sourceType": 0, "sourceRevisionType": 0, "sourceUrl": "https://github.com/my-org/x"});
    let tf = |flags: Value| json!({"engine": "terraform", "terraformFlags": flags});
    let arrays = |flags: Value| json!({"engine": "tofu", "terraformArrayFlags": flags});
    let pulumi = |flags: Value| json!({"engine": "pulumi", "pulumiFlags": flags});
    let init =
        |flags: Value| json!({"engine": "terraform", "backendConfiguration": {"terraformFlags": flags}});
    let env = |name: &str| json!({"engine": "terraform", "resolvedEnvVars": {name: "x"}});
    let files = |names: &[&str]| {
        let all: Vec<Value> = names.iter().map(|name| json!({"fileName": name, "contents": "x"})).collect();
        let mut own = git.clone();
        own["extraFiles"] = all.into();
        own
    };
    let extra_file = |name: &str| Some(("Policy.AllowedExtraFiles", format!("the extra file {name:?}")));
    let variable =
        |name: &str| Some(("Policy.AllowedVariables", format!("the environment variable {name:?}")));
    let backend = |name: &str, value: &str| {
        let settings = json!([{"name": name, "value": value}]);
        json!({"engine": "terraform", "backendConfiguration": {"moduleBackendConfigs": settings}})
    };
    let backend_flag = |value: &str| {
        let flags = json!([{"flag": "BackendConfig", "value": value}]);
        json!({"engine": "terraform", "backendConfiguration": {"terraformArrayFlags": flags}})
    };
    let login = |url: &str| {
        let flags = json!([{"flag": "CloudUrl", "value": url}]);
        json!({"engine": "pulumi", "backendConfiguration": {"pulumiFlags": flags}})
    };
    let local =
        json!({"engine": "pulumi", "backendConfiguration": {"pulumiFlags": [{"flag": "LoginLocal"}]}});
    let settings = |patterns: &[&str]| json!({"AllowedBackendSettings": patterns});
    let setting =
        |name: &str| Some(("Policy.AllowedBackendSettings", format!("the backend setting {name:?}")));
    let file = |name: &str| {
        Some(("Policy.AllowedBackendSettings", format!("the file {name:?} of backend settings")))
    };
    let only = |task: &str| format!("the task {task}");
    let rows: Vec<Row<'_>> = vec![
        // Engines.
        (json!({}), "Plan", json!({"engine": "pulumi"}), None),
        (json!({"AllowedEngines": ["terraform"]}), "Plan", json!({"engine": "Terraform"}), None),
        (
            json!({"AllowedEngines": ["terraform"]}),
            "Plan",
            json!({"engine": "pulumi"}),
            Some(("Policy.AllowedEngines", "the engine pulumi".into())),
        ),
        (
            json!({"AllowedEngines": ["terraform"]}),
            "GetModule",
            git.clone(),
            Some(("Policy.AllowedEngines", "the engine tofu".into())),
        ),
        (
            json!({"AllowedEngines": []}),
            "Input",
            json!({"engine": "tofu"}),
            Some(("Policy.AllowedEngines", "the engine tofu".into())),
        ),
        (json!({"AllowedEngines": []}), "GetDefinitiveRevision", git.clone(), None),
        // Modules.
        (json!({"AllowedModules": ["prod/net/vpc"]}), "Validate", json!({}), None),
        (json!({"AllowedModules": ["dev/*/*", "prod/*/v*"]}), "Validate", json!({}), None),
        (
            json!({"AllowedModules": ["prod/*/db"]}),
            "Validate",
            json!({}),
            Some(("Policy.AllowedModules", "the module prod/net/vpc".into())),
        ),
        (
            json!({"AllowedModules": ["Prod/net/vpc"]}),
            "Validate",
            json!({}),
            Some(("Policy.AllowedModules", "the module prod/net/vpc".into())),
        ),
        (
            json!({"AllowedModules": ["prod/*/*"]}),
            "Validate",
            json!({"metadata": {"stackName": "prod", "namespaceName": "a/b", "moduleName": "c", "moduleId": Uuid::nil()}}),
            Some(("Policy.AllowedModules", "the module prod/a/b/c".into())),
        ),
        (
            json!({"AllowedModules": []}),
            "GetDefinitiveRevision",
            git.clone(),
            Some(("Policy.AllowedModules", "the module prod/net/vpc".into())),
        ),
        // Flags.
        (json!({"AllowedFlags": ["parallelism"]}), "Plan", tf(json!([{"flag": 14, "value": "4"}])), None),
        (
            json!({"AllowedFlags": ["Parallelism"]}),
            "Plan",
            tf(json!([{"flag": 14}, {"flag": "refreshONLY"}])),
            Some(("Policy.AllowedFlags", "the flag RefreshOnly of Plan".into())),
        ),
        (
            json!({"AllowedFlags": []}),
            "ApplyFromPlan",
            arrays(json!([{"flag": 0, "value": "a.b"}])),
            Some(("Policy.AllowedFlags", "the flag Target of ApplyFromPlan".into())),
        ),
        (json!({"AllowedFlags": ["Target"]}), "Output", arrays(json!([{"flag": 0, "value": "a.b"}])), None),
        // Lists for another engine and unknown flags do not reach the command line.
        (json!({"AllowedFlags": []}), "Plan", json!({"engine": "tofu", "pulumiFlags": [{"flag": 14}]}), None),
        (json!({"AllowedFlags": []}), "Plan", tf(json!([{"flag": 999}])), None),
        (
            json!({"AllowedFlags": ["Debug"]}),
            "PlanDestroy",
            json!({"engine": "pulumi", "pulumiFlags": [{"flag": 14}], "pulumiArrayFlags": [{"flag": 7, "value": "a"}]}),
            Some(("Policy.AllowedFlags", "the flag Config of PlanDestroy".into())),
        ),
        (
            json!({"AllowedFlags": ["Diff"]}),
            "PlanDestroy",
            pulumi(json!([{"flag": 15, "value": "--preview-only=false"}])),
            Some(("Policy.AllowedFlags", "the flag Diff of PlanDestroy".into())),
        ),
        (
            json!({"AllowedFlags": ["Upgrade"]}),
            "Init",
            init(json!([{"flag": "Lockfile", "value": "readonly"}])),
            Some(("Policy.AllowedFlags", "the flag Lockfile of Init".into())),
        ),
        (
            json!({"AllowedFlags": ["Upgrade"]}),
            "Init",
            json!({"engine": "tofu", "flags": {"autoUpgradeEnabled": true}}),
            None,
        ),
        (
            json!({"AllowedFlags": ["Upgrade"]}),
            "Init",
            json!({"engine": "tofu", "flags": {"autoReconfigureEnabled": true}}),
            Some(("Policy.AllowedFlags", "the flag Reconfigure of Init".into())),
        ),
        (
            json!({"AllowedFlags": ["Upgrade"]}),
            "Init",
            json!({"engine": "tofu", "flags": {"autoMigrateEnabled": true}}),
            Some(("Policy.AllowedFlags", "the flag MigrateState of Init".into())),
        ),
        // Arguments that arrive in other ways.
        (json!({}), "Init", env("TF_CLI_ARGS"), None),
        (json!({"AllowedFlags": []}), "Init", env("TF_LOG"), None),
        (
            json!({"AllowedFlags": ["Var"]}),
            "Init",
            env("TF_CLI_ARGS_plan"),
            Some(("Policy.AllowedFlags", r#"the environment variable "TF_CLI_ARGS_plan""#.into())),
        ),
        (
            json!({"PlanOnly": true}),
            "Init",
            env("TF_CLI_ARGS"),
            Some(("Policy.PlanOnly", r#"the environment variable "TF_CLI_ARGS""#.into())),
        ),
        (
            json!({"AllowedSources": ["https://h/*"]}),
            "Init",
            env("TF_CLI_ARGS_init"),
            Some(("Policy.AllowedSources", r#"the environment variable "TF_CLI_ARGS_init""#.into())),
        ),
        (
            json!({"AllowedSources": ["https://h/*"]}),
            "Init",
            init(json!([{"flag": "FromModule", "value": "git::https://evil.example/x"}])),
            Some(("Policy.AllowedSources", "the flag FromModule of Init".into())),
        ),
        // A request cannot change the settings.
        (
            json!({"PlanOnly": true}),
            "ApplyFromPlan",
            json!({"engine": "tofu", "Policy": {"PlanOnly": false}, "policy": {"planOnly": false}}),
            Some(("Policy.PlanOnly", only("ApplyFromPlan"))),
        ),
        // Plan only.
        (json!({"PlanOnly": true}), "Plan", json!({}), None),
        (json!({"PlanOnly": true}), "PlanDestroy", json!({}), None),
        (json!({"PlanOnly": true}), "Output", json!({}), None),
        (
            json!({"PlanOnly": true}),
            "Init",
            init(json!([{"flag": "Upgrade"}, {"flag": "Reconfigure"}])),
            None,
        ),
        (
            json!({"PlanOnly": true}),
            "DestroyFromPlan",
            json!({"engine": "pulumi"}),
            Some(("Policy.PlanOnly", only("DestroyFromPlan"))),
        ),
        (
            json!({"PlanOnly": true}),
            "Init",
            init(json!([{"flag": "MigrateState"}])),
            Some(("Policy.PlanOnly", "the flag MigrateState of Init".into())),
        ),
        (
            json!({"PlanOnly": true}),
            "Init",
            init(json!([{"flag": "forcecopy", "value": "true"}])),
            Some(("Policy.PlanOnly", "the flag ForceCopy of Init".into())),
        ),
        (
            json!({"PlanOnly": true}),
            "Init",
            json!({"engine": "terraform", "flags": {"autoMigrateEnabled": true}}),
            Some(("Policy.PlanOnly", "the flag MigrateState of Init".into())),
        ),
        (
            json!({"PlanOnly": true}),
            "PlanDestroy",
            pulumi(json!([{"flag": "SkipPreview"}])),
            Some(("Policy.PlanOnly", "the flag SkipPreview of PlanDestroy".into())),
        ),
        (
            json!({"PlanOnly": true}),
            "PlanDestroy",
            pulumi(json!([{"flag": "Diff", "value": "--preview-only=false"}])),
            Some(("Policy.PlanOnly", "the flag Diff of PlanDestroy".into())),
        ),
        // Extra files.
        (json!({}), "GetModule", files(&["a.tf", "x/b.tf"]), None),
        (json!({"AllowedExtraFiles": []}), "GetModule", files(&[]), None),
        (json!({"AllowedExtraFiles": []}), "GetModule", files(&["a"]), extra_file("a")),
        (
            json!({"AllowedExtraFiles": ["*.tfvars", "conf/*"]}),
            "GetModule",
            files(&["a.tfvars", "conf/b"]),
            None,
        ),
        (
            json!({"AllowedExtraFiles": ["*.tfvars"]}),
            "GetModule",
            files(&["a.tfvars", "b.tf"]),
            extra_file("b.tf"),
        ),
        (json!({"AllowedExtraFiles": ["*"]}), "GetModule", files(&["sub/a.tf"]), extra_file("sub/a.tf")),
        (json!({"AllowedExtraFiles": ["*/*"]}), "GetModule", files(&["a.tf"]), extra_file("a.tf")),
        (json!({"AllowedExtraFiles": ["conf/*"]}), "GetModule", files(&["./conf//a"]), None),
        (
            json!({"AllowedExtraFiles": ["conf/*"]}),
            "GetModule",
            files(&["conf/../a"]),
            extra_file("conf/../a"),
        ),
        (json!({"AllowedExtraFiles": ["*", "*/*"]}), "GetModule", files(&["/a"]), extra_file("/a")),
        (json!({"AllowedExtraFiles": ["a.tf"]}), "GetModule", files(&["A.tf"]), extra_file("A.tf")),
        // Variables.
        (json!({"AllowedVariables": ["AWS_*", "X"]}), "Init", env("AWS_REGION"), None),
        (json!({"AllowedVariables": ["AWS_*", "X"]}), "Init", env("LD_PRELOAD"), variable("LD_PRELOAD")),
        (json!({"AllowedVariables": ["AWS_*"]}), "Init", env("aws_region"), variable("aws_region")),
        (json!({"AllowedVariables": []}), "Init", env("A"), variable("A")),
        (json!({"AllowedVariables": []}), "Init", json!({}), None),
        (
            json!({"AllowedVariables": ["*"], "AllowedFlags": []}),
            "Init",
            env("TF_CLI_ARGS"),
            Some(("Policy.AllowedFlags", r#"the environment variable "TF_CLI_ARGS""#.into())),
        ),
        // Backend settings.
        (json!({}), "Init", backend("shared_config_files", "x"), None),
        (settings(&[]), "Init", json!({}), None),
        (settings(&[]), "Init", backend("key", ""), setting("key")),
        (settings(&["key", "skip_*"]), "Init", backend("skip_x", "true"), None),
        (settings(&["key", "skip_*"]), "Init", backend("Key", "x"), setting("Key")),
        (settings(&["key", "bucket=my-*"]), "Init", backend("bucket", "my-state"), None),
        (settings(&["key", "bucket=my-*"]), "Init", backend("bucket", "mine"), setting("bucket")),
        (settings(&["bucket=my-*"]), "Init", backend("bucket", "${X}my-"), setting("bucket")),
        // Split where the engine splits it, not where the server does.
        (settings(&["*=x", "bucket=my-*"]), "Init", backend("address=http://evil", "x"), setting("address")),
        (settings(&["key"]), "Init", backend_flag("key=a=b"), None),
        (settings(&["key"]), "Init", backend_flag("address=http://evil"), setting("address")),
        (settings(&["conf/a.tfbackend"]), "Init", backend_flag("conf/a.tfbackend"), None),
        (settings(&["*"]), "Init", backend_flag("a.tfbackend"), file("a.tfbackend")),
        (settings(&["a$X"]), "Init", backend_flag("a$X"), file("a$X")),
        // Settings that another list overrides or a switch ignores do not reach the engine.
        (
            settings(&["key=good"]),
            "Init",
            json!({"engine": "tofu", "backendConfiguration": {
                "namespaceBackendConfigs": [{"name": "key", "value": "evil"}],
                "moduleBackendConfigs": [{"name": "key", "value": "good"}]}}),
            None,
        ),
        (
            settings(&["key=good"]),
            "Init",
            json!({"engine": "tofu", "backendConfiguration": {
                "namespaceBackendConfigs": [{"name": "key", "value": "good"}, {"name": "x", "value": ""}]}}),
            setting("x"),
        ),
        (
            settings(&[]),
            "Init",
            json!({"engine": "tofu", "backendConfiguration": {"ignoreNamespaceBackendConfigs": true,
                "namespaceBackendConfigs": [{"name": "key", "value": "evil"}]}}),
            None,
        ),
        (settings(&["CloudUrl=s3://my-*"]), "Init", login("s3://my-state"), None),
        (settings(&["CloudUrl=s3://my-*"]), "Init", local.clone(), setting("CloudUrl")),
        (settings(&["CloudUrl=file://~"]), "Init", local, None),
        (settings(&["CloudUrl=s3://my-*"]), "Init", login("https://evil.example"), setting("CloudUrl")),
        (
            settings(&["*"]),
            "Init",
            env("TF_CLI_ARGS_init"),
            Some(("Policy.AllowedBackendSettings", r#"the environment variable "TF_CLI_ARGS_init""#.into())),
        ),
        // Sources of tasks.
        (
            json!({"AllowedSources": ["https://github.com/other/*"]}),
            "GetDefinitiveRevision",
            git.clone(),
            Some(("Policy.AllowedSources", r#"the source "https://github.com/my-org/x""#.into())),
        ),
        (json!({"AllowedSources": ["https://github.com/my-org/*"]}), "GetModule", git, None),
        // Hooks.
        (json!({"Hooks": "None"}), "Plan", json!({"planBeforeHook": " \n"}), None),
        (
            json!({"Hooks": "None"}),
            "Plan",
            json!({"planAfterHook": "echo hunter2"}),
            Some(("Policy.Hooks", "the hook PlanAfterHook".into())),
        ),
        (
            json!({"Hooks": "Preapproved"}),
            "Init",
            json!({"initBeforeHook": "true"}),
            Some(("Policy.Hooks", "the hook InitBeforeHook".into())),
        ),
        (json!({"Hooks": "Preapproved"}), "Init", json!({}), None),
    ];
    for (settings, method, own, expected) in rows {
        let refusal = policy(&settings).check(&request(method, &own), &Engines::default());
        let refusal = refusal.err().map(|it| (it.rule, it.what));
        assert_eq!(refusal, expected, "{settings} {method} {own}");
    }
}

#[test]
fn a_refresh_is_checked_by_its_source() {
    let refresh = |url: &str| SourceRefresh {
        organization_id: Uuid::nil(),
        source_url: url.to_owned(),
        source_revision: String::new(),
        source_type: hawser_contract::SourceType::Git,
        source_revision_type: hawser_contract::SourceRevisionType::Default,
    };
    // A refresh has no module and no engine.
    let policy =
        policy(&json!({"AllowedSources": ["https://h/a/*"], "AllowedModules": [], "AllowedEngines": []}));
    policy.check_refresh(&refresh("https://h/a/b")).unwrap();
    assert_eq!(policy.check_refresh(&refresh("https://h/c")).unwrap_err().rule, "Policy.AllowedSources");
}

#[test]
fn either_setting_turns_on_the_same_pre_approval() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ok.sh"), "echo approved\n").unwrap();
    for (hooks, enabled, rule) in [
        ("Preapproved", false, "Policy.Hooks"),
        ("Preapproved", true, "Policy.Hooks"),
        ("All", true, "HooksPreapproval.Enabled"),
    ] {
        let mut settings = settings(&json!({ "Hooks": hooks }));
        settings.hooks_preapproval.enabled = enabled;
        settings.hooks_preapproval.preapproved_hooks_directory = Some(folder.path().to_owned());
        let policy = Policy::new(&settings);
        policy
            .check(&request("Plan", &json!({"planBeforeHook": "echo approved\r\n"})), &Engines::default())
            .unwrap();
        let refusal = policy
            .check(&request("Plan", &json!({"planBeforeHook": "echo hunter2"})), &Engines::default())
            .unwrap_err();
        assert_eq!((refusal.rule, refusal.what.as_str()), (rule, "the hook PlanBeforeHook"));
        assert!(refusal.to_string().contains("echo hunter2"), "{refusal}");
    }
    // Pre-approval does not widen None.
    let mut settings = settings(&json!({ "Hooks": "None" }));
    settings.hooks_preapproval.enabled = true;
    settings.hooks_preapproval.preapproved_hooks_directory = Some(folder.path().to_owned());
    let approved = request("Plan", &json!({"planBeforeHook": "echo approved"}));
    assert_eq!(
        Policy::new(&settings).check(&approved, &Engines::default()).unwrap_err().rule,
        "Policy.Hooks"
    );
}
