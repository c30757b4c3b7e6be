//! The secrets in a module's folder, before and after a step.
//!
//! The requests of later tasks do not contain the parameters of the plan, but their logs may. So the secrets of a plan's
//! request, and the sensitive outputs and attributes in its plan and state, are saved for the module's next task in `sensitive.json` of its
//! private folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hawser_contract::{OutputSet, Task, TaskRequest};
use hcl_edit::structure::Body;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::cli_args::{self, Arguments};
use super::{SecretCollector, encryption, request};
use crate::base::confined_dir::read_limited;
use crate::engines::declarations::{Declarations, LARGEST_FILE};
use crate::engines::{Engines, ResultPaths, hcl_values, outputs};
use crate::masking::Rules;
use crate::workspace::{PrivateFile, Tree, Workspace, WorkspaceError};

/// The prefix of environment variables that set variables of the module.
const VARIABLE_PREFIX: &str = "TF_VAR_";

/// `sensitive.json`.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct SavedSecrets {
    /// From the request of the last plan.
    parameters: BTreeSet<String>,
    /// Sensitive outputs and attributes in the last plan.
    planned: BTreeSet<String>,
    /// Sensitive outputs and attributes in the state after the last apply.
    state: BTreeSet<String>,
    /// From the last Output task since then.
    outputs: BTreeSet<String>,
}

impl SavedSecrets {
    /// Empty if the file cannot be read.
    fn load(workspace: &Workspace) -> Self {
        let tree = workspace.tree();
        tree.and_then(|tree| tree.read_json(PrivateFile::SENSITIVE)).ok().flatten().unwrap_or_default()
    }

    fn save(&self, workspace: &Workspace) -> Result<(), WorkspaceError> {
        match *self == Self::load(workspace) {
            true => Ok(()),
            false => workspace.tree()?.write_json(PrivateFile::SENSITIVE, self),
        }
    }
}

/// The secrets in a request and in the module's environment. That is enough for a request that is refused.
pub(crate) fn of_refused(
    engines: &Engines,
    request: &TaskRequest,
    workspace: Option<&Workspace>,
    host: &BTreeMap<String, String>,
    rules: &Rules,
) -> Vec<String> {
    let environment = environment(engines, request, workspace);
    let mut found = of_request(engines, request, &environment, host, rules);
    found.all_named(&environment);
    found.into_secrets()
}

/// The variables of the module, with those that select its backend: a URL may contain credentials.
fn environment(
    engines: &Engines,
    request: &TaskRequest,
    workspace: Option<&Workspace>,
) -> BTreeMap<String, String> {
    match request {
        TaskRequest::Engine(task) if task.task == Task::Init => task.init.resolved_env_vars.clone(),
        _ => {
            let mut variables = workspace.and_then(|it| it.load_environment().ok()).unwrap_or_default();
            let backend = || {
                let task = request.engine_task()?;
                let folder = workspace?.private_dir();
                let paths = ResultPaths::new(&folder, &folder).ok()?;
                engines.get(&task.engine).ok()?.backend_variables(task, &paths).ok()
            };
            variables.extend(
                backend().unwrap_or_default().into_iter().map(|(name, value)| (name.to_owned(), value)),
            );
            variables
        }
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
    found
}

/// The secrets that are known before the first line of a step: from its request, both environments and the module's files.
/// Without a workspace, the names of the module are invalid, or it is not needed.
pub(crate) fn before(
    engines: &Engines,
    request: &TaskRequest,
    workspace: Option<&Workspace>,
    host: &BTreeMap<String, String>,
    rules: &Rules,
) -> Result<Vec<String>, WorkspaceError> {
    let environment = environment(engines, request, workspace);
    let mut given = of_request(engines, request, &environment, host, rules);
    let module = request.engine_task().zip(workspace).and_then(|(task, workspace)| {
        Some((task, workspace, engines.get(&task.engine).ok()?, workspace.tree().ok()?))
    });
    // If there is no module, the task itself reports that.
    let Some((task, workspace, engine, tree)) = module else {
        given.all_named(&environment);
        return Ok(given.into_secrets());
    };
    let declarations = engine.declarations(&tree).unwrap_or_else(|error| {
        let mut unknown = Declarations::default();
        unknown.warnings.push(error.to_string());
        unknown
    });
    let module = ModuleSecrets { declarations, rules };
    for (_, value) in task.resolved_parameters.iter().filter(|(name, _)| module.is_secret(name)) {
        given.hcl(value);
    }
    for (_, value) in request::variables(&task.flags).filter(|(name, _)| module.is_secret(name)) {
        given.text_or_hcl(value);
    }

    let mut found = SecretCollector::new(rules);
    found.all_named(&environment);
    for (name, value) in environment.iter().chain(host) {
        if name.strip_prefix(VARIABLE_PREFIX).is_some_and(|variable| module.is_secret(variable)) {
            found.text_or_hcl(value);
        }
    }
    for (_, settings) in environment.iter().chain(host).filter(|(name, _)| *name == encryption::VARIABLE) {
        found.texts(encryption::secrets(settings));
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
    if let Ok(earlier) = tree.open_private(PrivateFile::OUTPUT)
        && let Ok(Some(set)) = outputs::read_printed(&*engine, earlier, &BTreeSet::new(), 0)
    {
        found.outputs(set);
    }

    let given = given.into_secrets();
    let mut saved = SavedSecrets::load(workspace);
    if matches!(task.task, Task::Plan | Task::PlanDestroy) {
        saved.parameters = given.iter().cloned().collect();
        saved.save(workspace)?;
    }
    let of_results = saved.planned.into_iter().chain(saved.state).chain(saved.outputs);
    found.extend(given.into_iter().chain(saved.parameters).chain(of_results));
    Ok(found.into_secrets())
}

/// The secrets that are known when the script has ended: the sensitive outputs and attributes in its results.
pub(crate) fn after(
    engines: &Engines,
    request: &TaskRequest,
    workspace: &Workspace,
    step: &Path,
    rules: &Rules,
) -> Vec<String> {
    let mut found = SecretCollector::new(rules);
    let (Some(task), Ok(paths)) = (request.engine_task(), ResultPaths::new(&workspace.private_dir(), step))
    else {
        return Vec::new();
    };
    let Ok(engine) = engines.get(&task.engine) else { return Vec::new() };
    // If the script failed and there is no result, the saved secrets remain.
    let is_known = match engine.sensitive_outputs(task.task, &paths) {
        Some(outputs) => outputs.map(|outputs| outputs.iter().for_each(|value| found.json(value))).is_ok(),
        None if task.task == Task::Output => match outputs::read(&*engine, &paths, &BTreeSet::new(), 0) {
            Ok(Some(set)) => {
                found.outputs(set);
                true
            }
            _ => false,
        },
        None => false,
    };
    if !is_known {
        return Vec::new();
    }
    let secrets = found.into_secrets();
    let mut saved = SavedSecrets::load(workspace);
    let own = secrets.iter().cloned().collect();
    match task.task {
        Task::Plan | Task::PlanDestroy => saved.planned = own,
        Task::Output => saved.outputs = own,
        _ => (saved.state, saved.outputs) = (own, BTreeSet::new()),
    }
    if let Err(error) = saved.save(workspace) {
        tracing::warn!(module = workspace.module(), %error, "failed to save secrets for the next task");
    }
    secrets
}

impl SecretCollector<'_> {
    /// Adds the outputs of an Output task that are sensitive or have secret names.
    fn outputs(&mut self, set: OutputSet) {
        for output in set.outputs {
            if output.kind != "string"
                && output.sensitive == Some(true)
                && let Ok(value) = RawValue::from_string(output.value.clone())
            {
                self.json(&value);
            } else if output.sensitive == Some(true) {
                self.texts([&output.value]);
            } else {
                self.named(&output.name, &output.value);
            }
        }
    }
}

struct ModuleSecrets<'r> {
    declarations: Declarations,
    rules: &'r Rules,
}

impl ModuleSecrets<'_> {
    fn is_secret(&self, variable: &str) -> bool {
        self.declarations.is_sensitive(variable) || self.rules.is_secret_name(variable)
    }

    /// The files with values that an engine reads by default, and those in its arguments.
    fn files<'a>(
        &self,
        tree: &Tree,
        named: impl Iterator<Item = &'a String>,
        found: &mut SecretCollector<'_>,
    ) {
        let names = tree.file_names().unwrap_or_default();
        let names = names.into_iter().filter(|name| has_values(name)).chain(named.cloned());
        let files = names.map(|name| (tree.open_file(&name), name));
        // Of an earlier task.
        let kept = [PrivateFile::INIT_VARIABLES];
        let kept = kept.into_iter().map(|file| (tree.open_private(file), file.name().to_owned()));
        for (file, name) in files.chain(kept) {
            let read = file.and_then(|file| read_limited(file, LARGEST_FILE));
            let Some(text) = read.ok().and_then(|text| String::from_utf8(text).ok()) else { continue };
            if name.ends_with(".json") {
                let members = serde_json::from_str::<BTreeMap<String, &RawValue>>(&text);
                for (_, value) in members.unwrap_or_default().iter().filter(|(name, _)| self.is_secret(name))
                {
                    found.json(value);
                }
            } else {
                // The parser does not accept a byte order mark.
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
