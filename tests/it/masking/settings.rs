//! Invalid redaction settings, and secret settings.

use assert_cmd::cargo::cargo_bin_cmd;

const SECRET: &str = "do-not-show-this";

fn hawser(command: &str, variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let output = cargo_bin_cmd!("hawser")
        .arg(command)
        .current_dir(folder.path())
        .env_clear()
        .env("HOME", folder.path())
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let printed =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.code(), printed)
}

#[test]
fn an_invalid_pattern_is_reported_with_its_layer_and_all_other_problems() {
    for command in ["run", "settings"] {
        let (code, printed) = hawser(
            command,
            &[
                ("Server__Url", "nonsense"),
                ("JobLogStream__RedactPatterns__0", "fine"),
                ("JobLogStream__RedactPatterns__1", "(unclosed"),
            ],
        );
        assert_eq!(code, Some(78), "{printed}");
        let problem = "JobLogStream.RedactPatterns.1 = \"(unclosed\" (environment variable JobLogStream__RedactPatterns__1): \
                       is not a regular expression: unclosed group";
        assert!(printed.contains(problem), "{printed}");
        assert!(printed.contains("Server.Url = \"nonsense\"") && printed.contains("Runner.Id"), "{printed}");
        assert!(!printed.contains("RedactPatterns.0 ="), "that pattern is valid: {printed}");
    }
}

#[test]
fn values_to_mask_appear_neither_as_settings_nor_in_problems() {
    let id = "3fa85f64-5717-4562-b3fc-2c963f66afa6";
    let complete = [
        ("Runner__Id", id),
        ("Runner__OrganizationId", id),
        ("Runner__Instance", "i"),
        ("Runner__Credentials__ClientId", "c"),
        ("Runner__Credentials__ClientSecret", SECRET),
        ("Server__Url", "https://example.com"),
    ];
    let with = |more: &[(&'static str, &'static str)]| -> Vec<(&'static str, &'static str)> {
        complete.iter().chain(more).copied().collect()
    };
    let (code, printed) = hawser("settings", &with(&[("JobLogStream__RedactValues__0", SECRET)]));
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("JobLogStream.RedactValues.0") && !printed.contains(SECRET), "{printed}");

    for wrong in [
        ("JobLogStream__RedactValues", SECRET),
        ("JobLogStream__RedactValues__first", SECRET),
        ("JobLogStream__RedactValues__0__deeper", SECRET),
        ("JobLogStream__RedactValue__0", SECRET),
        ("Runner__Credentials__ClientSecret__0", SECRET),
        ("Server__Url", "https://me:do-not-show-this@example.com"),
    ] {
        for command in ["settings", "run"] {
            let (_, printed) = hawser(command, &with(&[wrong, ("JobLogStream__BatchSizeLimit", "none")]));
            assert!(printed.contains("BatchSizeLimit") && !printed.contains(SECRET), "{wrong:?}:\n{printed}");
        }
    }
}
