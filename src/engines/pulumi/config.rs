//! Parameters, which are values in the configuration of the stack. Pulumi saves them in `Pulumi.{stack}.yaml`, or in the file
//! that the flag ConfigFile names. So do the values of `--config KEY=VALUE`, which come after the parameters.
//!
//! One `pulumi config set-all --json` sets all values. They are passed in the variable from which Pulumi reads that option,
//! because every user of the machine can read argument lists. A Pulumi that is too old for this (it would set nothing), and
//! a value that is too large for a variable, get one `pulumi config set` for each value, which reads the value from stdin.
//! Values with secret names, and of keys that the project declares as secret, are encrypted. A list or an object arrives as such
//! if the project declares the key's type and all values are set by one process. Otherwise it is JSON as text.
//!
//! Parameters that are no longer sent must not keep their old values. `pulumi-parameters.json` has the names that were set in each
//! configuration file: before the script starts, all names that may be set, and when it has succeeded, those of this task. It
//! also has the text of the file before the first parameter was set. If that may contain a value for a parameter that is no
//! longer sent, the file is written again from that text. A new revision gets the entry of a file only together with the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use hawser_contract::{EngineTask, PulumiFlag, Task};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::backend::ChosenBackend;
use super::commands::{command, removes_stack};
use super::flags;
use super::project::Project;
use crate::base::confined_dir::{is_missing, read_limited};
use crate::engines::flags::value_of;
use crate::engines::{EngineCommands, EngineError, Preparation, ResultPaths, hcl_values};
use crate::masking::Rules;
use crate::script::EngineCommand;
use crate::workspace::{PrivateFile, Tree, Workspace, is_stack_settings};

/// `--json` as a variable.
const JSON_OPTION: &str = "PULUMI_OPTION_JSON";

/// The first Pulumi that reads options from variables.
const READS_OPTIONS: (u64, u64) = (3, 208);

/// The largest configuration file that is kept.
const LARGEST_FILE: u64 = 4 * 1024 * 1024;

/// The most that one variable holds is 128 KiB.
const LARGEST_BATCH: usize = 100_000;

/// `pulumi-parameters.json`: what was set in each configuration file, by its path in the module.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct SetParameters(BTreeMap<String, SetInFile>);

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct SetInFile {
    /// The stack of the last plan that used the file.
    stack: String,
    /// The flag ConfigFile of that plan.
    config_file: Option<String>,
    names: BTreeSet<String>,
    /// Whether all of them were set.
    complete: bool,
    /// The file before the first parameter was set: what the repository or an Init had written.
    original: Option<String>,
}

impl SetParameters {
    pub(super) fn load(paths: &ResultPaths) -> Result<Self, EngineError> {
        Ok(paths.read_private_json(PrivateFile::PULUMI_PARAMETERS)?.unwrap_or_default())
    }

    /// The configuration file, if an earlier plan has set the parameters of this stack.
    pub(super) fn complete_for(&self, stack: &str) -> Option<Option<&str>> {
        let found = self.0.values().find(|it| it.complete && it.stack == stack)?;
        Some(found.config_file.as_deref())
    }
}

/// A configuration value.
struct Setting<'a> {
    name: &'a str,
    value: String,
    secret: bool,
    /// The value of a key that the project declares as a list or an object. Pulumi refuses a text for it.
    structure: Option<serde_json::Value>,
}

impl<'a> Setting<'a> {
    fn new(name: &'a str, value: String, rules: &Rules, project: Option<&Project>) -> Self {
        let declared = |member| project.and_then(|project| project.declared(name, member));
        let secret = rules.is_secret_name(name) || declared("secret").as_deref() == Some("true");
        let is_collection = matches!(declared("type").as_deref(), Some("array" | "object"));
        // Pulumi cannot encrypt a structure as a whole.
        let structure = (is_collection && !secret).then(|| serde_json::from_str(&value).ok()).flatten();
        Self { name, value, secret, structure }
    }
}

/// Where the values go.
struct Target<'a> {
    stack: &'a str,
    config_file: Option<&'a str>,
}

impl Target<'_> {
    /// The path of the configuration file in the module.
    fn file(&self, module: &Path) -> String {
        match self.config_file {
            Some(file) => file.to_owned(),
            None => {
                // Without the organization and the project.
                let stack = self.stack.rsplit('/').next().unwrap_or_default();
                let ending = if module.join("Pulumi.yaml").exists() { "yaml" } else { "yml" };
                format!("Pulumi.{stack}.{ending}")
            }
        }
    }

    /// A command that changes the configuration. The names come after `--`, where they cannot be options.
    fn command(&self, words: &[&str], names: &[&str]) -> EngineCommand {
        let mut rest = vec!["--stack", self.stack, "--non-interactive"];
        rest.extend(self.config_file.into_iter().flat_map(|file| ["--config-file", file]));
        if !names.is_empty() {
            rest.push("--");
            rest.extend(names);
        }
        command(words, rest.into_iter().map(str::to_owned)).private_files()
    }

    fn set(&self, setting: &Setting<'_>) -> EngineCommand {
        let kind = if setting.secret { "--secret" } else { "--plaintext" };
        let set = self.command(&["config", "set", kind], &[setting.name]);
        set.known_as("pulumi config set").stdin(setting.value.as_str())
    }

    fn set_batch(&self, batch: &BTreeMap<&str, serde_json::Value>) -> EngineCommand {
        let set = self.command(&["config", "set-all"], &[]).known_as("pulumi config set-all");
        set.variable(JSON_OPTION, json!(batch).to_string())
    }

    fn set_all(&self, settings: &[Setting<'_>], in_batches: bool) -> Vec<EngineCommand> {
        let mut commands = Vec::new();
        let (mut batch, mut size) = (BTreeMap::new(), 0);
        for setting in settings {
            let mut entry = json!({"value": setting.value, "secret": setting.secret});
            if let Some(structure) = &setting.structure {
                entry["objectValue"] = structure.clone();
            }
            let length = setting.name.len() + entry.to_string().len() + 16;
            if !in_batches || length > LARGEST_BATCH {
                commands.push(self.set(setting));
                continue;
            }
            if size + length > LARGEST_BATCH {
                commands.push(self.set_batch(&std::mem::take(&mut batch)));
                size = 0;
            }
            size += length;
            batch.insert(setting.name, entry);
        }
        if !batch.is_empty() {
            commands.push(self.set_batch(&batch));
        }
        commands
    }
}

/// Sets the configuration of a task before its main command.
pub(super) fn prepare(task: &EngineTask, at: &Preparation<'_>) -> Result<EngineCommands, EngineError> {
    let chosen = ChosenBackend::of(task, at.paths)?;
    let target = Target {
        stack: chosen.stack(&task.flags),
        config_file: value_of(&task.flags.pulumi_flags.known, PulumiFlag::ConfigFile),
    };
    make_private(at.workspace, target.config_file)?;
    let project = Project::read(at.paths.module());
    let setting = |name, value| Setting::new(name, value, at.rules, project.as_ref());
    let of_flags: Vec<_> =
        flags::config(&task.flags).map(|(name, value)| setting(name, value.to_owned())).collect();
    // A before hook may select another version.
    let in_batches = task.hooks()[0].is_none() && at.version.is_some_and(reads_options);
    let mut work = EngineCommands::default();
    if matches!(task.task, Task::Plan | Task::PlanDestroy) {
        let mut parameters = Vec::new();
        for (name, value) in &task.resolved_parameters {
            parameters.push(setting(name.as_str(), hcl_values::pulumi_text(name, value)?));
        }
        let names = parameters.iter().chain(&of_flags).map(|it| it.name.to_owned()).collect();
        remove_old(&target, names, at, &mut work)?;
        work.engine.extend(target.set_all(&parameters, in_batches));
    } else if task.task == Task::DestroyFromPlan && removes_stack(&task.flags) {
        // Pulumi removes the configuration together with the stack.
        let mut set = SetParameters::load(at.paths)?;
        if let Some(earlier) = set.0.get_mut(&target.file(at.paths.module())) {
            earlier.complete = false;
            work.files.push((at.paths.private(PrivateFile::PULUMI_PARAMETERS), json!(set).to_string()));
        }
    }
    work.engine.extend(target.set_all(&of_flags, in_batches));
    Ok(work)
}

/// Removes the parameters of earlier plans that this one does not have, and keeps the names of its own.
fn remove_old(
    target: &Target<'_>,
    names: BTreeSet<String>,
    at: &Preparation<'_>,
    work: &mut EngineCommands,
) -> Result<(), EngineError> {
    let (mut set, tree, path) =
        (SetParameters::load(at.paths)?, at.workspace.tree()?, target.file(at.paths.module()));
    let earlier =
        set.0.remove(&path).unwrap_or_else(|| SetInFile { original: text(&tree, &path), ..<_>::default() });
    let old: Vec<&str> = earlier.names.difference(&names).map(String::as_str).collect();
    if !old.is_empty() {
        work.notes.push(format!("Removing parameters that are no longer sent: {}", old.join(", ")));
    }
    // A name that the text contains for another reason does no harm.
    match earlier.original.as_ref().filter(|text| old.iter().any(|name| text.contains(name))) {
        Some(original) => {
            let written = tree.write_file(Path::new(&path), original.as_bytes());
            let failed = |source| EngineError::Configuration { path: at.paths.module().join(&path), source };
            written.map_err(failed)?;
        }
        None if old.is_empty() => {}
        None => {
            let remove = target.command(&["config", "rm-all"], &old);
            work.engine.push(remove.known_as("pulumi config rm-all"));
        }
    }
    let all = earlier.names.union(&names).cloned().collect();
    let mut note = |names, complete| {
        let (stack, config_file) = (target.stack.to_owned(), target.config_file.map(str::to_owned));
        // A preview of this stack uses the file of its last plan.
        set.0.values_mut().filter(|it| it.stack == stack).for_each(|it| it.complete = false);
        let entry = SetInFile { stack, config_file, names, complete, original: earlier.original.clone() };
        set.0.insert(path.clone(), entry);
        json!(set).to_string()
    };
    let file = PrivateFile::PULUMI_PARAMETERS;
    work.files.push((at.paths.private(file), note(all, false)));
    work.files.push((at.paths.step(file.name()), note(names, true)));
    work.publish.push(at.paths.publish(file));
    Ok(())
}

/// A configuration file. `None` if there is nothing that could be restored.
fn text(tree: &Tree, path: &str) -> Option<String> {
    let read = tree.open_file(path).and_then(|file| read_limited(file, LARGEST_FILE));
    String::from_utf8(read.ok()?).ok()
}

/// Restricts access to configuration files of stacks, which git and Pulumi create for everyone to read.
fn make_private(workspace: &Workspace, config_file: Option<&str>) -> Result<(), EngineError> {
    let tree = workspace.tree()?;
    let names = tree.file_names().unwrap_or_default();
    let names = names.iter().map(String::as_str).filter(|name| is_stack_settings(name));
    for name in names.chain(config_file) {
        let restricted =
            tree.open_file(name).and_then(|file| file.set_permissions(Permissions::from_mode(0o600)));
        match restricted {
            // Pulumi reports a file that does not exist, or creates it.
            Err(error) if !is_missing(&error) => {
                tracing::warn!(file = name, %error, "failed to restrict access to stack configuration");
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether this version reads options from variables.
fn reads_options(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']).map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= READS_OPTIONS,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target<'static> = Target { stack: "dev", config_file: None };

    fn settings(sizes: &[usize]) -> Vec<Setting<'static>> {
        let names = ["a", "b", "c", "d"];
        let setting = |(name, size): (_, &usize)| Setting {
            name,
            value: "x".repeat(*size),
            secret: false,
            structure: None,
        };
        names.into_iter().zip(sizes).map(setting).collect()
    }

    #[test]
    fn values_are_set_in_as_few_processes_as_fit() {
        let words = |commands: &[EngineCommand]| -> Vec<String> {
            commands.iter().map(|it| it.words[1..3].join(" ")).collect()
        };
        assert_eq!(words(&TARGET.set_all(&settings(&[1, 2, 3]), true)), ["config set-all"]);
        let two = TARGET.set_all(&settings(&[60_000, 60_000, 1]), true);
        assert_eq!(words(&two), ["config set-all", "config set-all"]);
        let large = TARGET.set_all(&settings(&[1, 150_000, 1]), true);
        assert_eq!(words(&large), ["config set", "config set-all"]);
        assert_eq!(words(&TARGET.set_all(&settings(&[1, 1]), false)), ["config set", "config set"]);
        assert!(TARGET.set_all(&[], true).is_empty());
    }

    #[test]
    fn only_a_recent_pulumi_reads_options_from_variables() {
        for version in ["3.208.0", "v3.250.1", "3.1000.0-alpha.1", "4.0.0"] {
            assert!(reads_options(version), "{version}");
        }
        for version in ["3.207.9", "2.999.0", "", "unknown"] {
            assert!(!reads_options(version), "{version}");
        }
    }
}
