//! The commands of Terraform and OpenTofu, which are identical except for the program name.
//!
//! Prompts of `init`: with `-migrate-state` the answer is yes, given as `-force-copy`, so that it cannot answer another prompt.
//! With `-reconfigure` the answer is no. There is no flag for that, and `-input=false` makes init fail instead of prompting
//! (tested with 1.11), so the answer goes to its stdin. Without either flag, init fails.

use hawser_contract::{EngineTask, Flag, FlagLists, TerraformArrayFlag, TerraformFlag};

use super::switches;
use crate::engines::flags::{self, is_on, terraform_argument};
use crate::engines::{Direction, EngineCommands, EngineError, ResultPaths, SHOWN_PLAN, SHOWN_STATE, printed};
use crate::script::{EngineCommand, HiddenArguments, Piece};
use crate::workspace::PrivateFile;

/// The exit code of `plan -detailed-exitcode` if there are changes. A crash has the same code, but leaves no plan.
const CHANGES_PRESENT: i32 = 2;

fn command(program: &str, words: &[&str], flags: impl IntoIterator<Item = String>) -> EngineCommand {
    let words = std::iter::once(program).chain(words.iter().copied()).map(str::to_owned);
    EngineCommand::new(words.chain(flags))
}

pub fn init(program: &str, request: &EngineTask) -> EngineCommands {
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
    let answers_no = answers_no(request);

    let mut words: Vec<String> = Vec::new();
    if !answers_no {
        words.push("-input=false".to_owned());
    }
    words.extend(flags.iter().map(terraform_argument));
    let array = &request.flags.terraform_array_flags.known;
    let hides = |flag| matches!(flag, TerraformArrayFlag::BackendConfig | TerraformArrayFlag::Var);
    words.extend(array.iter().filter(|it| !hides(it.flag)).map(terraform_argument));

    let mut init = command(program, &["init"], words);
    let mut arguments = backend_arguments(request);
    arguments.extend(flags::terraform_variables(array).map(literal));
    if !arguments.is_empty() {
        init.hidden = Some(HiddenArguments { variable: "TF_CLI_ARGS_init", arguments });
    }
    let mut environment = Vec::new();
    if answers_no {
        init = init.stdin("no");
        environment.push(("TF_INPUT", "1"));
    }
    EngineCommands { engine: vec![init], environment, ..EngineCommands::default() }
}

/// An argument without references to variables.
fn literal(argument: String) -> Vec<Piece> {
    vec![Piece::Text(argument)]
}

/// Passes the values of variables to a command through the environment, where other users cannot read them. `before` are
/// arguments that must come before them, and so are passed in the same way. Without such values, nothing changes.
fn hide_variables(
    command: EngineCommand,
    variable: &'static str,
    before: &[String],
    flags: &FlagLists,
) -> EngineCommand {
    let variables: Vec<_> = flags::terraform_variables(&flags.terraform_array_flags.known).collect();
    if variables.is_empty() {
        return command;
    }
    let arguments = before.iter().cloned().chain(variables).map(literal).collect();
    EngineCommand { hidden: Some(HiddenArguments { variable, arguments }), ..command }
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

pub fn validate(program: &str) -> EngineCommands {
    EngineCommands { engine: vec![command(program, &["validate"], [])], ..EngineCommands::default() }
}

pub fn plan_file(direction: Direction, places: &ResultPaths) -> String {
    match direction {
        Direction::Apply => places.private(PrivateFile::PLAN),
        Direction::Destroy => places.private(PrivateFile::DESTROY),
    }
}

pub fn plan(program: &str, direction: Direction, flags: &FlagLists, places: &ResultPaths) -> EngineCommands {
    let file = plan_file(direction, places);
    let mut words = vec!["plan".to_owned()];
    if direction == Direction::Destroy {
        words.push("-destroy".to_owned());
    }
    words.extend([format!("-out={file}"), "-input=false".to_owned()]);
    let inputs = format!("-var-file={}", places.private(PrivateFile::INPUTS));
    if flags::terraform_variables(&flags.terraform_array_flags.known).next().is_none() {
        words.push(inputs.clone());
    }
    words.extend(flags::terraform(flags));
    let plan = command(program, &[], words).also_success(CHANGES_PRESENT, file.clone().into());
    let plan = hide_variables(plan, "TF_CLI_ARGS_plan", &[inputs], flags);
    let show = command(program, &["show", "-json", &file], []).stdout(places.step(SHOWN_PLAN).into());
    let writes = vec![file];
    EngineCommands { engine: vec![plan], collect: vec![show], writes, ..EngineCommands::default() }
}

pub fn apply(program: &str, direction: Direction, flags: &FlagLists, places: &ResultPaths) -> EngineCommands {
    // The plan is an argument, and flags after it would be arguments too.
    let words = flags::terraform(flags).into_iter().chain([plan_file(direction, places)]);
    let apply = hide_variables(command(program, &["apply"], words), "TF_CLI_ARGS_apply", &[], flags);
    let show = command(program, &["show", "-json"], []).stdout(places.step(SHOWN_STATE).into());
    EngineCommands {
        engine: vec![apply],
        collect: vec![show],
        collect_after_failure: true,
        ..EngineCommands::default()
    }
}

pub fn output(program: &str, flags: &FlagLists, places: &ResultPaths) -> EngineCommands {
    let output = command(program, &["output", "-json"], flags::terraform(flags));
    printed(PrivateFile::OUTPUT, hide_variables(output, "TF_CLI_ARGS_output", &[], flags), places)
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
