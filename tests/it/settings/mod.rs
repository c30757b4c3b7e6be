//! Settings: every layer and every rule for reading files, variables, and arguments.

mod diagnostics;
mod program;
mod published;
mod random_input;

use std::path::PathBuf;

use hawser::settings::model::Level;
use hawser::settings::{self, Loaded, SettingFault, SettingsError, SettingsInputs, SettingsProblem, Warning};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tempfile::TempDir;

const ID: &str = "3fa85f64-5717-4562-b3fc-2c963f66afa6";
const ORGANIZATION: &str = "0b7b7c3e-58f1-4a1c-9d3c-111111111111";
const SECRET: &str = "s3cr3t-and-long-enough";

/// A working directory, an environment, and a command line.
struct World {
    dir: TempDir,
    inputs: SettingsInputs,
}

impl World {
    fn empty() -> Self {
        let dir = TempDir::new().unwrap();
        let inputs = SettingsInputs {
            working_dir: dir.path().to_owned(),
            home: Some("/home/me".into()),
            host_name: "host-1".to_owned(),
            ..SettingsInputs::default()
        };
        Self { dir, inputs }
    }

    /// All required settings, in `appsettings.json`.
    fn complete() -> Self {
        Self::empty().file("appsettings.json", &complete().to_string())
    }

    fn file(self, name: &str, text: &str) -> Self {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        // Most of them contain a secret.
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.inputs.environment.push((name.into(), value.into()));
        self
    }

    fn args(mut self, arguments: &[&str]) -> Self {
        self.inputs.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    fn load(&self) -> Result<Loaded, SettingsError> {
        settings::load(&self.inputs)
    }

    fn loaded(&self) -> Loaded {
        self.load().unwrap_or_else(|error| panic!("{error}"))
    }

    fn problems(&self) -> Vec<SettingsProblem> {
        match self.load() {
            Err(SettingsError::Invalid { problems, .. }) => problems,
            other => panic!("no problem found: {other:?}"),
        }
    }

    fn one_problem(&self) -> SettingsProblem {
        let mut problems = self.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems.remove(0)
    }

    fn warnings(&self) -> Vec<String> {
        self.loaded().warnings.iter().map(ToString::to_string).collect()
    }
}

fn complete() -> Value {
    json!({
        "Runner": {
            "Id": ID,
            "OrganizationId": ORGANIZATION,
            "Credentials": { "ClientId": "client", "ClientSecret": SECRET },
        },
        "Server": { "Url": "https://example.com/prefix/" },
    })
}

fn origin(loaded: &Loaded, key: &str) -> String {
    let setting = loaded.effective.iter().find(|setting| setting.key == key);
    setting.unwrap_or_else(|| panic!("{key} is missing")).origin.to_string()
}

#[test]
fn the_required_settings_are_enough_and_the_others_have_defaults() {
    let Loaded { settings, warnings, .. } = World::complete().loaded();
    assert_eq!(settings.runner.id.to_string(), ID);
    assert_eq!(settings.runner.organization_id.to_string(), ORGANIZATION);
    assert_eq!(settings.runner.credentials.client_id, "client");
    assert_eq!(settings.runner.credentials.client_secret.expose_secret(), SECRET);
    assert_eq!(settings.runner.instance, "host-1");
    assert_eq!(settings.runner.max_concurrent_steps, 4);
    assert_eq!(settings.runner.drain_timeout_seconds, None);
    assert_eq!(settings.runner.cancel_grace_seconds, 600);
    assert_eq!(settings.server.url.as_str(), "https://example.com/prefix/");
    assert_eq!(settings.server.ca_file, None);
    assert_eq!(settings.server.max_message_bytes, 32 * 1024);
    assert_eq!(settings.working_directory.working_directory, PathBuf::from("/home/me/.snapcd/runner"));
    assert_eq!(settings.working_directory.temp_directory, PathBuf::from("/home/me/.snapcd/runner/.temp"));
    assert!(!settings.hooks_preapproval.enabled);
    assert_eq!(settings.hooks_preapproval.preapproved_hooks_directory, None);
    assert!(settings.engine.additional_binary_paths.is_empty());
    assert!(settings.engine.plugin_cache_enabled);
    assert_eq!(settings.job_log_stream.batch_size_limit, 50);
    assert_eq!(settings.job_log_stream.period_seconds, 5);
    assert!(settings.job_log_stream.eagerly_emit_first_event);
    assert_eq!(settings.job_log_stream.max_unsent_bytes, None);
    assert!(settings.logging.log_level.is_empty());
    assert_eq!(warnings, []);
}

#[test]
fn a_later_layer_wins_and_each_value_has_its_origin() {
    let steps = |loaded: &Loaded| loaded.settings.runner.max_concurrent_steps;
    let key = "Runner.MaxConcurrentSteps";
    let world = World::complete();
    assert_eq!(origin(&world.loaded(), key), "default");

    let mut base = complete();
    base["Runner"]["MaxConcurrentSteps"] = json!(5);
    let world = world.file("appsettings.json", &base.to_string());
    assert_eq!((steps(&world.loaded()), origin(&world.loaded(), key).as_str()), (5, "appsettings.json"));

    let world = world.file("appsettings.Production.json", r#"{"Runner": {"MaxConcurrentSteps": 6}}"#);
    let loaded = world.loaded();
    assert_eq!((steps(&loaded), origin(&loaded, key).as_str()), (6, "appsettings.Production.json"));
    assert_eq!(origin(&loaded, "Runner.Id"), "appsettings.json");

    let world = world.env("Runner__MaxConcurrentSteps", "7");
    let loaded = world.loaded();
    let variable = "environment variable Runner__MaxConcurrentSteps";
    assert_eq!((steps(&loaded), origin(&loaded, key).as_str()), (7, variable));

    let loaded = world.args(&["--Runner:MaxConcurrentSteps=8"]).loaded();
    assert_eq!(
        (steps(&loaded), origin(&loaded, key).as_str()),
        (8, "command line, --Runner:MaxConcurrentSteps")
    );
}

#[test]
fn the_environment_name_selects_the_second_file() {
    let world = || {
        let file = |name: &str| json!({ "Runner": { "Instance": name } }).to_string();
        World::complete()
            .file("appsettings.Production.json", &file("production"))
            .file("appsettings.Staging.json", &file("staging"))
            .file("appsettings.Development.json", &file("development"))
    };
    let instance = |world: World| world.loaded().settings.runner.instance;
    assert_eq!(instance(world()), "production");
    assert_eq!(instance(world().env("ASPNETCORE_ENVIRONMENT", "Staging")), "staging");
    assert_eq!(instance(world().env("DOTNET_ENVIRONMENT", "")), "production");
    assert_eq!(
        instance(world().env("ASPNETCORE_ENVIRONMENT", "Staging").env("DOTNET_ENVIRONMENT", "Development")),
        "development"
    );
    let problem = world().env("DOTNET_ENVIRONMENT", "../secrets").one_problem();
    assert_eq!(problem.fault, SettingFault::NotEnvironment);
}

#[test]
fn a_file_may_have_comments_trailing_commas_a_byte_order_mark_and_any_case() {
    let text = format!(
        "\u{feff}// first\n{{ /* more */ \"runner\": {{ \"ID\": \"{ID}\", \"organizationid\": \"{ORGANIZATION}\",
            \"Credentials\": {{ \"clientId\": \"client\", \"CLIENTSECRET\": \"x\", }}, }},
            \"Server:Url\": \"http://localhost:1\", // a path in one key, as .NET reads it
        }}"
    );
    let loaded = World::empty().file("appsettings.json", &text).loaded();
    assert_eq!(loaded.settings.runner.id.to_string(), ID);
    assert_eq!(loaded.settings.server.url.as_str(), "http://localhost:1/");
    assert_eq!(loaded.warnings, []);
}

#[test]
fn every_setting_can_come_from_the_environment_in_any_case() {
    let loaded = World::empty()
        .env("RUNNER__ID", ID)
        .env("runner__organizationid", &ORGANIZATION.to_uppercase())
        .env("Runner__Credentials__ClientId", "client")
        .env("RUNNER__CREDENTIALS__CLIENTSECRET", SECRET)
        .env("Server__Url", "http://localhost:1")
        .env("HooksPreapproval__Enabled", "True")
        .env("HooksPreapproval__PreapprovedHooksDirectory", "hooks")
        .env("Engine__AdditionalBinaryPaths__1", "~/bin")
        .env("Engine__AdditionalBinaryPaths__0", "/opt/bin")
        .env("Engine__AdditionalBinaryPaths__10", "/last")
        .env("Logging__LogLevel__Default", "warning")
        .env("PATH", "/bin")
        .env("SERVER", "something else")
        .env("KUBERNETES__PORT", "1")
        .loaded();
    assert_eq!(loaded.settings.runner.credentials.client_secret.expose_secret(), SECRET);
    assert_eq!(loaded.settings.runner.organization_id.to_string(), ORGANIZATION);
    assert!(loaded.settings.hooks_preapproval.enabled);
    assert!(loaded.settings.hooks_preapproval.preapproved_hooks_directory.unwrap().is_absolute());
    let paths = ["/opt/bin", "/home/me/bin", "/last"].map(PathBuf::from);
    assert_eq!(loaded.settings.engine.additional_binary_paths, paths);
    assert_eq!(loaded.settings.logging.log_level["Default"], Level::Warning);
    // The directory with the hooks does not exist.
    assert_eq!(loaded.warnings, [Warning::NothingPreapproved]);
}

#[test]
fn a_list_item_and_a_map_entry_are_replaced_one_by_one() {
    let mut base = complete();
    base["Engine"] = json!({ "AdditionalBinaryPaths": ["/a", "/b", "/c"] });
    base["Logging"] =
        json!({ "LogLevel": { "Default": "Debug", "hawser::hub": "Trace", "Microsoft.X": "Error" } });
    let loaded = World::empty()
        .file("appsettings.json", &base.to_string())
        .file("appsettings.Production.json", r#"{"Engine": {"AdditionalBinaryPaths": [null]}}"#)
        .env("Engine__AdditionalBinaryPaths__1", "/other")
        .env("LOGGING__LOGLEVEL__DEFAULT", "None")
        .args(&["--Logging:LogLevel:Hawser:Hub=Warning"])
        .loaded();
    assert_eq!(loaded.settings.engine.additional_binary_paths, ["/other", "/c"].map(PathBuf::from));
    let levels: Vec<_> = loaded.settings.logging.log_level.into_iter().collect();
    let expected = [("Default", Level::None), ("Microsoft.X", Level::Error), ("hawser::hub", Level::Warning)];
    assert_eq!(levels, expected.map(|(name, level)| (name.to_owned(), level)));
}

#[test]
fn the_command_line_accepts_both_forms_and_ignores_urls() {
    let loaded = World::complete()
        .args(&["--urls", "http://*:80", "--Runner:Instance", "blue", "--URLS=http://*:81"])
        .args(&["--server:url=http://localhost/?", "--Server:Url=http://localhost:9"])
        .args(&["--Runner:Credentials:ClientId=a=b --c"])
        .loaded();
    assert_eq!(loaded.settings.runner.instance, "blue");
    assert_eq!(loaded.settings.server.url.as_str(), "http://localhost:9/");
    assert_eq!(loaded.settings.runner.credentials.client_id, "a=b --c");
    assert!(matches!(&loaded.warnings[..], [Warning::SetTwice { key, .. }] if key == "Server.Url"));
}

#[test]
fn old_names_are_read_and_the_current_name_wins_in_any_layer() {
    let world = World::complete()
        .env("Logging__BatchSizeLimit", "7")
        .env("Logging__PeriodSeconds", "8")
        .env("Logging__EarlyEmitFirstEvent", "false");
    let loaded = world.loaded();
    assert_eq!(loaded.settings.job_log_stream.batch_size_limit, 7);
    assert_eq!(loaded.settings.job_log_stream.period_seconds, 8);
    assert!(!loaded.settings.job_log_stream.eagerly_emit_first_event);
    assert_eq!(loaded.warnings.len(), 3);
    assert_eq!(origin(&loaded, "JobLogStream.PeriodSeconds"), "environment variable Logging__PeriodSeconds");

    let world = world.file("appsettings.Production.json", r#"{"JobLogStream": {"BatchSizeLimit": 9}}"#);
    assert_eq!(world.loaded().settings.job_log_stream.batch_size_limit, 9);
}

#[test]
fn null_resets_the_value_of_an_earlier_layer() {
    let mut base = complete();
    base["Runner"]["DrainTimeoutSeconds"] = json!(60);
    base["Runner"]["MaxConcurrentSteps"] = json!(9);
    let over = r#"{"Runner": {"DrainTimeoutSeconds": null, "MaxConcurrentSteps": null}, "Server": null}"#;
    let world = World::empty().file("appsettings.json", &base.to_string());
    assert_eq!(world.loaded().settings.runner.drain_timeout_seconds, Some(60));
    let settings = world.file("appsettings.Production.json", over).loaded().settings;
    assert_eq!(settings.runner.drain_timeout_seconds, None);
    assert_eq!(settings.runner.max_concurrent_steps, 4);
    assert_eq!(settings.server.url.as_str(), "https://example.com/prefix/");
}

#[test]
fn numbers_booleans_and_guids_may_be_quoted_or_bare() {
    let mut base = complete();
    base["Runner"]["Id"] = json!(format!("{{{}}}", ID.to_uppercase()));
    base["Runner"]["Credentials"]["ClientId"] = json!(12345);
    base["JobLogStream"] = json!({ "BatchSizeLimit": "5", "EagerlyEmitFirstEvent": "False" });
    let settings = World::empty().file("appsettings.json", &base.to_string()).loaded().settings;
    assert_eq!(settings.runner.id.to_string(), ID);
    assert_eq!(settings.runner.credentials.client_id, "12345");
    assert_eq!(settings.job_log_stream.batch_size_limit, 5);
    assert!(!settings.job_log_stream.eagerly_emit_first_event);
}

#[test]
fn an_empty_value_means_not_set_if_optional_and_is_a_problem_otherwise() {
    let settings = World::complete()
        .env("Runner__Instance", "")
        .env("Runner__DrainTimeoutSeconds", "")
        .env("Server__CaFile", " ")
        .env("Engine__AdditionalBinaryPaths", "")
        .loaded()
        .settings;
    assert_eq!(settings.runner.instance, "host-1");
    assert_eq!(settings.runner.drain_timeout_seconds, None);
    assert_eq!(settings.server.ca_file, None);
    for key in
        ["Runner__Credentials__ClientId", "Runner__MaxConcurrentSteps", "WorkingDirectory__TempDirectory"]
    {
        assert_eq!(World::complete().env(key, "").one_problem().fault, SettingFault::Empty, "{key}");
    }
}

#[test]
fn without_a_host_name_the_instance_must_be_set() {
    let mut world = World::complete();
    world.inputs.host_name.clear();
    assert_eq!(world.one_problem().key.as_deref(), Some("Runner.Instance"));
    assert_eq!(world.env("Runner__Instance", "blue").loaded().settings.runner.instance, "blue");
}

#[test]
fn an_empty_policy_list_differs_from_one_that_is_not_set() {
    let policy = |world: World| world.loaded().settings.policy.allowed_flags;
    assert_eq!(policy(World::complete()), None);
    let empty = r#"{ "Policy": { "AllowedFlags": [] } }"#;
    assert_eq!(policy(World::complete().file("appsettings.Production.json", empty)), Some(Vec::new()));
    let one =
        World::complete().file("appsettings.Production.json", empty).env("Policy__AllowedFlags__0", "Target");
    assert_eq!(policy(one), Some(vec!["Target".parse().unwrap()]));
}

#[test]
fn a_list_replaces_the_default_names_of_secrets() {
    let names = |world: World| world.loaded().settings.job_log_stream.redact_names;
    assert!(names(World::complete()).contains(&"*TOKEN*".to_owned()));
    assert_eq!(names(World::complete().env("JobLogStream__RedactNames__0", "MINE")), ["MINE"]);
}
