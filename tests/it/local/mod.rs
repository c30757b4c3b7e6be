//! `hawser local` as a person uses it: the real program, the real engine, signals, pipes and a terminal.

mod documents;
mod terminal;

use std::fs;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::support::eventually::eventually_or;
use crate::support::world::HAWSER;

/// A directory of a user, and a place of its own for what `hawser local` keeps.
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

    /// The command with a clean slate around it; the current directory is not the project's.
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

    /// Every state file that local runs have made, as text.
    fn state(&self) -> String {
        let states = found(&self.data(), "terraform.tfstate");
        states.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    }
}

/// All files of that name below a folder.
fn found(folder: &Path, name: &str) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            paths.extend(found(&entry.path(), name));
        } else if entry.file_name() == name {
            paths.push(entry.path());
        }
    }
    paths
}

/// What a run said, and how it ended.
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
    fn well(self) -> Self {
        assert!(self.status.success(), "{}\n{}\n{}", self.status, self.out, self.err);
        self
    }

    #[track_caller]
    fn badly(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    fn says(self, words: &str) -> Self {
        assert!(self.out.contains(words), "no {words:?} in\n{}\n{}", self.out, self.err);
        self
    }

    #[track_caller]
    fn warns(self, words: &str) -> Self {
        assert!(self.err.contains(words), "no {words:?} in\n{}", self.err);
        self
    }
}

fn wait(mut child: Child) -> ExitStatus {
    let pid = Pid::from_child(&child);
    eventually_or(
        || child.try_wait().unwrap(),
        || {
            kill_process(pid, Signal::KILL).unwrap();
            panic!("hawser local does not end");
        },
    )
}

#[test]
fn the_example_inside_the_program_is_applied_shown_and_taken_down_from_any_directory() {
    let case = Case::new();
    let done = case.run(&["--yes"]).well();
    let done = done.says("greeting  Hello, world!").says("guests    [\"Ada\", \"Grace\"]");
    let done = done.says("password  (sensitive)").says("Applied in").says("3 resources in the state");
    assert!(!done.out.contains("open sesame") && !done.out.contains('\u{1b}'), "{}", done.out);

    // The examples of somebody else's project are not meant, and the state is the same from everywhere.
    let elsewhere = case.root.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join("examples/hello")).unwrap();
    fs::write(elsewhere.join("examples/hello/main.tf"), "resource \"terraform_data\" \"theirs\" {}").unwrap();
    let from_elsewhere = case.command(&["--plan"]).current_dir(&elsewhere).output().unwrap();
    Done::from(from_elsewhere).well().says("plan the example").says("no changes");

    case.run(&["--plan"]).well().says("no changes").says("nothing was changed");
    // A value on the command line changes what is planned, and the plan changes nothing.
    case.run(&["--plan", "--var", "name=Ada"]).well().says("1 to change, 2 to replace");
    case.run(&["--plan", "--destroy"]).well().says("3 to destroy").says("nothing was changed");
    assert!(case.state().contains("Hello, world!"));

    case.run(&["--destroy", "--yes"]).well().says("Destroyed in").says("nothing is left");
    assert!(!case.state().contains("Hello, world!"));
}

#[test]
fn without_a_terminal_nothing_is_changed_unless_a_yes_is_given() {
    let case = Case::with("resource \"terraform_data\" \"x\" {}");
    let module = case.module();
    case.run(&[module.to_str().unwrap()]).badly(64).warns("--yes").warns("--plan");
    assert_eq!(case.state(), "");
}

#[test]
fn uncommitted_and_ignored_variable_files_reach_the_engine_and_the_directory_stays_clean() {
    let case = Case::with(
        "variable \"who\" { type = string }\nvariable \"list\" { type = list(number) }\n\
         output \"said\" { value = \"${var.who} ${jsonencode(var.list)}\" }\n",
    );
    case.write("terraform.tfvars", "who = \"from a file\"\n");
    case.write(".gitignore", "*.tfvars\n");
    let module = case.module();
    let module = module.to_str().unwrap();
    case.run(&[module, "--yes", "--var", "list=[1, 2]"]).well().says("said  from a file [1,2]");
    let given = ["--var", "list=[]", "--var", "who=[\"x\"] ${y}"];
    case.run(&[&[module, "--yes"][..], &given].concat()).well().says("said  [\"x\"] ${y} []");
    case.run(&[module, "--yes", "--var", "whom=x"]).badly(1).says("variable \"whom\" is not declared");
    case.run(&[module, "--yes"]).badly(1).says("No value for required variable");

    let mut names: Vec<_> = fs::read_dir(case.module()).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".gitignore", "main.tf", "terraform.tfvars"]);
}

/// The root of what is taken changes with the repository, the directory and what was made from it do not.
#[test]
fn a_directory_keeps_its_state_when_a_repository_comes_goes_or_gets_another_root() {
    let case = Case::with("resource \"terraform_data\" \"x\" { input = \"kept\" }\n");
    let module = case.module();
    let module = module.to_str().unwrap();
    case.run(&[module, "--yes"]).well().says("1 to create");
    let init = |folder: &Path| {
        let git = Command::new("git").args(["init", "--quiet"]).current_dir(folder).status().unwrap();
        assert!(git.success());
    };
    init(case.root.path());
    case.run(&[module, "--plan"]).well().says("no changes");
    init(&case.module());
    case.run(&[module, "--plan"]).well().says("no changes");
    for root in [case.root.path(), &case.module()] {
        fs::remove_dir_all(root.join(".git")).unwrap();
    }
    case.run(&[module, "--plan"]).well().says("no changes");
    init(case.root.path());
    case.run(&[module, "--destroy", "--yes"]).well().says("1 to destroy").says("nothing is left");
    assert!(!case.state().contains("kept"));
}

#[test]
fn a_job_that_fails_says_which_task_and_why_and_is_no_success() {
    let case = Case::with(
        "resource \"terraform_data\" \"x\" {\n  provisioner \"local-exec\" { command = \"echo the reason; exit 7\" }\n}\n",
    );
    let module = case.module();
    let done = case.run(&[module.to_str().unwrap(), "--yes"]).badly(1);
    done.says("Apply      | ").says("the reason").says("Apply failed after").warns("hawser.log");

    case.write("main.tf", "this is no HCL");
    case.run(&[module.to_str().unwrap(), "--yes"]).badly(1).says(" failed after");

    // The engine reports what is wrong with the file, also when the file declares what is given.
    case.write("main.tf", "variable \"name\" { type = string }\noutput \"x\" {\n  value = [\n");
    let done = case.run(&[module.to_str().unwrap(), "--yes", "--var", "name=a"]).badly(1);
    let done = done.says(" failed after").says("main.tf line");
    assert!(!done.out.contains("is not declared"), "{}", done.out);
}

#[test]
fn a_module_beside_a_directory_is_found_only_in_a_repository_that_holds_both() {
    let case =
        Case::with("module \"x\" {\n  source = \"../beside\"\n}\noutput \"x\" { value = module.x.said }\n");
    let beside = case.root.path().join("beside");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("main.tf"), "output \"said\" { value = \"from beside\" }\n").unwrap();
    let module = case.module();
    let module = module.to_str().unwrap();
    case.run(&[module, "--yes"]).badly(1).says("../beside").warns("hawser.log");
    let git = Command::new("git").args(["init", "--quiet"]).current_dir(case.root.path()).status().unwrap();
    assert!(git.success());
    case.run(&[module, "--yes"]).well().says("x  from beside");
}

#[test]
fn what_is_no_project_and_what_is_not_installed_is_said_with_what_to_do() {
    let case = Case::new();
    let module = case.module();
    let module = module.to_str().unwrap();
    case.run(&[module, "--yes"]).badly(64).warns("no .tf, .tofu or Pulumi.yaml");
    case.run(&["nowhere", "--yes"]).badly(64).warns("nowhere is not a directory");
    case.run(&[module, "--engine", "ansible"]).badly(64).warns("terraform, tofu and pulumi");

    case.write("main.tf", "");
    let only_git = case.root.path().join("bin");
    fs::create_dir(&only_git).unwrap();
    let done = Done::from(case.command(&[module, "--yes"]).env("PATH", &only_git).output().unwrap());
    done.badly(69).warns("no engine is installed").warns("https://opentofu.org").warns("hashicorp.com");
    assert!(!case.data().exists(), "something was made for what was never run");
}

/// A module whose apply goes on until it is stopped. `setup` runs before the wait.
fn endless(setup: &str) -> Case {
    Case::with(&format!(
        "resource \"terraform_data\" \"x\" {{\n  provisioner \"local-exec\" {{\n    interpreter = [\"bash\", \"-c\"]\n    \
         command = \"{setup}; echo it has begun; for i in {{1..6000}}; do sleep 0.1; done\"\n  }}\n}}\n"
    ))
}

/// Starts an apply and reads along until the engine says that it has begun.
fn begun(case: &Case) -> (Child, BufReader<std::process::ChildStdout>) {
    let module = case.module();
    let mut child = case.command(&[module.to_str().unwrap(), "--yes"]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    read_until(&mut out, "(local-exec): it has begun");
    (child, out)
}

fn read_until(out: &mut impl std::io::BufRead, words: &str) {
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "it ended before it said {words:?}");
    }
}

#[test]
fn an_interrupt_cancels_through_the_hub_and_is_no_success() {
    let case = endless("true");
    let (child, mut out) = begun(&case);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(wait(child).code(), Some(1), "{rest}");
    assert!(rest.contains("Cancelling") && rest.contains("Apply      cancelled after"), "{rest}");
    assert!(rest.contains("stays changed"), "{rest}");
}

#[test]
fn a_second_interrupt_kills_an_engine_that_does_not_listen_to_the_first() {
    let case = endless("trap '' INT");
    let (child, mut out) = begun(&case);
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
fn a_second_run_on_the_same_directory_is_sent_away_and_the_first_goes_on() {
    let case = endless("true");
    let (child, _out) = begun(&case);
    let module = case.module();
    case.run(&[module.to_str().unwrap(), "--yes"]).badly(75).warns("another hawser local is at work on");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(wait(child).code(), Some(1));
}

#[test]
fn an_engine_that_outlives_a_killed_run_is_waited_for_and_its_work_counts() {
    let case = Case::new();
    let (go_on, ran) = (case.root.path().join("go on"), case.root.path().join("ran"));
    case.write(
        "main.tf",
        &format!(
            "resource \"terraform_data\" \"x\" {{\n  provisioner \"local-exec\" {{\n    command = \"echo it has begun; \
             while ! test -e '{}'; do sleep 0.1; done; echo once >> '{}'\"\n  }}\n}}\n",
            go_on.display(),
            ran.display()
        ),
    );
    let (mut killed, _out) = begun(&case);
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
fn a_reader_that_goes_away_does_not_stop_the_job() {
    let case = Case::with("resource \"terraform_data\" \"x\" { input = \"kept\" }\n");
    let module = case.module();
    let mut child = case.command(&[module.to_str().unwrap(), "--yes"]).spawn().unwrap();
    drop(child.stdout.take());
    assert!(wait(child).success());
    assert!(case.state().contains("kept"));
}

/// Everything that the engine says is shown and nothing of it kept, whatever the length of the job.
#[test]
fn a_job_that_writes_much_needs_no_more_memory_for_it() {
    const LINES: usize = 60_000;
    let case = Case::with(&format!(
        "resource \"terraform_data\" \"x\" {{\n  provisioner \"local-exec\" {{\n    quiet = true\n    \
         command = \"seq -f 'line %.0f.' {LINES}\"\n  }}\n}}\n"
    ));
    let module = case.module();
    let mut child = case.command(&[module.to_str().unwrap(), "--yes"]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    // More is still to be written than a pipe holds, so it is there to be looked at.
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
fn a_proxy_in_the_environment_does_not_come_between_hub_and_runner() {
    let case = Case::with("output \"x\" { value = \"reached\" }\n");
    let module = case.module();
    let mut command = case.command(&[module.to_str().unwrap(), "--yes"]);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        command.env(name, "http://127.0.0.1:9");
    }
    let child = command.spawn().unwrap();
    assert!(wait(child).success());
}
