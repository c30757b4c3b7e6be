//! What a module's folder says that must not be repeated, before a step and after it.
//!
//! Later tasks do not get what a plan was given, and the first log lines of an apply or an Output may repeat what no
//! file of the module says. So what a plan was given, and the sensitive outputs that plan and state have named, are kept for
//! the module's next task in `sensitive.json` of its private folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hawser_contract::{Task, TaskRequest};
use hcl_edit::structure::Body;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::cli_args::{self, Arguments};
use super::{SecretCollector, request};
use crate::base::confined_dir::read_limited;
use crate::engines::declarations::{Declarations, LARGEST_FILE};
use crate::engines::{Engine, Engines, ResultFile, ResultPaths, hcl_values, outputs};
use crate::masking::Rules;
use crate::workspace::{PrivateFile, Tree, Workspace, WorkspaceError};

/// What makes an environment variable the value of a variable of the module.
const VARIABLE_PREFIX: &str = "TF_VAR_";

/// `sensitive.json`.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct SavedSecrets {
    /// What the last plan was given.
    parameters: BTreeSet<String>,
    /// Sensitive outputs as the last plan has them.
    planned: BTreeSet<String>,
    /// Sensitive outputs as the state has them.
    outputs: BTreeSet<String>,
}

impl SavedSecrets {
    /// What cannot be read is as good as none: the module has other files that say the same.
    fn load(workspace: &Workspace) -> Self {
        let text = workspace.tree().and_then(|tree| tree.read_private(PrivateFile::Sensitive)).ok().flatten();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    fn save(&self, workspace: &Workspace) -> Result<(), WorkspaceError> {
        if *self == Self::load(workspace) {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        workspace.write_private(PrivateFile::Sensitive, &text).map(|_| ())
    }
}

/// What a request says by itself and by the module's environment: enough for one that is refused, whose module is not
/// touched.
pub(crate) fn of_refused(
    engines: &Engines,
    request: &TaskRequest,
    workspace: Option<&Workspace>,
    host: &BTreeMap<String, String>,
    rules: &Rules,
) -> Vec<String> {
    of_request(engines, request, &environment(request, workspace), host, rules).into_secrets()
}

fn environment(request: &TaskRequest, workspace: Option<&Workspace>) -> BTreeMap<String, String> {
    match request {
        TaskRequest::Engine(task) if task.task == Task::Init => task.init.resolved_env_vars.clone(),
        _ => workspace.and_then(|it| it.load_environment().ok()).unwrap_or_default(),
    }
}

fn of_request<'r>(
    engines: &Engines,
    request: &TaskRequest,
    environment: &BTreeMap<String, String>,
    host: &BTreeMap<String, String>,
    rules: &'r Rules,
) -> SecretCollector<'r> {
    let mut found = SecretCollector::new(rules);
    found.request(engines, request, &|name| environment.get(name).or_else(|| host.get(name)).cloned());
    for (name, value) in environment {
        found.named(name, value);
    }
    found
}

/// What is known before the first line of a step: from its request, from both environments and from the module's files.
/// There is no workspace where the names of the module cannot be used, and none is needed to find a revision.
pub(crate) fn before(
    engines: &Engines,
    request: &TaskRequest,
    workspace: Option<&Workspace>,
    host: &BTreeMap<String, String>,
    rules: &Rules,
) -> Result<Vec<String>, WorkspaceError> {
    let environment = environment(request, workspace);
    let lookup = |name: &str| environment.get(name).or_else(|| host.get(name)).cloned();
    let mut found = of_request(engines, request, &environment, host, rules);
    // Without a folder there is no more to find, and the task itself will say so.
    let (Some(task), Some(workspace)) = (request.engine_task(), workspace) else {
        return Ok(found.into_secrets());
    };
    let Ok(engine) = engines.get(&task.engine) else { return Ok(found.into_secrets()) };
    let Ok(tree) = workspace.tree() else { return Ok(found.into_secrets()) };
    let declarations = engine.declarations(&workspace.init_dir(), &tree).unwrap_or_else(|error| {
        let mut unknown = Declarations::default();
        unknown.warnings.push(error.to_string());
        unknown
    });
    let module = ModuleSecrets { declarations, rules };

    let mut given = SecretCollector::new(rules);
    given.request(engines, request, &lookup);
    for (name, value) in &task.resolved_parameters {
        if module.is_secret(name) {
            given.hcl(value);
        }
    }
    for (name, value) in request::variables(&task.flags) {
        if module.is_secret(name) {
            given.text_or_hcl(value);
        }
    }
    for (name, value) in environment.iter().chain(host) {
        if name.strip_prefix(VARIABLE_PREFIX).is_some_and(|variable| module.is_secret(variable)) {
            found.text_or_hcl(value);
        }
    }
    let arguments = environment.iter().chain(host).filter(|(name, _)| name.starts_with(cli_args::VARIABLE));
    let arguments: Vec<Arguments> = arguments.map(|(_, text)| Arguments::of(text)).collect();
    for (name, value) in arguments.iter().flat_map(|it| &it.variables) {
        found.named(name, value);
        if module.is_secret(name) {
            found.text_or_hcl(value);
        }
    }
    module.files(&tree, arguments.iter().flat_map(|it| &it.files), &mut found);
    let defaults = module.declarations.defaults().filter(|(name, _)| module.is_secret(name));
    found.texts(defaults.flat_map(|(_, texts)| texts));
    let earlier = tree.open_private(PrivateFile::Output);
    printed_outputs(
        &*engine,
        ResultFile::new(workspace.private_path(PrivateFile::Output), earlier),
        &mut found,
    );

    let mut kept = SavedSecrets::load(workspace);
    if matches!(task.task, Task::Plan | Task::PlanDestroy) {
        kept.parameters = given.into_secrets().into_iter().collect();
        kept.save(workspace)?;
    } else {
        found.extend(given.into_secrets());
    }
    found.extend(kept.parameters.into_iter().chain(kept.planned).chain(kept.outputs));
    Ok(found.into_secrets())
}

/// What is known when the script has ended: the sensitive outputs that the engine has named.
pub(crate) fn after(
    engines: &Engines,
    request: &TaskRequest,
    workspace: &Workspace,
    step: &Path,
    rules: &Rules,
) -> Vec<String> {
    let mut found = SecretCollector::new(rules);
    let (Some(task), Ok(places)) = (request.engine_task(), ResultPaths::new(&workspace.private_dir(), step))
    else {
        return Vec::new();
    };
    let Ok(engine) = engines.get(&task.engine) else { return Vec::new() };
    let is_plan = matches!(task.task, Task::Plan | Task::PlanDestroy);
    match (engine.sensitive_outputs(task.task, &places), task.task) {
        (Some(named), _) => {
            // A script that failed has shown nothing; then all that was known before still holds.
            let Ok(named) = named else { return Vec::new() };
            for value in named {
                found.json(&value);
            }
        }
        (None, Task::Output) => {
            let printed = places.open_collected(PrivateFile::Output);
            if !printed_outputs(&*engine, printed, &mut found) {
                return Vec::new();
            }
        }
        (None, _) => return Vec::new(),
    }
    let secrets = found.into_secrets();
    let mut kept = SavedSecrets::load(workspace);
    *if is_plan { &mut kept.planned } else { &mut kept.outputs } = secrets.iter().cloned().collect();
    if let Err(error) = kept.save(workspace) {
        // What the task has done is done; the next one may just not know these before it finds them itself.
        tracing::warn!(module = workspace.module(), "cannot keep what is to be masked: {error}");
    }
    secrets
}

/// The outputs that an Output task has left, and that are sensitive or look so. Says whether it has left any, or the word that
/// there are none.
fn printed_outputs(engine: &dyn Engine, file: ResultFile, found: &mut SecretCollector<'_>) -> bool {
    let Ok(Some(set)) = outputs::read(engine, file, &BTreeSet::new(), 0) else { return false };
    for output in set.outputs {
        if output.kind != "string"
            && output.sensitive == Some(true)
            && let Ok(value) = RawValue::from_string(output.value.clone())
        {
            found.json(&value);
        } else if output.sensitive == Some(true) {
            found.texts([&output.value]);
        } else {
            found.named(&output.name, &output.value);
        }
    }
    true
}

struct ModuleSecrets<'r> {
    declarations: Declarations,
    rules: &'r Rules,
}

impl ModuleSecrets<'_> {
    fn is_secret(&self, variable: &str) -> bool {
        self.declarations.is_sensitive(variable) || self.rules.is_secret_name(variable)
    }

    /// The files with values that an engine reads by itself, and those that it is told to read.
    fn files<'a>(
        &self,
        tree: &Tree,
        told: impl Iterator<Item = &'a String>,
        found: &mut SecretCollector<'_>,
    ) {
        let names = tree.file_names().unwrap_or_default();
        for name in names.into_iter().filter(|name| has_values(name)).chain(told.cloned()) {
            let read = tree.open_file(&name).and_then(|file| read_limited(file, LARGEST_FILE));
            let Some(text) = read.ok().and_then(|text| String::from_utf8(text).ok()) else { continue };
            if name.ends_with(".json") {
                let members = serde_json::from_str::<BTreeMap<String, &RawValue>>(&text);
                for (_, value) in members.unwrap_or_default().iter().filter(|(name, _)| self.is_secret(name))
                {
                    found.json(value);
                }
            } else {
                // The parser takes a byte order mark for a syntax error.
                let body: Result<Body, _> = text.trim_start_matches('\u{feff}').parse();
                let body = body.unwrap_or_default();
                for attribute in body.attributes().filter(|it| self.is_secret(it.key.as_str())) {
                    found.texts(hcl_values::texts(&attribute.value));
                }
            }
        }
    }
}

fn has_values(name: &str) -> bool {
    let name = name.strip_suffix(".json").unwrap_or(name);
    name == "terraform.tfvars" || name.ends_with(".auto.tfvars")
}

#[cfg(test)]
mod tests;
