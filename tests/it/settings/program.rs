//! `hawser settings`, `hawser schema`, and the runtime log, as processes.

use std::process::Command;

use assert_cmd::cargo::cargo_bin_cmd;
use hawser::masking::{Rules, SecretStore};
use hawser::settings::SettingsInputs;
use hawser::settings::model::{JobLogStreamSettings, Level, LoggingSettings};

use super::{ID, SECRET, World};

#[test]
fn hawser_settings_prints_values_with_their_origin_and_masks_secrets() {
    let world = World::complete()
        .file("appsettings.Production.json", r#"{"Policy": {"AllowedEngines": [], "AllowedSources": null}}"#);
    let output = cargo_bin_cmd!("hawser")
        .current_dir(world.dir.path())
        .env_clear()
        .env("HOME", "/home/me")
        .env("Runner__Credentials__ClientSecret", SECRET)
        .env("Server__Ulr", "x")
        .args(["settings", "--Runner:Instance", "blue\nline", "--urls=http://*:80"])
        .output()
        .unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{stderr}");
    let row = |key: &str| {
        let line = stdout.lines().find(|line| line.split_whitespace().next() == Some(key));
        let line = line.unwrap_or_else(|| panic!("no {key} in\n{stdout}"));
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let secret = "Runner.Credentials.ClientSecret";
    let from = "environment variable Runner__Credentials__ClientSecret";
    assert_eq!(row(secret), [secret, "********", from]);
    assert_eq!(row("Runner.Id"), ["Runner.Id", ID, "appsettings.json"]);
    assert_eq!(row("Runner.Instance"), ["Runner.Instance", "blue\\nline", "command line, --Runner:Instance"]);
    assert_eq!(row("Runner.MaxConcurrentSteps")[1..], ["4", "default"]);
    assert_eq!(row("Logging.LogLevel.Default")[1..], ["Information", "default"]);
    assert_eq!(row("WorkingDirectory.WorkingDirectory")[1..], ["/home/me/.snapcd/runner", "default"]);
    let columns: Vec<_> = stdout.lines().filter_map(|line| line.find("appsettings.json")).collect();
    assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "not aligned:\n{stdout}");
    assert!(!stdout.contains(SECRET) && !stderr.contains(SECRET));
    assert!(stderr.contains("warning: Server.Ulr"), "{stderr}");
    // The first allows nothing, the second everything.
    assert_eq!(row("Policy.AllowedEngines")[1..], ["[] (nothing is allowed)", "appsettings.Production.json"]);
    assert_eq!(row("Policy.AllowedSources")[1..], ["not set (everything is allowed)", "default"]);
    assert_eq!(row("JobLogStream.RedactValues")[1..], ["[]", "default"]);
    assert_eq!(row("Runner.DrainTimeoutSeconds")[1..], ["not set", "default"]);
}

#[test]
fn hawser_settings_with_problems_prints_them_and_exits_78() {
    let world = World::empty();
    let output = cargo_bin_cmd!("hawser")
        .current_dir(world.dir.path())
        .env_clear()
        .args(["settings", "--Runner:Id=x", "--Servr:Url=http://x", "--Runner:Instance=blue"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let row = |key: &str| {
        let line = stdout.lines().find(|line| line.split_whitespace().next() == Some(key));
        line.map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>())
    };
    assert_eq!(row("Server.Url").unwrap()[1..], ["not set (required)", "-"]);
    assert_eq!(row("Runner.Instance").unwrap()[1..], ["blue", "command line, --Runner:Instance"]);
    assert_eq!(row("Runner.MaxConcurrentSteps").unwrap()[1..], ["4", "default"]);
    assert_eq!(row("Runner.Id"), None, "it is listed as a problem");
    assert!(
        stderr.contains("5 problems with the settings") && stderr.contains("Runner.Id = \"x\""),
        "{stderr}"
    );
    assert!(stderr.contains("did you mean Server?"), "{stderr}");
}

#[test]
fn hawser_clean_needs_only_the_working_directory() {
    let clean = |world: &World, arguments: &[&str]| {
        let output = cargo_bin_cmd!("hawser")
            .current_dir(world.dir.path())
            .env_clear()
            .arg("clean")
            .args(arguments)
            .output()
            .unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(printed).unwrap())
    };
    let text = r#"{"Runner": {"Id": "x"}, "WorkingDirectory": {"WorkingDirectory": "work", "TempDirectory": "temp"}}"#;
    let world = World::empty().file("appsettings.json", text);
    std::fs::create_dir(world.dir.path().join("work")).unwrap();
    assert_eq!(clean(&world, &[]), (Some(0), "nothing to remove\n".to_owned()));
    for (argument, text) in [
        ("--WorkingDirectory:TempDirectory=", "1 problem with the settings"),
        ("--Source:CacheEnabled=maybe", "1 problem with the settings"),
        ("--WorkingDirectory:WorkingDirectory=elsewhere", "does not exist"),
    ] {
        let (code, printed) = clean(&world, &[argument]);
        assert!(code == Some(78) && printed.contains(text), "{argument}: {printed}");
    }
    let broken = world.file("appsettings.Production.json", "{");
    let (code, printed) = clean(&broken, &[]);
    assert!(
        code == Some(78) && printed.contains("appsettings.Production.json: is not valid JSON"),
        "{printed}"
    );
}

#[test]
fn hawser_run_with_a_missing_ca_file_reports_it_and_exits_78() {
    let world = World::complete();
    let output = cargo_bin_cmd!("hawser")
        .current_dir(world.dir.path())
        .env_clear()
        .env("HOME", world.dir.path())
        .args(["run", "--Server:CaFile=no-such.pem"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    let parts = ["Server.CaFile", "no-such.pem", "No such file"];
    assert!(parts.iter().all(|part| stderr.contains(part)), "{stderr}");
}

#[test]
fn the_host_name_comes_from_the_machine() {
    let inputs = SettingsInputs::from_process(Vec::new()).unwrap();
    let uname = Command::new("uname").arg("-n").output().unwrap().stdout;
    assert_eq!(inputs.host_name, String::from_utf8(uname).unwrap().trim());
}

#[test]
fn hawser_schema_prints_the_published_files() {
    for (arguments, published) in [
        (&["schema"][..], include_str!("../../../schema/appsettings.schema.json")),
        (&["schema", "hub"][..], include_str!("../../../schema/hub.schema.json")),
    ] {
        let output = cargo_bin_cmd!("hawser").args(arguments).output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), published);
    }
}

/// The next test runs this in a separate process, because a log cannot be uninstalled.
#[test]
#[ignore = "run by the_runtime_log_goes_to_stdout_filtered_and_plain_in_a_pipe"]
fn runtime_log_child() {
    let log_level = [("Default".to_owned(), Level::Debug), ("Hawser.Hub".to_owned(), Level::Warning)];
    let logging = LoggingSettings { log_level: log_level.into() };
    let secret_store = SecretStore::new(Rules::new(&JobLogStreamSettings::default()).unwrap());
    hawser::observe::log_filter::init(&logging, None, secret_store.clone()).unwrap();
    tracing::debug!(target: "hawser::runner", step = 7, "shown by default");
    tracing::trace!(target: "hawser::runner", "hidden by default");
    tracing::warn!(target: "hawser::hub::codec", "shown by category");
    tracing::info!(target: "hawser::hub::codec", "hidden by category");
    tracing::info!(target: "hyper::client", "hidden, another crate");
    hawser::observe::log_filter::init(&logging, None, secret_store.clone()).unwrap_err();
}

#[test]
fn the_runtime_log_goes_to_stdout_filtered_and_plain_in_a_pipe() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "settings::program::runtime_log_child", "--ignored", "--nocapture"])
        .env_remove("NO_COLOR")
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}");
    let lines: Vec<_> =
        stdout.lines().filter(|line| line.contains("hidden") || line.contains("shown")).collect();
    assert_eq!(lines.len(), 2, "{stdout}");
    assert!(lines[0].contains("DEBUG hawser::runner: shown by default step=7"), "{stdout}");
    assert!(lines[1].contains(" WARN hawser::hub::codec: shown by category"), "{stdout}");
    let time = lines[0].split_whitespace().next().unwrap();
    time.parse::<jiff::Timestamp>().unwrap();
    assert!(!stdout.contains('\u{1b}'));
}
