use std::path::Path;
use std::sync::LazyLock;

use hawser_contract::{BackendConfig, BackendConfiguration, EngineName, InitFlags, InitOptions, Task};

use super::*;

/// There are no files with variables at these paths.
static PATHS: LazyLock<ResultPaths> =
    LazyLock::new(|| ResultPaths::new(Path::new("/m/.snapcd"), Path::new("/step")).unwrap());

fn program(engine: &EngineName) -> Program<'static> {
    let evaluates_early = *engine == EngineName::TOFU;
    let name = if evaluates_early { "tofu" } else { "terraform" };
    Program { name, evaluates_early, paths: &PATHS }
}

fn words(work: &EngineCommands) -> Vec<&str> {
    work.engine[0].words.iter().map(String::as_str).collect()
}

fn backend(name: &str, value: &str) -> BackendConfig {
    BackendConfig { name: name.to_owned(), value: value.to_owned() }
}

fn flag(flag: TerraformFlag, value: Option<&str>) -> Flag<TerraformFlag> {
    Flag::new(flag, value)
}

#[test]
fn duplicate_flags_of_init_are_passed_once() {
    let request = EngineTask {
        init: InitOptions {
            flags: InitFlags {
                auto_upgrade_enabled: true,
                auto_migrate_enabled: true,
                ..InitFlags::default()
            },
            ..InitOptions::default()
        },
        flags: FlagLists {
            terraform_flags: vec![
                flag(TerraformFlag::Upgrade, None),
                flag(TerraformFlag::Lock, Some("false")),
                flag(TerraformFlag::Lock, Some("true")),
            ]
            .into(),
            ..FlagLists::default()
        },
        ..EngineTask::new(Task::Init, EngineName::TERRAFORM)
    };
    let expected =
        ["terraform", "init", "-input=false", "-upgrade", "-migrate-state", "-lock=true", "-force-copy"];
    assert_eq!(words(&init(program(&request.engine), &request)), expected);
}

#[test]
fn only_the_reconfigure_prompt_is_answered_with_no() {
    let mut request = EngineTask::new(Task::Init, EngineName::TOFU);
    assert_eq!(words(&init(program(&request.engine), &request)), ["tofu", "init", "-input=false"]);
    request.init.flags.auto_reconfigure_enabled = true;
    let work = init(program(&request.engine), &request);
    assert_eq!(words(&work), ["tofu", "init", "-input=false", "-reconfigure"]);
    let retry = work.engine[0].retry.as_ref().unwrap();
    assert_eq!(retry.command.words, ["tofu", "init", "-reconfigure"]);
    assert_eq!(retry.command.stdin.as_deref(), Some("no"));
    // The flag list has the last word over the deprecated switch.
    request.flags.terraform_flags = vec![flag(TerraformFlag::Reconfigure, Some("false"))].into();
    let work = init(program(&request.engine), &request);
    assert_eq!(words(&work), ["tofu", "init", "-input=false", "-reconfigure=false"]);
    assert_eq!(work.engine[0].retry, None);
}

#[test]
fn the_last_value_of_a_backend_setting_wins() {
    let mut request = EngineTask::new(Task::Init, EngineName::TOFU);
    request.init.backend_configuration = BackendConfiguration {
        namespace_backend_configs: vec![backend("bucket", "ns"), backend("region", "ns")],
        module_backend_configs: vec![backend("bucket", "${BUCKET}-x"), backend("key", "k=v")],
        ..BackendConfiguration::default()
    };
    request.flags.terraform_array_flags = vec![
        Flag::new(TerraformArrayFlag::BackendConfig, Some("region=flag")),
        Flag::new(TerraformArrayFlag::BackendConfig, Some("conf/$ENV.tfbackend")),
        Flag::new(TerraformArrayFlag::Var, Some("a=b")),
    ]
    .into();
    let text = |request: &EngineTask| -> Vec<String> {
        let join = |piece: Piece| match piece {
            Piece::Text(text) => text,
            Piece::Variable(name) => format!("<{name}>"),
        };
        let arguments = backend_arguments(request).into_iter();
        arguments.map(|pieces| pieces.into_iter().map(join).collect()).collect()
    };
    assert_eq!(
        text(&request),
        [
            "-backend-config=bucket=<BUCKET>-x",
            "-backend-config=key=k=v",
            "-backend-config=region=flag",
            "-backend-config=conf/<ENV>.tfbackend",
        ]
    );
    request.init.backend_configuration.ignore_namespace_backend_configs = true;
    request.flags.terraform_array_flags = Vec::new().into();
    assert_eq!(text(&request), ["-backend-config=bucket=<BUCKET>-x", "-backend-config=key=k=v"]);
}

#[test]
fn backend_settings_and_values_of_variables_are_in_no_argument_list() {
    let mut request = EngineTask::new(Task::Init, EngineName::TOFU);
    request.init.backend_configuration.module_backend_configs = vec![backend("access_key", "hush")];
    request.flags.terraform_array_flags = vec![Flag::new(TerraformArrayFlag::Var, Some("a=b"))].into();
    let work = init(program(&request.engine), &request);
    assert_eq!(words(&work), ["tofu", "init", "-input=false"]);
    let arguments =
        |work: &EngineCommands| format!("{:?}", work.engine[0].hidden.as_ref().unwrap().arguments);
    assert!(arguments(&work).contains("hush") && arguments(&work).contains("-var=a=b"));

    let array = vec![
        Flag::new(TerraformArrayFlag::Var, Some("a=hush")),
        Flag::new(TerraformArrayFlag::Target, Some("x.y")),
    ];
    let flags = FlagLists { terraform_array_flags: array.into(), ..FlagLists::default() };
    let planned = plan(program(&EngineName::TOFU), Direction::Apply, &flags);
    assert_eq!(words(&planned), ["tofu", "plan", "-out=/m/.snapcd/plan.out", "-input=false", "-target=x.y"]);
    // The file comes along, or it would count after the values.
    assert_eq!(
        arguments(&planned),
        r#"[[Text("-var-file=/m/.snapcd/inputs.tfvars")], [Text("-var=a=hush")]]"#
    );
    let applied = apply(program(&EngineName::TOFU), Direction::Apply, &flags);
    assert_eq!(words(&applied), ["tofu", "apply", "-target=x.y", "/m/.snapcd/plan.out"]);
    assert_eq!(
        words(&output(program(&EngineName::TOFU), &flags)),
        ["tofu", "output", "-json", "-target=x.y"]
    );
}

#[test]
fn plan_and_apply_use_the_same_file() {
    let flags = FlagLists {
        terraform_flags: vec![flag(TerraformFlag::Parallelism, Some("4"))].into(),
        ..FlagLists::default()
    };
    let planned = plan(program(&EngineName::TERRAFORM), Direction::Destroy, &flags);
    assert_eq!(
        words(&planned),
        [
            "terraform",
            "plan",
            "-destroy",
            "-out=/m/.snapcd/destroy.out",
            "-input=false",
            "-var-file=/m/.snapcd/inputs.tfvars",
            "-parallelism=4",
        ]
    );
    assert_eq!(planned.collect[0].words, ["terraform", "show", "-json", "/m/.snapcd/destroy.out"]);
    let applied = apply(program(&EngineName::TERRAFORM), Direction::Apply, &flags);
    assert_eq!(words(&applied), ["terraform", "apply", "-parallelism=4", "/m/.snapcd/plan.out"]);
    assert!(applied.collect_after_failure);
    assert_eq!(
        words(&output(program(&EngineName::TOFU), &flags)),
        ["tofu", "output", "-json", "-parallelism=4"]
    );
}

#[test]
fn files_with_variables_reach_the_commands_that_need_them() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ResultPaths::new(folder.path(), Path::new("/step")).unwrap();
    for file in ["init.tfvars", "inputs.tfvars", "plan.tfvars"] {
        std::fs::write(folder.path().join(file), "a=1\n").unwrap();
    }
    std::fs::write(folder.path().join("destroy.tfvars"), "").unwrap();
    let array = vec![Flag::new(TerraformArrayFlag::Var, Some("a=b"))];
    let flags = FlagLists { terraform_array_flags: array.into(), ..FlagLists::default() };
    let folder = format!("{}/", folder.path().display());
    let seen = |command: &EngineCommand| -> String {
        let hidden = command.hidden.iter().flat_map(|hidden| &hidden.arguments).flatten();
        let hidden = hidden.map(|piece| format!("{piece:?}"));
        command.words.iter().cloned().chain(hidden).collect::<Vec<_>>().join(" ").replace(&folder, "")
    };
    let commands = |name, evaluates_early| {
        let program = Program { name, evaluates_early, paths: &paths };
        let none = FlagLists::default();
        let applied = apply(program, Direction::Apply, &none);
        [
            seen(&validate(program).engine[0]),
            seen(&plan(program, Direction::Apply, &none).collect[0]),
            seen(&applied.engine[0]),
            seen(&applied.collect[0]),
            seen(&apply(program, Direction::Apply, &flags).engine[0]),
            seen(&apply(program, Direction::Destroy, &none).engine[0]),
            seen(&output(program, &none).engine[0]),
        ]
    };
    let hidden = r#"Text("-var-file=plan.tfvars") Text("-var=a=b")"#;
    assert_eq!(
        commands("terraform", false),
        [
            "terraform validate",
            "terraform show -json plan.out",
            "terraform apply -var-file=plan.tfvars plan.out",
            "terraform show -json",
            &format!("terraform apply plan.out {hidden}"),
            "terraform apply destroy.out",
            "terraform output -json",
        ]
    );
    assert_eq!(
        commands("tofu", true),
        [
            "tofu validate -var-file=init.tfvars",
            "tofu show -json -var-file=plan.tfvars plan.out",
            "tofu apply -var-file=plan.tfvars plan.out",
            "tofu show -json -var-file=init.tfvars -var-file=inputs.tfvars -var-file=plan.tfvars",
            &format!("tofu apply plan.out {hidden}"),
            "tofu apply destroy.out",
            "tofu output -json -var-file=init.tfvars -var-file=inputs.tfvars",
        ]
    );
}

#[test]
fn parameters_are_single_assignments() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let good = [pair("a", "\"x\""), pair("größe_1-b", "[1, 2]")];
    let text = inputs(good.iter().map(|(name, value)| (name, value))).unwrap();
    assert_eq!(text, "a=\"x\"\ngröße_1-b=[1, 2]\n");
    for bad in ["", "a=1\nb", "a b", "1a", "a.b", "-a"] {
        let pair = pair(bad, "1");
        inputs([(&pair.0, &pair.1)]).unwrap_err();
    }
}

#[test]
fn a_parameter_cannot_set_another_variable() {
    for good in [
        "\"a\\nb = 1\"",
        "<<EOT\na = 1\nEOT",
        "<<-EOT\n  b = ${x}\n  EOT\n",
        "[\n  1,\n  2, # two\n]",
        "{\n  a = 1\n  \"b c\" : null\n}",
        "-1.5e300",
        "12345678901234567890123456789.123456789",
        "null",
        " true ",
        "\"$${x} %%{y} é漢🦀 \\u00e9\"",
        "\"\"",
        "1 # a comment",
    ] {
        let pair = ("p".to_owned(), good.to_owned());
        assert_eq!(inputs([(&pair.0, &pair.1)]).unwrap(), format!("p={good}\n"));
    }
    for bad in
        ["1\nadmin = true", "\"x\"\nb {}", "", "1 2", "[", "\"", "<<EOT\nx", "1\n}", "\"x\" /* ", "1\r\nb=2"]
    {
        let pair = ("p".to_owned(), bad.to_owned());
        inputs([(&pair.0, &pair.1)]).unwrap_err();
    }
}
