//! The commands of Terraform and OpenTofu, which are identical except for the program name.
//!
//! Prompts of `init`: with `-migrate-state` the answer is yes, given as `-force-copy`, so that it cannot answer another prompt.
//! With `-reconfigure` the answer is no. There is no flag for that, so init runs with `-input=false`, which makes it fail instead
//! of prompting, and if it fails because of this very prompt, it runs again with the answer on its stdin. Without either flag,
//! init fails.

use hawser_contract::{EngineTask, Flag, FlagLists, TerraformArrayFlag, TerraformFlag};

use super::{switches, variables};
use crate::engines::flags::{self, is_on, terraform_argument};
use crate::engines::{Direction, EngineCommands, EngineError, ResultPaths, SHOWN_PLAN, SHOWN_STATE, printed};
use crate::script::{EngineCommand, HiddenArguments, Piece, Retry};
use crate::workspace::PrivateFile;

/// The exit code of `plan -detailed-exitcode` if there are changes. A crash has the same code, but leaves no plan.
const CHANGES_PRESENT: i32 = 2;
/// What init reports if it may not ask whether to migrate the state.
pub(super) const MIGRATION_PROMPT: &str = "Can't ask approval for state migration";
/// Receives the stderr of the first init, in the step folder.
const INIT_STDERR: &str = "init-stderr";

/// An engine and the files that its commands use.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    pub name: &'a str,
    /// See [`Terraform`](super::Terraform).
    pub evaluates_early: bool,
    pub paths: &'a ResultPaths,
}

impl Program<'_> {
    /// An argument for each of these files that has values.
    fn variable_files(&self, files: &[PrivateFile]) -> Vec<String> {
        let files = files.iter().filter(|file| self.paths.has_text(**file));
        files.map(|file| format!("-var-file={}", self.paths.private(*file))).collect()
    }

    /// The same for commands that only need values if the engine evaluates variables early.
    fn early_files(&self, files: &[PrivateFile]) -> Vec<String> {
        if self.evaluates_early { self.variable_files(files) } else { Vec::new() }
    }

    fn command(&self, words: &[&str], more: impl IntoIterator<Item = String>) -> EngineCommand {
        let words = std::iter::once(self.name).chain(words.iter().copied()).map(str::to_owned);
        EngineCommand::new(words.chain(more))
    }
}

pub fn init(program: Program<'_>, request: &EngineTask) -> EngineCommands {
    let given = &request.flags.terraform_flags.known;
    let mut flags: Vec<Flag<TerraformFlag>> = switches(request).map(|flag| Flag::new(flag, None)).collect();
    for flag in given {
        match flags.iter_mut().find(|it| it.flag == flag.flag) {
            Some(earlier) => *earlier = flag.clone(),
            None => flags.push(flag.clone()),
        }
    }
    let migrates = is_on(&flags, TerraformFlag::MigrateState) || is_on(&flags, TerraformFlag::ForceCopy);
    if migrates && !flags.iter().any(|it| it.flag == TerraformFlag::ForceCopy) {
        flags.push(Flag::new(TerraformFlag::ForceCopy, None));
    }
    let mut words: Vec<String> = flags.iter().map(terraform_argument).collect();
    let array = &request.flags.terraform_array_flags.known;
    let hides = |flag| matches!(flag, TerraformArrayFlag::BackendConfig | TerraformArrayFlag::Var);
    words.extend(array.iter().filter(|it| !hides(it.flag)).map(terraform_argument));

    let mut init = program.command(&["init", "-input=false"], words.clone());
    let mut arguments = backend_arguments(request);
    arguments.extend(flags::terraform_variables(array).map(literal));
    if !arguments.is_empty() {
        init.hidden = Some(HiddenArguments { variable: "TF_CLI_ARGS_init", arguments });
    }
    if answers_no(request) {
        let asking = program.command(&["init"], words).variable("TF_INPUT", "1").stdin("no");
        let command = EngineCommand { hidden: init.hidden.clone(), ..asking };
        let stderr = program.paths.step(INIT_STDERR).into();
        init = init.retry(Retry { text: MIGRATION_PROMPT, stderr, command });
    }
    EngineCommands { engine: vec![init], ..EngineCommands::default() }
}

/// An argument without references to variables.
fn literal(argument: String) -> Vec<Piece> {
    vec![Piece::Text(argument)]
}

/// Splits the variables of a command into arguments for its command line and for the environment variable, where other users
/// cannot read them. Files are no secrets, but their values must not win over those of the flags, so they stay before them.
fn variable_arguments(
    variable: &'static str,
    files: Vec<String>,
    flags: &FlagLists,
) -> (Vec<String>, Option<HiddenArguments>) {
    let values: Vec<_> = flags::terraform_variables(&flags.terraform_array_flags.known).collect();
    if values.is_empty() {
        return (files, None);
    }
    let arguments = files.into_iter().chain(values).map(literal).collect();
    (Vec::new(), Some(HiddenArguments { variable, arguments }))
}

/// Whether init may prompt, and the answer is no.
pub fn answers_no(request: &EngineTask) -> bool {
    let given = &request.flags.terraform_flags.known;
    let on = |flag, asked| {
        if given.iter().any(|it| it.flag == flag) { is_on(given, flag) } else { asked }
    };
    on(TerraformFlag::Reconfigure, request.init.flags.auto_reconfigure_enabled)
        && !on(TerraformFlag::MigrateState, request.init.flags.auto_migrate_enabled)
        && !on(TerraformFlag::ForceCopy, false)
}

/// The backend settings of an init: `name=value`, or the name of a file. References to variables are not resolved.
pub fn backend_settings(request: &EngineTask) -> Vec<String> {
    let text = |(name, value): (String, Option<String>)| match value {
        Some(value) => format!("{name}={value}"),
        None => name,
    };
    merged_settings(request).into_iter().map(text).collect()
}

/// Each name once: first those of the namespace, then those of the module, then the array flags; the last one wins. An array
/// flag without `=` names a file.
fn merged_settings(request: &EngineTask) -> Vec<(String, Option<String>)> {
    let configuration = &request.init.backend_configuration;
    let namespace = match configuration.ignore_namespace_backend_configs {
        true => &[][..],
        false => &configuration.namespace_backend_configs,
    };
    let named = namespace.iter().chain(&configuration.module_backend_configs);
    let named = named.map(|it| (it.name.clone(), Some(it.value.clone())));
    let flags = request.flags.terraform_array_flags.known.iter();
    let flags = flags.filter(|it| it.flag == TerraformArrayFlag::BackendConfig).filter_map(|it| {
        let value = it.value.as_ref()?;
        Some(match value.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (value.clone(), None),
        })
    });
    let mut merged: Vec<(String, Option<String>)> = Vec::new();
    for (name, value) in named.chain(flags) {
        merged.retain(|(earlier, _)| *earlier != name);
        merged.push((name, value));
    }
    merged
}

fn backend_arguments(request: &EngineTask) -> Vec<Vec<Piece>> {
    let argument = |(name, value): (String, Option<String>)| {
        let mut pieces = match &value {
            Some(_) => vec![Piece::Text(format!("-backend-config={name}="))],
            None => vec![Piece::Text("-backend-config=".to_owned())],
        };
        pieces.extend(Piece::split(value.as_deref().unwrap_or(&name)));
        pieces
    };
    merged_settings(request).into_iter().map(argument).collect()
}

pub fn validate(program: Program<'_>) -> EngineCommands {
    let files = program.early_files(&[PrivateFile::INIT_VARIABLES]);
    EngineCommands { engine: vec![program.command(&["validate"], files)], ..EngineCommands::default() }
}

pub fn plan_file(direction: Direction) -> PrivateFile {
    match direction {
        Direction::Apply => PrivateFile::PLAN,
        Direction::Destroy => PrivateFile::DESTROY,
    }
}

pub fn plan(program: Program<'_>, direction: Direction, flags: &FlagLists) -> EngineCommands {
    let file = program.paths.private(plan_file(direction));
    let mut words = vec!["plan".to_owned()];
    if direction == Direction::Destroy {
        words.push("-destroy".to_owned());
    }
    words.extend([format!("-out={file}"), "-input=false".to_owned()]);
    let mut files = program.early_files(&[PrivateFile::INIT_VARIABLES]);
    files.push(format!("-var-file={}", program.paths.private(PrivateFile::INPUTS)));
    let (files, hidden) = variable_arguments("TF_CLI_ARGS_plan", files, flags);
    words.extend(files);
    words.extend(flags::terraform(flags));
    let plan = program.command(&[], words).also_success(CHANGES_PRESENT, file.clone().into());
    let shown = program.early_files(&[variables::of_apply(direction)]);
    let show = program.command(&["show", "-json"], shown.into_iter().chain([file.clone()]));
    EngineCommands {
        engine: vec![EngineCommand { hidden, ..plan }],
        collect: vec![show.stdout(program.paths.step(SHOWN_PLAN).into())],
        writes: vec![file],
        ..EngineCommands::default()
    }
}

pub fn apply(program: Program<'_>, direction: Direction, flags: &FlagLists) -> EngineCommands {
    let kept = variables::of_apply(direction);
    let (files, hidden) = variable_arguments("TF_CLI_ARGS_apply", program.variable_files(&[kept]), flags);
    // The plan is an argument, and flags after it would be arguments too.
    let words = files.into_iter().chain(flags::terraform(flags));
    let words = words.chain([program.paths.private(plan_file(direction))]);
    let apply = EngineCommand { hidden, ..program.command(&["apply"], words) };
    let shown = program.early_files(&[PrivateFile::INIT_VARIABLES, PrivateFile::INPUTS, kept]);
    let show = program.command(&["show", "-json"], shown);
    EngineCommands {
        engine: vec![apply],
        collect: vec![show.stdout(program.paths.step(SHOWN_STATE).into())],
        collect_after_failure: true,
        ..EngineCommands::default()
    }
}

pub fn output(program: Program<'_>, flags: &FlagLists) -> EngineCommands {
    let files = program.early_files(&[PrivateFile::INIT_VARIABLES, PrivateFile::INPUTS]);
    let (files, hidden) = variable_arguments("TF_CLI_ARGS_output", files, flags);
    let words = files.into_iter().chain(flags::terraform(flags));
    let output = EngineCommand { hidden, ..program.command(&["output", "-json"], words) };
    printed(PrivateFile::OUTPUT, output, program.paths)
}

/// The parameters as a file of variables. The server encodes the values as HCL. Each line must be one assignment to its name
/// and nothing else.
pub fn inputs<'a>(
    parameters: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Result<String, EngineError> {
    let mut text = String::new();
    for (name, value) in parameters {
        let refuse = |reason: String| EngineError::Parameter { name: name.clone(), reason };
        if hcl_edit::Ident::try_new(name.as_str()).is_err() {
            return Err(refuse("it is not the name of a variable".to_owned()));
        }
        let line = format!("{name}={value}\n");
        let body = hcl_edit::parser::parse_body(&line)
            .map_err(|error| refuse(format!("its value is not HCL: {}", error.message())))?;
        let mut structures = body.iter();
        let first = structures.next().and_then(|first| first.as_attribute());
        if first.is_none_or(|first| first.key.as_str() != name) || structures.next().is_some() {
            return Err(refuse("its value would set other variables too".to_owned()));
        }
        text.push_str(&line);
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
