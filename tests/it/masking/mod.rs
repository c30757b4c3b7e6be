//! No secret leaves the host: with a real hub, runner, git, and Terraform, and all text that reaches the hub and stdout.

mod attacks;
mod engine_values;
mod origins;
mod settings;

use std::fmt::Write as _;
use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hawser_contract::Task;
use hawser_dev_server::{JobKind, JobSnapshot, JobState};

use crate::support::eventually::eventually;
use crate::support::world::{Runner, World, job};

/// Contains characters that the encodings treat differently.
const SECRET: &str = r#"p@ss/w"ör'd+${7} x"#;
const MASK: &str = "***";

/// The secret in its encodings.
fn encodings() -> [(&'static str, String); 12] {
    let percent =
        percent_encoding::utf8_percent_encode(SECRET, percent_encoding::NON_ALPHANUMERIC).to_string();
    let lower =
        percent.replace("%2F", "%2f").replace("%2B", "%2b").replace("%7B", "%7b").replace("%7D", "%7d");
    [
        ("plain", SECRET.to_owned()),
        ("JSON", r#"p@ss/w\"ör'd+${7} x"#.to_owned()),
        ("JSON in ASCII", r#"p@ss/w\"\u00f6r'd+${7} x"#.to_owned()),
        ("HCL", r#"p@ss/w\"ör'd+$${7} x"#.to_owned()),
        ("shell", r#"p@ss/w"ör'\''d+${7} x"#.to_owned()),
        ("URL", percent.clone()),
        ("URL with small letters", lower.replace("%C3%B6", "%c3%b6")),
        ("form", percent.replace("%20", "+")),
        ("base64", STANDARD.encode(SECRET)),
        ("base64 for URLs", URL_SAFE_NO_PAD.encode(SECRET)),
        ("basic authorization", STANDARD.encode(format!("somebody:{SECRET}"))),
        ("hex", SECRET.bytes().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))),
    ]
}

/// Harmless variables, some of which look like secrets.
const HOST: [(&str, &str); 8] = [
    ("REDACTION_PASSWORD", SECRET),
    ("SHORT_TOKEN", "abcde"),
    ("OTHER_PASSWORD", "default"),
    ("CA_CREDENTIALS", "/usr/bin"),
    ("SIGNING_KEY_FILE", "/no/such/place/key.pem"),
    ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
    ("ARM_CLIENT_ID", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    ("REPOSITORY", "https://organization@dev.azure.com/organization/_git/x"),
];

fn lookalikes() -> [(&'static str, String); 12] {
    [
        ("its beginning", SECRET[..SECRET.len() - 2].to_owned()),
        ("one letter changed", SECRET.replace('7', "8")),
        ("capitals", SECRET.to_uppercase()),
        ("its name", "REDACTION_PASSWORD=(sensitive value)".to_owned()),
        ("a short value", "the value abcde of a token".to_owned()),
        ("a plain word", "the default of a password".to_owned()),
        ("a path that exists", "credentials are in /usr/bin".to_owned()),
        ("the name of a key file", "the key is in /no/such/place/key.pem".to_owned()),
        ("the id of a key", "AKIAIOSFODNN7EXAMPLE".to_owned()),
        ("the id of a client", "6ba7b810-9dad-11d1-80b4-00c04fd430c8".to_owned()),
        ("a user name in a URL", "https://dev.azure.com/organization/_git/x".to_owned()),
        ("base64 of something else", STANDARD.encode("p@ss/w is not all of it")),
    ]
}

/// A hook that prints each text to stderr, between markers, and then fails.
fn failing_hook(texts: &[(&str, String)]) -> String {
    let mut hook = "cat >&2 <<'END OF TEXTS'\n".to_owned();
    for (index, (_, text)) in texts.iter().enumerate() {
        let _ = writeln!(hook, "begin-{index} {text} end-{index}");
    }
    hook + "END OF TEXTS\nexit 3\n"
}

/// The texts as they arrive in each channel: log, fault, runtime log, and the answers to invocations.
async fn channels(texts: &[(&str, String)]) -> [(&'static str, String); 4] {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "")]);
    let mut runner = world.runner_with("one", &HOST);
    world.connected(1).await;
    let tasks = vec![Task::GetDefinitiveRevision, Task::GetModule, Task::Init];
    let mut spec = job(JobKind::Tasks(tasks), &url, "module");
    spec.hooks.init_before = Some(failing_hook(texts));
    let id = world.hub.submit(spec);
    let ended = world.ended(id).await;
    let error = ended.error.expect("the hook fails");
    assert_eq!(error.task, Task::Init);

    let mut answers = String::new();
    for (index, (_, text)) in texts.iter().enumerate() {
        // The runner logs unknown methods.
        let method = format!("begin-{index} {text} end-{index}");
        let answer = world.hub.invoke("one", &method, Vec::new()).await.unwrap();
        let _ = writeln!(answers, "{}", answer.unwrap_err());
    }
    let last = format!("end-{}", texts.len() - 1);
    eventually("the runtime log has all of them", || runner.log().contains(&last)).await;
    let runtime = runner.log();
    runner.kill();
    [
        ("log", world.messages(id).join("\n")),
        ("fault", format!("{}\n{}", error.message, error.details)),
        ("runtime log", runtime),
        ("answers", answers),
    ]
}

/// The line with the text at this index.
fn line(channel: &str, index: usize) -> &str {
    let (begin, end) = (format!("begin-{index} "), format!(" end-{index}"));
    let line = channel.lines().find(|line| line.contains(&begin) && line.contains(&end));
    let line = line.unwrap_or_else(|| panic!("no line {index} in\n{channel}"));
    let start = line.find(&begin).unwrap() + begin.len();
    &line[start..line.rfind(&end).unwrap()]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_in_twelve_encodings_is_masked_in_logs_faults_answers_and_the_runtime_log() {
    let texts = encodings();
    for (channel, output) in channels(&texts).await {
        for (index, (name, text)) in texts.iter().enumerate() {
            assert!(!output.contains(text), "{name} is in the {channel}:\n{output}");
            let line = line(&output, index);
            match *name {
                // The user name before it is not secret, but may share a character with it.
                "basic authorization" => assert!(line.ends_with(MASK), "{name} in the {channel}: {line}"),
                _ => assert_eq!(line, MASK, "{name} in the {channel}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn twelve_harmless_lookalikes_are_not_masked() {
    let texts = lookalikes();
    for (channel, output) in channels(&texts).await {
        for (index, (name, text)) in texts.iter().enumerate() {
            // The runtime log and the answers quote the name of the method.
            let quoted = matches!(channel, "runtime log" | "answers");
            let expected = if quoted { format!("{text:?}") } else { text.clone() };
            assert_eq!(line(&output, index), expected.trim_matches('"'), "{name} in the {channel}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_is_masked_even_if_no_script_ran() {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "")]);
    let settings = [("HooksPreapproval__Enabled", "true"), ("REDACTION_PASSWORD", SECRET)];
    let runner = world.runner_with("one", &settings);
    let mut spec = job(JobKind::Plan, &url, "refused");
    spec.env_vars.insert("API_TOKEN".into(), "hunter22".into());
    spec.hooks.init_before = Some(format!("login hunter22 '{SECRET}' somebody"));
    let ended = world.ended(world.hub.submit(spec)).await;
    let error = ended.error.clone().expect("no hook is approved");
    assert!(error.message.contains("login *** '***' somebody"), "{error:?}");
    let visible = seen(&world, &ended, &runner);
    assert!(!visible.contains("hunter22") && !visible.contains("p@ss"), "{visible}");
}

/// All text of a job that leaves the runner, except its results.
fn seen(world: &World, ended: &JobSnapshot, runner: &Runner) -> String {
    let error = ended.error.as_ref().map(|error| format!("{}\n{}", error.message, error.details));
    format!(
        "{}\n{}\n{}\n{:?}",
        world.messages(ended.id).join("\n"),
        error.unwrap_or_default(),
        runner.log(),
        ended.state
    )
}

/// The error about a damaged file of secrets does not quote it: the quote may be the secret.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_of_secrets_is_not_quoted_and_all_lines_are_masked() {
    // Every kind of damage that the messages of the parser would quote.
    tokio::join!(
        damaged_secrets(format!("\"{RECORDED}\"")),
        damaged_secrets(format!("{{\"version\": \"{RECORDED}\", \"is\": []}}")),
        damaged_secrets(format!("{{\"version\": 1, \"is\": \"{RECORDED}\"}}")),
    );
}

/// A secret that only the file contains.
const RECORDED: &str = "only-in-the-file-4711";

async fn damaged_secrets(damage: String) {
    let world = World::new().await;
    let url = world.repository("repo", &[("main.tf", "output \"x\" {\n  value = 1\n}\n")]);
    let gate = world.path("gate");
    let mut runner = world.runner("one");
    let mut spec = job(JobKind::Tasks(vec![Task::GetModule, Task::Init, Task::Validate]), &url, "damaged");
    spec.hooks.validate_before = Some(format!(
        "echo begin\nwhile [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done\necho it is {RECORDED}\n",
        world.dir.path().display(),
        gate.display()
    ));
    let id = world.hub.submit(spec);
    eventually("the script runs", || world.messages(id).iter().any(|line| line == "begin")).await;
    runner.kill();
    let name = format!("{id}.Validate");
    let folder = runner.step(id, Task::Validate).unwrap();
    fs::write(folder.join("secrets.json"), damage).unwrap();

    runner.restart();
    world.connected(1).await;
    fs::write(&gate, "").unwrap();
    let ended = world.ended(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let messages = world.messages(id);
    assert!(messages.iter().any(|line| line == "***"), "{messages:#?}");
    assert!(!messages.concat().contains(RECORDED), "{messages:#?}");
    let log = runner.log();
    assert!(log.contains(&format!("{name}/secrets.json cannot be read")), "{log}");
    assert!(!log.contains(RECORDED), "{log}");
    world.assert_no_violation();
}
