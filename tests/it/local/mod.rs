//! `hawser local` end to end: the real program, the real engine, signals, pipes, and a terminal.

mod output;
mod terminal;

use std::fs;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::eventually::eventually_or;
use crate::support::world::HAWSER;

/// A user's directory, and a separate data directory for `hawser local`.
struct Case {
    root: TempDir,
}

impl Case {
    fn new() -> Self {
        let case = Self { root: tempfile::tempdir().unwrap() };
        fs::create_dir(case.module()).unwrap();
        case
    }

    fn with(main: &str) -> Self {
        let case = Self::new();
        case.write("main.tf", main);
        case
    }

    fn module(&self) -> PathBuf {
        self.root.path().join("module")
    }

    fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    fn write(&self, name: &str, contents: &str) {
        fs::write(self.module().join(name), contents).unwrap();
    }

    /// The command with a clean environment, outside of the user's directory.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(HAWSER);
        command.arg("local").args(arguments).current_dir(self.root.path());
        command.env("HAWSER_LOCAL_DIR", self.data()).env_remove("NO_COLOR").env_remove("TF_CLI_CONFIG_FILE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Done {
        Done::from(self.command(arguments).output().unwrap())
    }

    /// The contents of all state files.
    fn state(&self) -> String {
        let states = find(&self.data(), "terraform.tfstate");
        states.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    }
}

/// All files with this name below a folder.
fn find(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            paths.extend(find(&entry.path(), name));
        } else if entry.file_name() == name {
            paths.push(entry.path());
        }
    }
    paths
}

/// The output and the exit status of a run.
struct Done {
    status: ExitStatus,
    out: String,
    err: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { status: output.status, out: text(&output.stdout), err: text(&output.stderr) }
    }
}

impl Done {
    #[track_caller]
    fn succeeds(self) -> Self {
        assert!(self.status.success(), "{}\n{}\n{}", self.status, self.out, self.err);
        self
    }

    #[track_caller]
    fn fails(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    fn prints(self, text: &str) -> Self {
        assert!(self.out.contains(text), "no {text:?} in\n{}\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    fn reports(self, text: &str) -> Self {
        assert!(self.err.contains(text), "no {text:?} in\n{}", self.err);
        self
    }
}

fn wait(mut child: Child) -> ExitStatus {
    let pid = Pid::from_child(&child);
    eventually_or(
        || child.try_wait().unwrap(),
        || {
            kill_process(pid, Signal::KILL).unwrap();
            panic!("hawser local did not end");
        },
    )
}

#[test]
fn the_built_in_example_is_applied_and_destroyed_from_any_directory() {
    let case = Case::new();
    let done = case.run(&["--yes"]).succeeds();
    let done = done.prints("greeting  Hello, world!").prints("guests    [\"Ada\",\"Grace\"]");
    let done = done.prints("password  (sensitive)").prints("Applied in").prints("3 resources in the state");
    assert!(!done.out.contains("open sesame") && !done.out.contains('\u{1b}'), "{}", done.out);

    // A directory `examples/hello` of another project is not used, and the state is the same from everywhere.
    let elsewhere = case.root.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("examples/hello")).unwrap();
    fs::write(elsewhere.join("examples/hello/main.tf"), "resource \"terraform_data\" \"theirs\" {}").unwrap();
    let from_elsewhere = case.command(&["--plan"]).current_dir(&elsewhere).output().unwrap();
    Done::from(from_elsewhere).succeeds().prints("plan the example").prints("No changes.");

    case.run(&["--plan"]).succeeds().prints("No changes.").prints("Nothing was changed");
    // A value on the command line changes the plan, and a plan changes nothing.
    case.run(&["--plan", "--var", "name=Ada"])
        .succeeds()
        .prints("Plan: 2 to add, 1 to change, 2 to destroy.");
    case.run(&["--plan", "--destroy"]).succeeds().prints("3 to destroy").prints("Nothing was changed");
    assert!(case.state().contains("Hello, world!"));

    case.run(&["--destroy", "--yes"]).succeeds().prints("Destroyed in").prints("No resources are left");
    assert!(!case.state().contains("Hello, world!"));
}

#[test]
fn without_a_terminal_changes_need_a_yes_on_the_command_line() {
    let case = Case::with("resource \"terraform_data\" \"x\" {}");
    let module = case.module();
    case.run(&[module.to_str().unwrap()]).fails(64).reports("--yes").reports("--plan");
    assert_eq!(case.state(), "");
}

#[test]
fn the_engine_gets_uncommitted_and_ignored_variable_files_and_the_directory_does_not_change() {
    let case = Case::with(
        "variable \"who\" { type = string }\nvariable \"list\" { type = list(number) }\n\
         output \"said\" { value = \"${var.who} ${jsonencode(var.list)}\" }\n",
    );
    case.write("terraform.tfvars", "who = \"from a file\"\n");
    case.write(".gitignore", "*.tfvars\n");
    let module = case.module();
    let module = module.to_str().unwrap();
    case.run(&[module, "--yes", "--var", "list=[1, 2]"]).succeeds().prints("said  from a file [1,2]");
    let given = ["--var", "list=[]", "--var", "who=[\"x\"] ${y}"];
    case.run(&[&[module, "--yes"][..], &given].concat()).succeeds().prints("said  [\"x\"] ${y} []");
    case.run(&[module, "--yes", "--var", "whom=x"]).fails(1).prints("variable \"whom\" is not declared");
    let done = case.run(&[module, "--yes"]).fails(1).prints("No value for required variable");
    // The view has shown the reason; the runtime log adds nothing.
    assert_eq!(done.err, "");

    let mut names: Vec<_> =
        fs::read_dir(case.module()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".gitignore", "main.tf", "terraform.tfvars"]);
}

/// The root of the snapshot changes with the repository. The directory and its state do not.
#[test]
fn a_directory_keeps_its_state_when_the_repository_around_it_changes() {
    let case = Case::with("resource \"terraform_data\" \"x\" { input = \"kept\" }\n");
    let module = case.module();
    let module = module.to_str().unwrap();
    case.run(&[module, "--yes"]).succeeds().prints("1 to add");
    let init = |folder: &Path| {
        let git = Command::new("git").args(["init", "--quiet"]).current_dir(folder).status().unwrap();
        assert!(git.success());
    };
    init(case.root.path());
    case.run(&[module, "--plan"]).succeeds().prints("No changes.");
    init(&case.module());
    case.run(&[module, "--plan"]).succeeds().prints("No changes.");
    for root in [case.root.path(), &case.module()] {
        fs::remove_dir_all(root.join(".git")).unwrap();
    }
    case.run(&[module, "--plan"]).succeeds().prints("No changes.");
    init(case.root.path());
    case.run(&[module, "--destroy", "--yes"])
        .succeeds()
        .prints("1 to destroy")
        .prints("No resources are left");
    assert!(!case.state().contains("kept"));
}

#[test]
fn a_failed_job_shows_the_task_and_the_reason() {
    let case = Case::with(
        "resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" { command = \"echo the reason; exit 7\" }\n}\n",
    );
    let module = case.module();
    let done = case.run(&[module.to_str().unwrap(), "--yes"]).fails(1);
    let done =
        done.prints("ApplyFromPlan         | ").prints("the reason").prints("ApplyFromPlan failed after");
    // The runtime log adds nothing to the failure of a task.
    assert_eq!(done.err, "");

    case.write("main.tf", "variable \"needed\" {}\n");
    let done = case.run(&[module.to_str().unwrap(), "--plan"]).fails(1);
    done.prints("No value for required variable").prints("--var NAME=VALUE");

    case.write("main.tf", "this is no HCL");
    case.run(&[module.to_str().unwrap(), "--yes"]).fails(1).prints(" failed after");

    // The engine reports the syntax error, even if the file declares the variable.
    case.write("main.tf", "variable \"name\" { type = string }\noutput \"x\" {\n  value = [\n");
    let done = case.run(&[module.to_str().unwrap(), "--yes", "--var", "name=a"]).fails(1);
    let done = done.prints(" failed after").prints("main.tf line");
    assert!(!done.out.contains("is not declared"), "{}", done.out);
}

#[test]
fn a_neighboring_module_is_found_only_in_a_common_repository() {
    let case =
        Case::with("module \"x\" {\n  source = \"../beside\"\n}\noutput \"x\" { value = module.x.said }\n");
    let beside = case.root.path().join("beside");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("main.tf"), "output \"said\" { value = \"from beside\" }\n").unwrap();
    let module = case.module();
    let module = module.to_str().unwrap();
    case.run(&[module, "--yes"]).fails(1).prints("../beside");
    let git = Command::new("git").args(["init", "--quiet"]).current_dir(case.root.path()).status().unwrap();
    assert!(git.success());
    case.run(&[module, "--yes"]).succeeds().prints("x  from beside");
}

#[test]
fn a_missing_project_or_engine_is_reported_with_a_hint() {
    let case = Case::new();
    let module = case.module();
    let module = module.to_str().unwrap();
    case.run(&[module, "--yes"]).fails(64).reports("no .tf, .tofu, or Pulumi.yaml");
    case.run(&["nowhere", "--yes"]).fails(64).reports("nowhere is not a directory");
    // Before the terminal, without which it cannot ask.
    case.run(&["nowhere"]).fails(64).reports("nowhere is not a directory");
    case.run(&[module, "--engine", "ansible"]).fails(64).reports("expected one of tofu, terraform, pulumi");

    case.write("main.tf", "");
    let only_git = case.root.path().join("bin");
    fs::create_dir(&only_git).unwrap();
    let done = Done::from(case.command(&[module, "--yes"]).env("PATH", &only_git).output().unwrap());
    done.fails(69).reports("no engine is installed").reports("https://opentofu.org").reports("hashicorp.com");
    assert!(!case.data().exists(), "data was created for a job that never ran");
}

/// A module with an apply that runs until it is stopped. `setup` runs first.
fn endless(setup: &str) -> Case {
    Case::with(&format!(
        "resource \"terraform_data\" \"x\" {{\n  provisioner \"local-exec\" {{\n    interpreter = [\"bash\", \"-c\"]\n    \
         command = \"{setup}; echo it has started; for i in {{1..6000}}; do sleep 0.1; done\"\n  }}\n}}\n"
    ))
}

/// Starts an apply and waits until the engine is running.
fn start(case: &Case) -> (Child, BufReader<std::process::ChildStdout>) {
    let module = case.module();
    let mut child = case.command(&[module.to_str().unwrap(), "--yes"]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    read_until(&mut out, "(local-exec): it has started");
    (child, out)
}

fn read_until(out: &mut impl std::io::BufRead, text: &str) {
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "the output ended before {text:?}");
    }
}

#[test]
fn an_interrupt_cancels_the_job() {
    let case = endless("true");
    let (child, mut out) = start(&case);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(wait(child).code(), Some(1), "{rest}");
    assert!(rest.contains("Cancelling") && rest.contains("ApplyFromPlan         cancelled after"), "{rest}");
    assert!(rest.contains("still in place"), "{rest}");
}

#[test]
fn a_second_interrupt_kills_an_engine_that_ignores_the_first() {
    let case = endless("trap '' INT");
    let (child, mut out) = start(&case);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).unwrap();
    read_until(&mut out, "Cancelling");
    kill_process(pid, Signal::TERM).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(wait(child).code(), Some(1), "{rest}");
    assert!(rest.contains("Killing") && rest.contains("Cancelled after"), "{rest}");
}

#[test]
fn a_second_run_on_the_same_directory_is_refused() {
    let case = endless("true");
    let (child, _out) = start(&case);
    let module = case.module();
    case.run(&[module.to_str().unwrap(), "--yes"]).fails(75).reports("another hawser local is running on");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(wait(child).code(), Some(1));
}

#[test]
fn the_next_run_waits_for_the_engine_of_a_killed_run() {
    let case = Case::new();
    let (go_on, ran) = (case.root.path().join("go on"), case.root.path().join("ran"));
    case.write(
        "main.tf",
        &format!(
            "resource \"terraform_data\" \"x\" {{\n  provisioner \"local-exec\" {{\n    command = \"echo it has started; \
             while ! test -e '{}'; do sleep 0.1; done; echo once >> '{}'\"\n  }}\n}}\n",
            go_on.display(),
            ran.display()
        ),
    );
    let (mut killed, _out) = start(&case);
    killed.kill().unwrap();
    killed.wait().unwrap();

    let module = case.module();
    let mut next = case.command(&[module.to_str().unwrap(), "--yes"]).spawn().unwrap();
    let mut out = BufReader::new(next.stdout.take().unwrap());
    read_until(&mut out, "An earlier run on this directory was killed");
    fs::write(&go_on, "").unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(wait(next).success(), "{rest}");
    assert!(rest.contains("no changes"), "{rest}");
    assert_eq!(fs::read_to_string(ran).unwrap(), "once\n");
}

#[test]
fn a_closed_pipe_does_not_stop_the_job() {
    let case = Case::with("resource \"terraform_data\" \"x\" { input = \"kept\" }\n");
    let module = case.module();
    let mut child = case.command(&[module.to_str().unwrap(), "--yes"]).spawn().unwrap();
    drop(child.stdout.take());
    assert!(wait(child).success());
    assert!(case.state().contains("kept"));
}

/// All output is shown, and none of it is kept in memory.
#[test]
fn memory_does_not_grow_with_the_output() {
    const LINES: usize = 60_000;
    let case = Case::with(&format!(
        "resource \"terraform_data\" \"x\" {{\n  provisioner \"local-exec\" {{\n    quiet = true\n    \
         command = \"seq -f 'line %.0f.' {LINES}\"\n  }}\n}}\n"
    ));
    let module = case.module();
    let mut child = case.command(&[module.to_str().unwrap(), "--yes"]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    // The rest of the output is larger than the pipe, so the process is still running.
    let mut memory_at = |line: usize| {
        read_until(&mut out, &format!(": line {line}."));
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        own.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
    };
    let (early, late) = (memory_at(LINES / 10), memory_at(LINES - LINES / 10));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(wait(child).success(), "{rest}");
    assert!(late < early + 10_000, "{early} kB grew to {late} kB");
}

#[test]
fn a_proxy_in_the_environment_is_not_used() {
    let case = Case::with("output \"x\" { value = \"reached\" }\n");
    let module = case.module();
    let mut command = case.command(&[module.to_str().unwrap(), "--yes"]);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        command.env(name, "http://127.0.0.1:9");
    }
    let child = command.spawn().unwrap();
    assert!(wait(child).success());
}
