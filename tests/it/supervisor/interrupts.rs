//! Cancels at every moment of a script.
//!
//! HAWSER_STRESS_ROUNDS and HAWSER_STRESS_TERRAFORM_ROUNDS set the number of cancels.

use futures::StreamExt as _;

use super::*;

/// Writes down that it started, whether that was after the cancel, and each interrupt, and shuts down as an engine does.
/// `$0` is the log.
const ENGINE: &str = "if grep -q 'job is being cancelled' \"$0\"; then touch late; fi
trap 'echo interrupt >>counted' INT; trap 'echo terminated >>counted' TERM
echo started >>counted
for i in 1 2 3 4 5 6 7 8; do if grep -q interrupt counted; then echo ended >>counted; exit 1; fi; sleep 0.01; done
echo ended >>counted";

const HOOKS: &[&str] = &[
    "true",
    "trap '' INT TERM",
    "trap 'true' INT TERM EXIT; for i in 1 2 3; do /bin/true; done",
    "exec 0<&- 1>&- 2>&-",
    "sleep 0.02 & sleep 0.03 &",
    "ulimit -n 60; set -eu",
    "set -m; (/bin/true; /bin/true)",
    "sleep 0.01; trap - INT",
];

fn rounds(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|it| it.parse().ok()).unwrap_or(default)
}

/// Where a cancel met the script: before, in or after the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Met {
    Before,
    Engine,
    After,
}

/// Several steps at a time are the load.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_at_any_moment_reaches_every_engine_exactly_once() {
    let rounds = futures::stream::iter(0..rounds("HAWSER_STRESS_ROUNDS", 200));
    let met: Vec<Met> = rounds
        .map(|round| tokio::spawn(cancelled_at(round)))
        .buffer_unordered(6)
        .map(Result::unwrap)
        .collect()
        .await;
    let count = |what| met.iter().filter(|it| **it == what).count();
    println!(
        "{} cancels: {} before the engine, {} in it, {} after it",
        met.len(),
        count(Met::Before),
        count(Met::Engine),
        count(Met::After)
    );
}

/// Cancels a step at a moment that depends on the round.
async fn cancelled_at(round: u64) -> Met {
    let hook = HOOKS[usize::try_from(round).unwrap() % HOOKS.len()];
    let own = format!("touch started\n{hook}");
    let step = Step::new("");
    let log = step.folder.output_path().display().to_string();
    let text = script(before(&own), &["sh", "-c", ENGINE, &log], after("echo after >>counted")).text();
    step.folder.set_script(&text.unwrap()).unwrap();
    step.launch();
    step.until_written("started").await;
    tokio::time::sleep(Duration::from_micros(round * 7919 % 250_000)).await;
    step.cancel(CancelKind::Graceful);
    step.wait().await;
    let counted = fs::read_to_string(step.work.join("counted")).unwrap_or_default();
    let counted: Vec<&str> = counted.lines().collect();
    let context = || format!("round {round}, {hook}: {counted:?} {:?} {:?}", step.exit(), step.records());
    let cancelled = step.folder.cancelled_by_supervisor().unwrap().is_some();
    let interrupt_sent = step.lines(Stream::Information).iter().any(|line| line.contains("interrupt sent"));
    let met = match counted.as_slice() {
        // The engine was not started, or ended by the interrupt before it could write.
        [] => Met::Before,
        ["started", "interrupt", "ended"] | ["interrupt", "started", "ended"] => Met::Engine,
        // It had done its work.
        ["started", "ended"] | ["started", "ended", "interrupt"] | ["started", "ended", "after"] => {
            Met::After
        }
        _ => panic!("{}", context()),
    };
    assert!(met != Met::Before || (cancelled && step.exit() != Exit::Code(0)), "{}", context());
    assert!(met != Met::Engine || (cancelled && interrupt_sent), "{}", context());
    assert!(interrupt_sent || !step.work.join("late").exists(), "it was started: {}", context());
    assert!(!(interrupt_sent && counted.contains(&"after")), "something followed: {}", context());
    assert!(cancelled || counted.last() == Some(&"after"), "{}", context());
    met
}

/// An apply that takes a moment.
const TERRAFORM: &str = "resource \"terraform_data\" \"slow\" {
  provisioner \"local-exec\" {
    command = \"echo provisioned; exec sleep 0.4\"
  }
}
";

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_at_any_moment_reaches_a_real_terraform_once() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("main.tf"), TERRAFORM).unwrap();
    let init = Command::new("terraform").args(["init", "-input=false"]).current_dir(folder.path()).output();
    assert!(init.unwrap().status.success());
    let folder = std::sync::Arc::new(folder);
    let rounds = futures::stream::iter(0..rounds("HAWSER_STRESS_TERRAFORM_ROUNDS", 30));
    let met: Vec<Met> = rounds
        .map(|round| tokio::spawn(terraform_cancelled_at(round, std::sync::Arc::clone(&folder))))
        .buffer_unordered(3)
        .map(Result::unwrap)
        .collect()
        .await;
    let count = |what| met.iter().filter(|it| **it == what).count();
    println!(
        "{} cancels: {} before terraform, {} in it, {} after it",
        met.len(),
        count(Met::Before),
        count(Met::Engine),
        count(Met::After)
    );
}

async fn terraform_cancelled_at(round: u64, module: std::sync::Arc<tempfile::TempDir>) -> Met {
    let directory = format!("-chdir={}", module.path().display());
    let state = format!("-state={round}.tfstate");
    let apply = ["terraform", &directory, "apply", "-auto-approve", "-input=false", "-no-color", &state];
    let step = Step::of(&script(before("touch started"), &apply, after("touch after")));
    step.launch();
    step.until_written("started").await;
    tokio::time::sleep(Duration::from_micros(round * 79_190 % 1_000_000)).await;
    step.cancel(CancelKind::Graceful);
    step.wait().await;
    let said = step.stdout().join("\n") + &step.lines(Stream::Stderr).join("\n");
    let context = || format!("round {round}: {:?} {said}", step.exit());
    let interrupt_sent = step.lines(Stream::Information).iter().any(|line| line.contains("interrupt sent"));
    let cancelled = step.folder.cancelled_by_supervisor().unwrap().is_some();
    let after = step.work.join("after").exists();
    assert!(!said.contains("Two interrupts"), "{}", context());
    assert!(!(interrupt_sent && after), "something followed: {}", context());
    assert!(cancelled || after, "{}", context());
    let lock = module.path().join(format!(".{round}.tfstate.lock.info"));
    assert!(!lock.exists(), "the state is still locked: {}", context());
    if !interrupt_sent {
        let met = if after || said.contains("Apply complete") { Met::After } else { Met::Before };
        assert!(met == Met::After || !said.contains("Terraform"), "it was started: {}", context());
        return met;
    }
    let texts: Vec<_> =
        step.records().iter().map(|it| String::from_utf8_lossy(&it.text).into_owned()).collect();
    let at = |text: &str| texts.iter().position(|line| line.contains(text));
    let (sent, provisioned) = (at("interrupt sent"), at("provisioned"));
    // An apply that was interrupted before its slow part does not get through it.
    let missed = provisioned.is_some() && sent < provisioned && said.contains("Apply complete");
    assert!(!missed && step.exit() != Exit::Code(0), "{}", context());
    Met::Engine
}
