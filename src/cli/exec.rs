//! `hawser exec` and `hawser shell`: a user's command in the directory of a module.
//!
//! This process locks the module and becomes the command. The lock is passed on, so the module stays locked until the command
//! and all processes that it leaves behind have ended, and exit code, signals, and terminal are the command's own.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use rustix::fs::Mode;

use super::overrides::{self, Overrides};
use super::{Failure, out};
use crate::audit::Audit;
use crate::base::process::find_only_in;
use crate::base::{files, retry};
use crate::engines::Engines;
use crate::local::area;
use crate::script::quote;
use crate::settings::{self, Loaded, Settings};
use crate::tasks::{ModuleCommand, TaskError};
use crate::workspace::{self, ModuleLock, Workspace, WorkspaceError};

/// How close a module's name must be to what was typed to be suggested.
const ALIKE: f64 = 0.8;

/// The word in front of the command.
const SEPARATOR: &str = "--";

/// Run a command in a module's directory, as its last task ran the engine
///
/// The command gets the directory, the environment variables, and the workspace or stack of the module's last task;
/// the rest of its environment is yours. Until it ends, no task of the module runs. It runs without a shell, its exit code is the
/// exit code of `hawser exec`, and it is recorded in the audit log. Hooks are not run: variables that only they set are missing.
///
/// Run it on the runner's machine (or in its container), as the runner's user, with the runner's settings for WorkingDirectory,
/// Engine, Policy, and Audit. The runner may be running or not, and other settings may be missing.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "hawser exec [--wait] <MODULE> [--SECTION:KEY=VALUE]... -- <COMMAND>...",
    after_help = "Examples:\n  \
        hawser exec prod/net/vpc -- terraform state list\n  \
        hawser exec prod/net/vpc -- tofu force-unlock 6227a3f4-11d0-4c3e-a1a5-0c7f8d1f6f33\n  \
        hawser exec prod/net/vpc -- pulumi cancel"
)]
pub(super) struct ExecArgs {
    #[command(flatten)]
    target: Target,
}

/// Open a shell in a module's directory, as its last task ran the engine
///
/// The shell is $SHELL, or bash. Until you leave it, no task of the module runs. See `hawser exec --help` for what it gets.
#[derive(Debug, clap::Args)]
pub(super) struct ShellArgs {
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, clap::Args)]
struct Target {
    /// STACK/NAMESPACE/MODULE, or the end of it if only one module has it; or the directory of a `hawser local` run
    #[arg(value_name = "MODULE")]
    module: String,
    /// Wait for a task that is running in the module, instead of failing
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    overrides: Overrides,
}

/// Splits the arguments of `hawser exec` into its own and the command. Everything after the first `--` belongs to the command,
/// also what looks like an option or a setting.
pub(super) fn split(arguments: impl Iterator<Item = OsString>) -> (Vec<OsString>, Vec<OsString>) {
    let mut own: Vec<OsString> = arguments.collect();
    let at = own.iter().position(|argument| argument == SEPARATOR);
    match at.filter(|_| own.get(1).is_some_and(|name| name == "exec")) {
        Some(at) => {
            let command = own.split_off(at).into_iter().skip(1).collect();
            (own, command)
        }
        None => (own, Vec::new()),
    }
}

/// Returns only if the command cannot be started.
pub(super) fn execute(args: ExecArgs, command: &[OsString]) -> Result<(), Failure> {
    let Some(program) = command.first() else {
        return Err(Failure::usage("no command to run")
            .hint("put it after `--`: `hawser exec MODULE -- terraform state list`"));
    };
    let (module, run) = Module::open(args.target, "hawser exec")?;
    let found = match program.to_str().filter(|name| !name.contains('/')) {
        Some(name) => find_only_in(name, &run.environment.path())
            .map_err(|error| Failure::not_found(error.to_string()))?,
        // As in a shell, a path is relative to the directory of the command.
        None => PathBuf::from(program),
    };
    module.become_command(run, &found, command)
}

/// Returns only if the shell cannot be started.
pub(super) fn shell(args: ShellArgs) -> Result<(), Failure> {
    let (module, run) = Module::open(args.target, "hawser shell")?;
    let own = std::env::var_os("SHELL").map(PathBuf::from).filter(|shell| shell.is_absolute());
    let found = own.map_or_else(|| find_only_in("bash", &run.environment.path()), Ok);
    let shell = found.map_err(|error| Failure::not_found(error.to_string()))?;
    let (name, directory) = (module.workspace.module(), run.directory.display());
    out::aside(format_args!("module {name} ({}) in {directory}", run.engine));
    out::aside("No task of this module runs until you leave this shell.");
    module.become_command(run, &shell, &[shell.clone().into_os_string()])
}

/// A module that is locked for a command.
struct Module {
    workspace: Workspace,
    settings: Settings,
    lock: ModuleLock,
}

impl Module {
    /// `holder` is the name of this command, for others that find the module locked.
    fn open(target: Target, holder: &str) -> Result<(Self, ModuleCommand), Failure> {
        files::keep_private();
        let Target { module, wait, overrides } = target;
        if let Some(option) = overrides.without_section() {
            let message = format!("{option} is not an option of `{holder}`, or comes after a setting");
            return Err(Failure::usage(message).hint(format!("`{holder} --help` lists the options")));
        }
        let loaded = overrides.read(settings::load_for_module);
        let loaded = loaded.map_err(|error| overrides::failure(&error))?;
        let is_chosen = loaded.sets_working_directory();
        let Loaded { mut settings, warnings, .. } = loaded;
        let found = find(&mut settings, &module, is_chosen);
        // A module of `hawser local` has settings of its own.
        if !matches!(found, Ok(Found { is_local: true, .. })) {
            for warning in &warnings {
                out::aside(format_args!("warning: {warning}"));
            }
        }
        let Found { workspace, is_local } = found?;
        check_owner(workspace.module_root())?;
        let lock = lock(&workspace, holder, wait)?;
        let workspace = workspace.of_checkout().map_err(failure)?;
        if is_local {
            // A module of `hawser local` contains its directory at the absolute path.
            let directory = workspace.init_dir();
            let directory = directory.strip_prefix(workspace.module_root()).unwrap_or(&directory);
            let directory = Path::new("/").join(directory);
            let module = workspace.module();
            out::aside(format_args!("module {module} of `hawser local` in {}", directory.display()));
        }
        let can_answer = io::stdin().is_terminal();
        let run =
            ModuleCommand::new(&settings, &Engines::default(), &workspace, can_answer).map_err(failure)?;
        if run.has_hook {
            out::aside("note: hooks are not run; variables that only they set are missing");
        }
        Ok((Self { workspace, settings, lock }, run))
    }

    /// Replaces this process. `words` are the command with its arguments.
    fn become_command(&self, run: ModuleCommand, program: &Path, words: &[OsString]) -> Result<(), Failure> {
        let recorded: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let audit = Audit::new(&self.settings);
        // As for a task, a full disk must not get in the way.
        if let Err(error) = audit.exec(self.workspace.module(), &run.engine, &recorded) {
            out::aside(format_args!("warning: {error}"));
        }
        self.lock
            .pass_on()
            .map_err(|error| Failure::temporary(format!("cannot pass on the module's lock: {error}")))?;
        // The same as for scripts of tasks.
        rustix::process::umask(Mode::from_raw_mode(0o022));
        let mut command = Command::new(program);
        if let Some((name, arguments)) = words.split_first() {
            command.arg0(name).args(arguments);
        }
        let error = command
            .current_dir(&run.directory)
            .env_clear()
            // Engine.EnvironmentAllowList is for tasks, which have no terminal.
            .envs(std::env::var_os("TERM").map(|terminal| ("TERM", terminal)))
            .envs(run.environment.into_variables())
            // Shells and some programs trust it.
            .env("PWD", &run.directory)
            .exec();
        let message = format!("cannot run {}: {error}", program.display());
        Err(match error.kind() {
            io::ErrorKind::NotFound => Failure::not_found(message),
            _ => Failure::not_started(message),
        })
    }
}

#[derive(Debug)]
struct Found {
    workspace: Workspace,
    is_local: bool,
}

/// Finds the module in the working directory, or else among those of `hawser local`, which have settings of their own and may
/// also be named by their directory. If the user has chosen the working directory, a module elsewhere cannot be meant, however
/// much its name fits.
fn find(settings: &mut Settings, name: &str, is_chosen: bool) -> Result<Found, Failure> {
    let (root, modules) = match workspace::find(&settings.working_directory, name) {
        Ok(workspace) => return Ok(Found { workspace, is_local: false }),
        Err(WorkspaceError::UnknownModule { root, modules, .. }) => (root, modules),
        Err(error) => return Err(not_found(error)),
    };
    let local = local_modules();
    let directory = Path::new(name).canonicalize().map(|directory| area::module_of(&directory)).ok();
    let end = format!("/{}", name.trim_matches('/'));
    let is_directory = |module: &str| Some(module) == directory.as_deref();
    let ends_so = |module: &str| format!("/{module}").ends_with(&end);
    let mut fitting: Vec<&(String, PathBuf)> = local.iter().filter(|(it, _)| is_directory(it)).collect();
    if fitting.is_empty() {
        fitting = local.iter().filter(|(module, _)| ends_so(module)).collect();
    }
    match fitting.as_slice() {
        [(module, area), ..] if is_chosen => {
            let error = WorkspaceError::UnknownModule { name: name.to_owned(), root, modules };
            Err(elsewhere(&error, module, &area::folders(area).working_directory))
        }
        [(module, area)] => {
            let folders = area::folders(area);
            let workspace = workspace::find(&folders, module).map_err(not_found)?;
            settings.working_directory = folders;
            (settings.engine, settings.policy) = Default::default();
            (settings.hooks_preapproval, settings.audit) = Default::default();
            Ok(Found { workspace, is_local: true })
        }
        [] => {
            let known = modules.iter().chain(local.iter().map(|(module, _)| module));
            let near = known.max_by(|one, other| {
                workspace::closeness(one, name).total_cmp(&workspace::closeness(other, name))
            });
            let near = near.filter(|module| workspace::closeness(module, name) >= ALIKE).cloned();
            Err(unknown(&WorkspaceError::UnknownModule { name: name.to_owned(), root, modules }, near))
        }
        several => {
            let modules: Vec<&str> = several.iter().map(|(module, _)| module.as_str()).collect();
            let (name, modules) = (name.to_owned(), modules.join(", "));
            Err(not_found(WorkspaceError::AmbiguousModule { name, modules }))
        }
    }
}

/// The module is one of `hawser local`, whose working directory is not the chosen one.
fn elsewhere(error: &WorkspaceError, module: &str, directory: &Path) -> Failure {
    Failure::usage(error.to_string()).hint(format!(
        "`hawser local` has the module {module}; to use it, pass --WorkingDirectory:WorkingDirectory={}",
        quote(&directory.to_string_lossy())
    ))
}

/// The name is wrong, or the working directory is.
fn unknown(error: &WorkspaceError, near: Option<String>) -> Failure {
    let settings = "`hawser settings` prints the working directory in effect and where it comes from";
    Failure::usage(error.to_string()).hint(match near {
        Some(module) => format!("did you mean {module}? {settings}"),
        None => settings.to_owned(),
    })
}

fn not_found(error: WorkspaceError) -> Failure {
    match error {
        WorkspaceError::UnknownModule { .. } => unknown(&error, None),
        WorkspaceError::AmbiguousModule { .. } => {
            Failure::usage(error.to_string()).hint("pass the whole name, STACK/NAMESPACE/MODULE")
        }
        error => failure(error),
    }
}

/// The modules of `hawser local`, each with its area.
fn local_modules() -> Vec<(String, PathBuf)> {
    let data = std::env::var_os(area::DATA_VARIABLE).map(PathBuf::from);
    area::data_directory(data).map(|data| area::modules(&data)).unwrap_or_default()
}

/// As another user, a command would leave files that the runner cannot use.
fn check_owner(root: &Path) -> Result<(), Failure> {
    let Ok(owner) = root.metadata().map(|metadata| metadata.uid()) else { return Ok(()) };
    if owner == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|it| quote(&it.to_string_lossy())).collect();
    let message = format!("{} belongs to another user (uid {owner})", root.display());
    let hint = format!("run it as the runner's user: `sudo -u '#{owner}' hawser {}`", arguments.join(" "));
    Err(Failure::usage(message).hint(hint))
}

fn lock(workspace: &Workspace, holder: &str, wait: bool) -> Result<ModuleLock, Failure> {
    let mut said = false;
    loop {
        match workspace.lock(holder) {
            Err(busy @ WorkspaceError::Busy { .. }) if !wait => {
                return Err(Failure::temporary(busy.to_string()).hint("pass --wait to wait until it is free"));
            }
            Err(busy @ WorkspaceError::Busy { .. }) => {
                if !std::mem::replace(&mut said, true) {
                    out::aside(format_args!("{busy}; waiting"));
                }
                thread::sleep(retry::MODULE_DIRECTORY);
            }
            locked => return locked.map_err(failure),
        }
    }
}

fn failure(error: impl Into<TaskError>) -> Failure {
    match error.into() {
        TaskError::Faulted(fault) | TaskError::Refused { fault, .. } => Failure::failed(fault.message),
        TaskError::Cancelled => Failure::failed("cancelled"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_after_the_first_separator_belongs_to_the_command() {
        let split = |line: &str| {
            let (own, command) = split(line.split(' ').map(OsString::from));
            [own, command].map(|words| words.join(" ".as_ref()).into_string().unwrap())
        };
        assert_eq!(
            split("hawser exec --wait a/b/c --A:B=c -- sh -c x -- --Runner:Id=y"),
            ["hawser exec --wait a/b/c --A:B=c", "sh -c x -- --Runner:Id=y"]
        );
        assert_eq!(split("hawser exec a/b/c --help"), ["hawser exec a/b/c --help", ""]);
        assert_eq!(split("hawser job list -- x"), ["hawser job list -- x", ""]);
    }
}
