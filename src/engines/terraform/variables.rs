//! The values of variables that a task must have again in later tasks, whose requests do not contain them.
//!
//! | file | contents | used by |
//! |---|---|---|
//! | `init.tfvars` | the `Var` flags of the last Init | with OpenTofu: validate, plan, show, output |
//! | `inputs.tfvars` | the parameters of the last plan | plan; with OpenTofu: show, output |
//! | `plan.tfvars`, `destroy.tfvars` | what the apply of that plan must be given again | apply; with OpenTofu: show |
//!
//! An apply must be given the ephemeral variables, because no plan contains them: without them, OpenTofu applies their defaults
//! (tested with 1.12). Other variables are in the plan, but OpenTofu gets all of them: it needs those with which the plan is
//! encrypted, and refuses a plan whose values differ from those in the module's own files (`terraform.tfvars`).
//!
//! OpenTofu evaluates variables in backends, module sources and encryption before everything else, so every command that reads
//! the module or its state needs them. Only Init tells which: what was enough for Init is enough for them.
//!
//! The files stay until the next task of the same kind replaces them, like `inputs.tfvars`. An apply may run in a later process
//! of the runner, and may be repeated.

use std::collections::BTreeMap;
use std::path::Path;

use hawser_contract::{EngineTask, Task, TerraformArrayFlag};
use hcl_edit::Span as _;

use super::commands::inputs;
use crate::base::confined_dir::read_limited;
use crate::engines::declarations::{Declarations, LARGEST_FILE};
use crate::engines::{Direction, EngineError};
use crate::script::quote;
use crate::workspace::{PrivateFile, Tree};

/// The file for the apply of a plan.
pub(super) fn of_apply(direction: Direction) -> PrivateFile {
    match direction {
        Direction::Apply => PrivateFile::PLAN_VARIABLES,
        Direction::Destroy => PrivateFile::DESTROY_VARIABLES,
    }
}

/// The files that an Init or a plan leaves for later tasks.
pub(super) fn kept(
    task: &EngineTask,
    tree: &Tree,
    declarations: &Declarations,
    evaluates_early: bool,
) -> Result<Vec<(PrivateFile, String)>, EngineError> {
    let flags = flag_values(task, declarations);
    if task.task == Task::Init {
        // A plan refuses values for undeclared variables, and init does not.
        let declared = flags.iter().filter(|(name, _)| declarations.declares(name));
        return Ok(vec![(PrivateFile::INIT_VARIABLES, inputs(declared)?)]);
    }
    let mut values = if evaluates_early { init_values(tree) } else { BTreeMap::new() };
    values.extend(task.resolved_parameters.clone());
    values.extend(flags);
    let is_needed = |name: &str| match evaluates_early {
        true => declarations.declares(name),
        false => declarations.is_ephemeral(name),
    };
    let needed = values.iter().filter(|(name, _)| is_needed(name));
    Ok(vec![(of_apply(Direction::of(task.task)), inputs(needed)?)])
}

/// The commands of OpenTofu that take values of variables (1.12).
const COMMANDS: [&str; 30] = [
    "apply",
    "console",
    "destroy",
    "force_unlock",
    "get",
    "graph",
    "import",
    "init",
    "output",
    "plan",
    "providers",
    "providers_lock",
    "providers_mirror",
    "providers_schema",
    "refresh",
    "show",
    "state_list",
    "state_mv",
    "state_pull",
    "state_push",
    "state_replace_provider",
    "state_rm",
    "state_show",
    "taint",
    "untaint",
    "validate",
    "workspace_delete",
    "workspace_list",
    "workspace_new",
    "workspace_select",
];

/// Arguments for a user's commands, in the variables from which the engine reads them: the file with the variables of Init.
pub(super) fn for_commands(file: &Path) -> Vec<(String, String)> {
    let Some(path) = file.to_str().filter(|_| file.metadata().is_ok_and(|found| found.len() > 0)) else {
        return Vec::new();
    };
    let argument = quote(&format!("-var-file={path}"));
    COMMANDS.iter().map(|command| (format!("TF_CLI_ARGS_{command}"), argument.clone())).collect()
}

/// The values of `Var` flags in HCL.
fn flag_values(task: &EngineTask, declarations: &Declarations) -> BTreeMap<String, String> {
    let flags = task.flags.terraform_array_flags.known.iter();
    let flags = flags.filter(|it| it.flag == TerraformArrayFlag::Var).filter_map(|it| it.value.as_deref());
    let pairs = flags.filter_map(|flag| flag.split_once('='));
    pairs
        .map(|(name, value)| {
            let name = name.trim();
            let value = if declarations.takes_text(name) { quoted(value) } else { value.to_owned() };
            (name.to_owned(), value)
        })
        .collect()
}

/// A string in HCL.
fn quoted(text: &str) -> String {
    // JSON has the same escapes. Then only templates are special.
    serde_json::Value::from(text).to_string().replace("${", "$${").replace("%{", "%%{")
}

/// The values of the last Init. If there are none, the engine reports what it misses.
fn init_values(tree: &Tree) -> BTreeMap<String, String> {
    let read = tree.open_private(PrivateFile::INIT_VARIABLES).and_then(|it| read_limited(it, LARGEST_FILE));
    let text = String::from_utf8(read.unwrap_or_default()).unwrap_or_default();
    let Ok(body) = hcl_edit::parser::parse_body(&text) else { return BTreeMap::new() };
    let value = |it: &hcl_edit::structure::Attribute| {
        Some((it.key.as_str().to_owned(), text.get(it.value.span()?)?.trim().to_owned()))
    };
    body.attributes().filter_map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_one_string_in_hcl() {
        for text in ["", "plain", "it's \"so\" \\ ${x} %{y} $${z} %", "two\nlines\t\u{7f}\u{1} é漢🦀"] {
            let parsed = hcl_edit::parser::parse_expr(&quoted(text)).unwrap();
            assert_eq!(crate::engines::hcl_values::string(&parsed).as_deref(), Some(text));
        }
    }
}
