//! Problems and warnings about settings.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use hawser::settings::{SettingFault, Warning};
use serde_json::json;

use super::{ID, SECRET, World, complete};

#[test]
fn a_stray_argument_is_reported_by_position_because_it_may_be_secret() {
    let world = World::complete().args(&["--Runner:Credentials:ClientSecret", "my", "pass-phrase"]);
    let problem = world.one_problem();
    assert_eq!(problem.fault, SettingFault::StrayArgument { position: 3 });
    assert!(!problem.to_string().contains("phrase"), "{problem}");

    let problem = World::complete().args(&["--Runner:Instance", "--Server:Url=http://x"]).one_problem();
    assert_eq!(problem.key.as_deref(), Some("Runner.Instance"));
    assert!(problem.to_string().contains("--Runner:Instance=…"), "{problem}");
}

#[test]
fn a_number_that_would_lose_digits_as_text_must_be_quoted() {
    let text = complete().to_string().replace(&format!("\"{SECRET}\""), "12345678901234567890123");
    let problem = World::empty().file("appsettings.json", &text).one_problem();
    assert_eq!(problem.key.as_deref(), Some("Runner.Credentials.ClientSecret"));
    assert_eq!(problem.fault, SettingFault::NotQuoted);
}

#[test]
fn a_missing_key_has_a_hint_that_never_puts_a_secret_on_the_command_line() {
    let problems = World::empty().problems();
    let keys: Vec<_> = problems.iter().filter_map(|problem| problem.key.as_deref()).collect();
    let required = [
        "Runner.Credentials.ClientId",
        "Runner.Credentials.ClientSecret",
        "Runner.Id",
        "Runner.OrganizationId",
        "Server.Url",
    ];
    assert_eq!(keys, required);
    let id = problems[2].to_string();
    for hint in [r#""Runner": { "Id": … }"#, "appsettings.json", "Runner__Id", "--Runner:Id=…"] {
        assert!(id.contains(hint), "{id}");
    }
    let secret = problems[1].to_string();
    assert!(secret.contains("Runner__Credentials__ClientSecret") && !secret.contains("--"), "{secret}");
}

#[test]
fn all_problems_are_reported_together_with_key_value_and_layer() {
    let world = World::empty()
        .file("appsettings.json", r#"{"Runner": {"Id": "abc", "MaxConcurrentSteps": 0}, "Engine": "x"}"#)
        .env("Server__Url", "ftp://me:hunter2@example.com")
        .env("Runner__Credentials__ClientSecret", "  ")
        .args(&["--HooksPreapproval:Enabled=yes", "--Logging:LogLevel:Default=Loud"]);
    let error = world.load().unwrap_err();
    let text = error.to_string();
    for line in [
        "9 problems with the settings",
        r#"Runner.Id = "abc" (appsettings.json): is not a GUID"#,
        r#"Runner.MaxConcurrentSteps = "0" (appsettings.json): is not a whole number from 1 to 1000"#,
        "Engine (appsettings.json): is a section, not a value or a list",
        r#"Server.Url = "***@example.com" (environment variable Server__Url): is not an http or https URL"#,
        "Runner.Credentials.ClientSecret (environment variable Runner__Credentials__ClientSecret): is empty",
        r#"HooksPreapproval.Enabled = "yes" (command line, --HooksPreapproval:Enabled): is neither true nor false"#,
        r#"Logging.LogLevel.Default = "Loud" (command line, --Logging:LogLevel:Default): is not one of Trace, Debug"#,
        "Runner.Credentials.ClientId: is required and not set",
        "Runner.OrganizationId: is required and not set",
    ] {
        assert!(text.contains(line), "{line}\nnot in\n{text}");
    }
    assert!(!text.contains("hunter2"));
}

#[test]
fn an_unusable_authorities_file_is_reported_with_the_other_problems() {
    let world = World::empty()
        .file("appsettings.json", r#"{"Runner": {"Id": "abc"}, "Server": {"CaFile": "ca.pem"}}"#)
        .env("HooksPreapproval__Enabled", "yes");
    let ca_file = || {
        let problems = world.problems();
        assert_eq!(problems.len(), 7, "{problems:?}");
        let problem = problems.iter().find(|problem| problem.key.as_deref() == Some("Server.CaFile"));
        problem.unwrap_or_else(|| panic!("{problems:?}")).to_string()
    };
    let path = world.dir.path().join("ca.pem");
    let start = format!("Server.CaFile = {path:?} (appsettings.json): ");
    assert!(ca_file().starts_with(&start) && ca_file().contains("No such file"), "{}", ca_file());
    std::fs::write(&path, "no certificate").unwrap();
    assert_eq!(ca_file(), format!("{start}contains no PEM certificate"));
    std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    assert!(ca_file().starts_with(&format!("{start}contains an invalid certificate")), "{}", ca_file());

    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&path, certificate.cert.pem()).unwrap();
    assert_eq!(world.problems().len(), 6);
}

#[test]
fn a_value_of_the_wrong_kind_has_a_hint() {
    for (name, value, text) in [
        ("Engine__AdditionalBinaryPaths", "/a:/b", "set Engine__AdditionalBinaryPaths__0 in the environment"),
        ("Engine__AdditionalBinaryPaths__first", "/a", "list items are numbered from 0"),
        ("Logging__LogLevel", "Debug", "set Logging__LogLevel__Default in the environment"),
        ("Runner__Credentials", SECRET, "its keys: ClientId, ClientSecret"),
    ] {
        let problem = World::complete().env(name, value).one_problem();
        assert!(problem.to_string().contains(text), "{problem}");
        assert_eq!(problem.value, None);
    }
    let mut base = complete();
    base["Runner"]["Instance"] = json!([]);
    assert_eq!(
        World::empty().file("appsettings.json", &base.to_string()).one_problem().fault,
        SettingFault::IsValue
    );
}

#[test]
fn a_list_instead_of_a_section_or_the_reverse_is_a_problem() {
    for (text, key) in [
        (r#"{"Runner": []}"#, "Runner"),
        (r#"{"Runner": [{"Id": 1}, 2]}"#, "Runner"),
        (r#"{"Runner": {"Credentials": []}}"#, "Runner.Credentials"),
        (r#"{"Logging": {"LogLevel": []}}"#, "Logging.LogLevel"),
        (r#"{"Engine": {"AdditionalBinaryPaths": {}}}"#, "Engine.AdditionalBinaryPaths"),
    ] {
        let problem = World::complete().file("appsettings.Production.json", text).one_problem();
        assert_eq!(problem.key.as_deref(), Some(key), "{text}: {problem}");
    }
    let fine = r#"{"Runner": {}, "Engine": null, "Policy": {}, "Logging": {"LogLevel": {}}}"#;
    assert_eq!(World::complete().file("appsettings.Production.json", fine).warnings(), Vec::<String>::new());
}

#[test]
fn an_invalid_value_is_not_reported_as_missing_too() {
    let world = World::empty()
        .file("appsettings.json", r#"{"Runner": {"Id": {}, "OrganizationId": "x", "Credentials": "me:pw"}}"#)
        .args(&["--server:url"]);
    let problems = world.problems();
    let keys: Vec<_> = problems.iter().filter_map(|problem| problem.key.as_deref()).collect();
    assert_eq!(
        keys,
        ["server.url", "Runner.Id", "Runner.Credentials", "Runner.OrganizationId"],
        "{problems:?}"
    );
}

#[test]
fn a_broken_file_is_reported_with_line_and_column_and_hides_no_other_problem() {
    let world = World::empty()
        .file("appsettings.json", "{\n  \"Runner\": {\n    \"Id\" \"x\"\n  }\n}")
        .env("Server__Url", "-");
    let problems = world.problems();
    assert_eq!(problems.len(), 2, "missing keys may be in the broken file: {problems:?}");
    let text = problems[0].to_string();
    assert!(text.starts_with("appsettings.json: is not valid JSON: "), "{text}");
    assert!(text.ends_with("at line 3 column 10"), "{text}");

    for (text, fault) in [("[1]", SettingFault::NotObject), ("\"x\"", SettingFault::NotObject)] {
        assert_eq!(World::empty().file("appsettings.json", text).one_problem().fault, fault);
    }
    for text in ["", " \n", "\u{feff}"] {
        assert_eq!(
            World::empty().file("appsettings.json", text).one_problem().fault,
            SettingFault::NothingInFile
        );
    }
    for text in ["{", "not json", "{} {}", "{\"a\": \"b}"] {
        let fault = World::empty().file("appsettings.json", text).one_problem().fault;
        assert!(matches!(fault, SettingFault::NotJson(_)), "{fault:?}");
    }
}

#[test]
fn an_unreadable_file_prevents_the_start() {
    let world = World::complete();
    std::fs::create_dir(world.dir.path().join("appsettings.Production.json")).unwrap();
    let problem = world.one_problem();
    assert!(matches!(problem.fault, SettingFault::Unreadable(_)));
    assert!(problem.to_string().starts_with("appsettings.Production.json: cannot be read"), "{problem}");

    let world = World::empty();
    std::fs::write(world.dir.path().join("appsettings.json"), b"{\"a\": \"\xff\"}").unwrap();
    assert_eq!(world.one_problem().fault, SettingFault::NotUnicode);

    let mut world = World::complete();
    let not_unicode = OsString::from_vec(b"\xff".to_vec());
    world.inputs.environment.push(("Runner__Instance".into(), not_unicode));
    assert_eq!(world.one_problem().fault, SettingFault::NotUnicode);
}

#[test]
fn an_unknown_key_is_warned_about_once_with_the_nearest_name_and_never_its_value() {
    let mut base = complete();
    base["Runer"] = json!({ "Id": 1, "Instance": 2 });
    base["Elsewhere"] = json!({ "a": 1, "b": 2 });
    base["Runner"]["ClientSecret"] = json!("misplaced-secret");
    base["Runner"]["Id"] = json!(ID);
    let warnings = World::empty()
        .file("appsettings.json", &base.to_string())
        .env("Server__Ulr", "misplaced-secret")
        // This may belong to another program.
        .env("Runnr__Credentials__ClientSecret", "misplaced-secret")
        .env("Runner__Id__More", "1")
        .args(&["--Workingdirectory:TmpDirectory=/tmp", "--Password=misplaced-secret", "--Server.Url=x"])
        .warnings();
    let expected = [
        "Elsewhere (appsettings.json) is not a setting and has no effect",
        "Runer (appsettings.json) is not a setting and has no effect; did you mean Runner?",
        "Runner.ClientSecret (appsettings.json) is not a setting and has no effect",
        "Runner.Id.More (environment variable Runner__Id__More) is not a setting and has no effect",
        "Server.Ulr (environment variable Server__Ulr) is not a setting and has no effect; did you mean Server.Url?",
        "Workingdirectory.TmpDirectory (command line, --Workingdirectory:TmpDirectory) is not a setting and has no effect; did you mean WorkingDirectory.TempDirectory?",
        "Password (command line, --Password) is not a setting and has no effect",
        "Server.Url (command line, --Server.Url) is not a setting and has no effect; did you mean Server:Url?",
    ];
    assert_eq!(warnings, expected);
}

#[test]
fn settings_of_dotnet_are_ignored_without_a_warning() {
    let mut base = complete();
    base["$schema"] = json!("x");
    base["AllowedHosts"] = json!("*");
    base["Kestrel"] = json!({ "Endpoints": { "Http": { "Url": "http://*:80" } } });
    base["Serilog"] = json!({ "MinimumLevel": "Debug" });
    base["ConnectionStrings"] = json!({ "Main": "Password=x" });
    base["Logging"] = json!({ "Console": { "FormatterName": "simple", "LogLevel": { "Default": "Debug" } } });
    let world = World::empty()
        .file("appsettings.json", &base.to_string())
        .env("Logging__Console__FormatterName", "json");
    assert_eq!(world.warnings(), Vec::<String>::new());
}

#[test]
fn an_external_settings_file_is_warned_about() {
    for name in ["appsettings.External.json", "externalsettings.json"] {
        let warnings = World::complete().file(name, "{}").warnings();
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].starts_with(&format!("{name} is ignored")), "{warnings:?}");
    }
}

#[test]
fn a_key_in_two_spellings_in_one_layer_is_warned_about() {
    let world = World::complete().env("RUNNER__INSTANCE", "one").env("Runner__Instance", "two");
    let loaded = world.loaded();
    assert_eq!(loaded.settings.runner.instance, "two");
    assert!(matches!(&loaded.warnings[..], [Warning::SetTwice { key, .. }] if key == "Runner.Instance"));

    let text = "is set more than once in the same layer; the last value wins";
    let text = format!("Runner.Instance {text} (environment variable Runner__Instance)");
    assert_eq!(world.warnings(), [text]);

    let identical = World::complete().env("RUNNER__INSTANCE", "one").env("Runner__Instance", "one");
    assert_eq!(identical.warnings(), Vec::<String>::new());
}

#[test]
fn a_secret_in_a_file_that_others_can_read_is_warned_about() {
    let world = World::complete().file("appsettings.Production.json", r#"{"Runner": {"Instance": "x"}}"#);
    let set = |name: &str, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(world.dir.path().join(name), mode).unwrap();
    };
    // This file contains no secret.
    set("appsettings.Production.json", 0o644);
    assert_eq!(world.loaded().warnings, []);
    for mode in [0o640, 0o604, 0o644] {
        set("appsettings.json", mode);
        let (key, file) = ("Runner.Credentials.ClientSecret".to_owned(), "appsettings.json".to_owned());
        assert_eq!(world.loaded().warnings, [Warning::SecretReadable { key, file, mode }]);
    }
    let text = world.loaded().warnings[0].to_string();
    assert!(text.contains("644") && text.contains("chmod 600") && !text.contains(SECRET), "{text}");
    set("appsettings.json", 0o600);
    assert_eq!(world.loaded().warnings, []);
    // A placeholder that the environment overrides.
    set("appsettings.json", 0o644);
    assert_eq!(world.env("Runner__Credentials__ClientSecret", SECRET).loaded().warnings, []);
}

#[test]
fn preapproval_without_a_directory_is_warned_about() {
    let loaded = World::complete().env("HooksPreapproval__Enabled", "true").loaded();
    assert_eq!(loaded.warnings, [Warning::NothingPreapproved]);
    let with = |directory: &str| {
        let world = World::complete().env("Policy__Hooks", "Preapproved");
        world.env("HooksPreapproval__PreapprovedHooksDirectory", directory).loaded().warnings
    };
    assert_eq!(with("/nowhere"), [Warning::NothingPreapproved]);
    assert_eq!(with("/"), []);
}

#[test]
fn a_rule_without_effect_prevents_the_start_instead_of_allowing_everything() {
    for (json, text) in [
        (r#"{"Policy": {"AllowdEngines": ["terraform"]}}"#, "did you mean Policy.AllowedEngines?"),
        (r#"{"Policy": {"Something": true}}"#, "`hawser schema` lists the rules"),
        (r#"{"Policy": {"PlanOnly": {"Enabled": true}}}"#, "`hawser schema` lists the rules"),
        (r#"{"Polcy": {"Something": true, "Else": true}}"#, "did you mean Policy?"),
        (r#"{"Policy": {"AllowedEngines": ""}}"#, "is a list, not a single value; write [ … ] in a file"),
        (r#"{"Policy": {"AllowedEngines": [null]}}"#, "is empty"),
        (r#"{"Policy": {"PlanOnly": ""}}"#, "is empty"),
        (r#"{"Policy": null}"#, "Policy (appsettings.Production.json): is empty"),
        (r#"{"Policy": ""}"#, "is a section, not a value or a list"),
        (r#"{"Policy": []}"#, "is a section, not a value or a list"),
        (r#"{"Policy": [{"PlanOnly": true}, {"Hooks": "None"}]}"#, "is a section, not a value or a list"),
        (r#"{"Policy": {"PlanOnly": null}}"#, "Policy.PlanOnly (appsettings.Production.json): is empty"),
        (r#"{"Policy": {"Hooks": null}}"#, "Policy.Hooks (appsettings.Production.json): is empty"),
        (r#"{"Policy": {"AllowedEngines": {}}}"#, "is a list, not a single value; write [ … ] in a file"),
        (r#"{"Engine": {"EnvironmentAllowList": {}}}"#, "is a list, not a single value"),
        (r#"{"Engine": {"EnvironmentAllowList": " "}}"#, "is a list, not a single value"),
        (r#"{"Engine": {"EnvironmentAllowList": [null]}}"#, "is empty"),
    ] {
        let problem = World::complete().file("appsettings.Production.json", json).one_problem();
        assert!(problem.to_string().contains(text), "{json}: {problem}");
    }
    for name in ["Policy__PlanOny", "POLICY:Something", "policy__AllowedEngines__0__More"] {
        let problem = World::complete().env(name, "true").one_problem();
        assert!(matches!(problem.fault, SettingFault::NotRule { .. }), "{name}: {problem}");
        assert!(problem.to_string().contains(&format!("environment variable {name}")), "{problem}");
    }
    let problem = World::complete().args(&["--Policy:PlanOny=true"]).one_problem();
    assert!(problem.to_string().contains("command line, --Policy:PlanOny"), "{problem}");
    // null resets a list, and unknown sections are still tolerated.
    let fine = r#"{"Policy": {"AllowedEngines": null}, "Polling": {"x": 1}}"#;
    assert_eq!(World::complete().file("appsettings.Production.json", fine).loaded().warnings.len(), 1);
}

#[test]
fn a_misplaced_rule_prevents_the_start_and_the_hint_has_its_place() {
    for text in [
        r#"{"Policy.PlanOnly": true}"#,
        r#"{"Policy__PlanOnly": true}"#,
        r#"{"policy::planonly": true}"#,
        r#"{"Runner": {"Policy": {"PlanOnly": true}}}"#,
        r#"{"Runner": {"PlanOnly": true}}"#,
        r#"{"PlanOnly": true}"#,
        r#"{"Polcy": {"PlanOnly": true}}"#,
        r#"{"Policies": {"PlanOnly": true}}"#,
        // Another unknown key in the same section hides nothing.
        r#"{"Hawser": {"A": 1, "Policy": {"PlanOnly": true}}}"#,
    ] {
        let problem = World::complete().file("appsettings.Production.json", text).one_problem().to_string();
        assert!(problem.contains("(appsettings.Production.json)"), "{text}: {problem}");
        // In one segment, only a colon separates.
        let is_one = ["Policy.", "Policy__", "policy::"].iter().any(|start| text.contains(start));
        let rule = if is_one { "Policy:PlanOnly" } else { "Policy.PlanOnly" };
        assert!(problem.ends_with(&format!("; did you mean {rule}?")), "{text}: {problem}");
    }
    // A dot separates sections in documents only.
    for (argument, rule) in
        [("--Policy.PlanOnly=true", "Policy:PlanOnly"), ("--Runner:Policy:PlanOnly=True", "Policy.PlanOnly")]
    {
        let problem = World::complete().args(&[argument]).one_problem();
        let hint = format!("; did you mean {rule}?");
        assert!(problem.to_string().ends_with(&hint), "{argument}: {problem}");
    }
    let text = r#"{"Hawser": {"Policy": {"AllowedEngines": ["terraform", "tofu"]}}}"#;
    let problem = World::complete().file("appsettings.Production.json", text).one_problem();
    assert_eq!(problem.key.as_deref(), Some("Hawser.Policy.AllowedEngines"));
    let problem = World::complete().env("Polcy__PlanOnly", "true").one_problem().to_string();
    assert!(problem.ends_with("; did you mean Policy.PlanOnly?"), "{problem}");
    // The same word in the settings of another program.
    let text = r#"{"MyApp": {"Git": {"Hooks": "x"}}}"#;
    assert_eq!(World::complete().file("appsettings.Production.json", text).warnings().len(), 1);
    // Variables of other programs, and our log categories.
    let others = World::complete()
        .env("POLICY", "x")
        .env("POLICY_SERVICE_HOST", "10.0.0.1")
        .env("MY__POLICY", "x")
        .env("Cache__Policy__Ttl", "5")
        .env("Logging__LogLevel__Hawser__Policy", "Debug");
    assert_eq!(others.warnings(), Vec::<String>::new());
}

#[test]
fn no_debug_output_shows_a_secret() {
    let world = World::complete()
        .env("Runner__Credentials__ClientSecret", SECRET)
        .args(&[&format!("--Runner:Credentials:ClientSecret={SECRET}")]);
    for text in [format!("{:?}", world.inputs), format!("{:?}", world.loaded())] {
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[test]
fn a_malformed_policy_entry_is_a_problem_with_key_value_and_layer() {
    let world = World::complete()
        .env("Policy__AllowedSources__0", "github.com/my-org/*")
        .env("Policy__AllowedSources__1", "https://github.com/my-org/*")
        .env("Policy__AllowedSources__2", "https://me:hunter2@github.com/*")
        .args(&["--Policy:AllowedModules:0=prod/net", "--Policy:AllowedFlags:0=Targt"])
        .args(&["--Policy:AllowedEngines:0=ansible", "--Policy:Hooks=Some"]);
    let text = world.load().unwrap_err().to_string();
    for line in [
        "6 problems with the settings",
        r#"Policy.AllowedSources.0 = "github.com/my-org/*" (environment variable Policy__AllowedSources__0): has no scheme"#,
        r#"Policy.AllowedSources.2 = "https://***@github.com/*" (environment variable Policy__AllowedSources__2): contains a user"#,
        r#"Policy.AllowedModules.0 = "prod/net" (command line, --Policy:AllowedModules:0): is not stack/namespace/module"#,
        r#"Policy.AllowedFlags.0 = "Targt" (command line, --Policy:AllowedFlags:0): is not a known flag; did you mean Target?"#,
        r#"Policy.AllowedEngines.0 = "ansible" (command line, --Policy:AllowedEngines:0): is not one of"#,
        r#"Policy.Hooks = "Some" (command line, --Policy:Hooks): is not one of"#,
    ] {
        assert!(text.contains(line), "{line}\nnot in\n{text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_secret_on_the_command_line_is_warned_about() {
    let world = World::complete().args(&["--Runner:Credentials:ClientSecret=another-long-secret"]);
    let key = "Runner.Credentials.ClientSecret".to_owned();
    let warnings = world.loaded().warnings;
    assert_eq!(warnings, [Warning::SecretOnCommandLine { key }]);
    assert!(!warnings[0].to_string().contains("another"));
}
