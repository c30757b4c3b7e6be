//! Local rules that refuse tasks of the server (`Policy.*` and `HooksPreapproval.*`).
//!
//! Only the settings of this process decide, and they are read once, at start. Requests, a module's variables, and the files
//! of a checkout cannot change the rules.
//!
//! The runner builds one [`Policy`] and calls [`Policy::check`] before a task enters the queue, both for new tasks and for
//! tasks that an earlier process accepted and did not start. Later it checks only what the request did not contain: the answers
//! of registries and the URLs of submodules ([`Policy::sources`], in [`crate::sources`]), and the variables and backend settings
//! that an earlier Init saved with the module (in [`crate::tasks`]).
//!
//! The rules cover what a server asks for. A hook can do anything that the runner's user can, and so can the code of a module
//! (providers, `external` data sources, provisioners, Pulumi programs). Modules that an engine downloads during its init are
//! not checked.

mod hooks;

use std::sync::Arc;

use hawser_contract::{EngineName, EngineTask, Hook, Request, SourceRefresh, Task, TaskRequest};

use crate::engines::{Engine, Engines};
use crate::settings::model::PolicySettings;
use crate::settings::patterns::SourceRule;
use crate::settings::{Refusal, Settings};
use hooks::HookRule;

const NO_MATCH: &str = "no entry of the list matches it";

/// The rules of this runner.
#[derive(Debug)]
pub struct Policy {
    rules: PolicySettings,
    sources: SourceRule,
    hooks: HookRule,
}

impl Policy {
    pub fn new(settings: &Settings) -> Self {
        let rules = settings.policy.clone();
        Self {
            sources: SourceRule::new(rules.allowed_sources.clone()),
            rules,
            hooks: HookRule::new(settings),
        }
    }

    /// Checks everything that a request contains. Blocks: it may read the directory of pre-approved hooks.
    pub fn check(&self, request: &Request, engines: &Engines) -> Result<(), Refusal> {
        let task = &request.task;
        self.check_module(request)?;
        self.check_engine(task)?;
        if let Some(source) = task.source() {
            self.sources.check(&source.source_url)?;
        }
        if let TaskRequest::GetModule(_, own) = task {
            self.check_extra_files(own.extra_files.iter().map(|file| file.file_name.as_str()))?;
        }
        let engine = match task.engine() {
            Some(name) => known_engine(name, engines)?,
            None => return Ok(()),
        };
        let TaskRequest::Engine(task) = task else { return Ok(()) };
        self.check_plan_only(&*engine, task)?;
        self.check_flags(&*engine, task)?;
        if task.task == Task::Init {
            self.check_variables(task.init.resolved_env_vars.keys().map(String::as_str))?;
            self.check_backend_settings(&engine.backend_change(task).settings)?;
        }
        self.check_hooks(task.hooks().into_iter().flatten())
    }

    pub fn check_refresh(&self, refresh: &SourceRefresh) -> Result<(), Refusal> {
        self.sources.check(&refresh.source_url)
    }

    /// Checks the hooks of a task. Blocks: it may read the directory of pre-approved hooks.
    pub fn check_hooks<'a>(&self, hooks: impl IntoIterator<Item = Hook<'a>>) -> Result<(), Refusal> {
        self.hooks.check(hooks)
    }

    /// The rule for every URL that a source leads to.
    pub fn sources(&self) -> &SourceRule {
        &self.sources
    }

    fn check_module(&self, request: &Request) -> Result<(), Refusal> {
        let Some(allowed) = &self.rules.allowed_modules else { return Ok(()) };
        let metadata = &request.common.metadata;
        let names = [&metadata.stack_name, &metadata.namespace_name, &metadata.module_name];
        if allowed.iter().any(|pattern| pattern.matches(names.map(String::as_str))) {
            return Ok(());
        }
        let module = names.map(String::as_str).join("/");
        Err(Refusal::new("Policy.AllowedModules", format!("the module {module}"), NO_MATCH))
    }

    fn check_engine(&self, task: &TaskRequest) -> Result<(), Refusal> {
        let (Some(allowed), Some(engine)) = (&self.rules.allowed_engines, task.engine()) else {
            return Ok(());
        };
        if allowed.contains(engine) {
            return Ok(());
        }
        let names: Vec<&str> = allowed.iter().map(EngineName::as_str).collect();
        let why = match names.as_slice() {
            [] => "no engine is allowed".to_owned(),
            names => format!("allowed: {}", names.join(", ")),
        };
        Err(Refusal::new("Policy.AllowedEngines", format!("the engine {engine}"), why))
    }

    /// Refuses applies and destroys, and flags that make another task write to a state.
    fn check_plan_only(&self, engine: &dyn Engine, task: &EngineTask) -> Result<(), Refusal> {
        if !self.rules.plan_only {
            return Ok(());
        }
        let refuse = |what: String| Err(Refusal::new("Policy.PlanOnly", what, "this runner only plans"));
        if task.task.applies() {
            return refuse(format!("the task {}", task.task));
        }
        match engine.given_flags(task).iter().find(|flag| flag.changes_state) {
            Some(flag) => refuse(format!("the flag {} of {}", flag.name, task.task)),
            None => Ok(()),
        }
    }

    fn check_flags(&self, engine: &dyn Engine, task: &EngineTask) -> Result<(), Refusal> {
        let requested = engine.given_flags(task);
        let refuse = |rule, flag: &str, why: &str| {
            Err(Refusal::new(rule, format!("the flag {flag} of {}", task.task), why))
        };
        if let Some(allowed) = &self.rules.allowed_flags
            && let Some(flag) =
                requested.iter().find(|flag| !allowed.iter().any(|name| name.matches(flag.name)))
        {
            return refuse("Policy.AllowedFlags", flag.name, "it is not in the list");
        }
        // Pulumi takes a value as a separate argument, and reads one with a dash as the next flag.
        if let Some(rule) = self.rule_on_arguments()
            && let Some(flag) = requested.iter().find(|flag| flag.value_may_be_a_flag)
        {
            return refuse(rule, flag.name, "its value starts with a dash and could be another flag");
        }
        if self.sources.is_set()
            && let Some(flag) = requested.iter().find(|flag| flag.fetches_module)
        {
            return refuse(
                "Policy.AllowedSources",
                flag.name,
                "it fetches a module from an unchecked source",
            );
        }
        Ok(())
    }

    fn check_extra_files<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<(), Refusal> {
        let Some(allowed) = &self.rules.allowed_extra_files else { return Ok(()) };
        match names.into_iter().find(|name| !allowed.iter().any(|pattern| pattern.matches(name))) {
            None => Ok(()),
            Some(name) => {
                Err(Refusal::new("Policy.AllowedExtraFiles", format!("the extra file {name:?}"), NO_MATCH))
            }
        }
    }

    /// Checks the names of a module's variables. Some variables hold further arguments for the engine.
    pub fn check_variables<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<(), Refusal> {
        let rule_on_arguments = self.rule_on_arguments();
        for name in names {
            let what = || format!("the environment variable {name:?}");
            if let Some(allowed) = &self.rules.allowed_variables
                && !allowed.iter().any(|pattern| pattern.matches(name))
            {
                return Err(Refusal::new("Policy.AllowedVariables", what(), NO_MATCH));
            }
            if let Some(rule) = rule_on_arguments
                && holds_engine_arguments(name)
            {
                return Err(Refusal::new(rule, what(), "it can add any flag to an engine's command line"));
            }
        }
        Ok(())
    }

    /// Checks the backend settings that earlier Inits gave to the engine; None if they are unknown.
    pub fn check_saved_backend(&self, settings: Option<&[String]>) -> Result<(), Refusal> {
        match settings {
            Some(settings) => self.check_backend_settings(settings),
            None if self.rules.allowed_backend_settings.is_none() => Ok(()),
            None => {
                let why = "the settings that an earlier Init gave to the engine are not known; \
                           run a clean init, or one with Reconfigure";
                Err(Refusal::new("Policy.AllowedBackendSettings", "the module's backend", why))
            }
        }
    }

    /// Checks settings in the form that the engine gets: `name=value`, split at the first equals sign, or the name of a file.
    /// Some settings lead to code (`shared_config_files` of the S3 backend names a file that names a program), some choose where
    /// the state is stored, and `${NAME}` in a value is a variable of the host.
    fn check_backend_settings(&self, settings: &[String]) -> Result<(), Refusal> {
        let Some(allowed) = &self.rules.allowed_backend_settings else { return Ok(()) };
        let is_allowed = |setting: &str| allowed.iter().any(|pattern| pattern.matches(setting));
        match settings.iter().find(|setting| !is_allowed(setting)) {
            None => Ok(()),
            Some(setting) => {
                Err(Refusal::new("Policy.AllowedBackendSettings", without_value(setting), NO_MATCH))
            }
        }
    }

    /// The first rule that unchecked arguments of an engine could bypass.
    fn rule_on_arguments(&self) -> Option<&'static str> {
        if self.rules.allowed_flags.is_some() {
            Some("Policy.AllowedFlags")
        } else if self.rules.plan_only {
            Some("Policy.PlanOnly")
        } else if self.sources.is_set() {
            Some("Policy.AllowedSources")
        } else if self.rules.allowed_backend_settings.is_some() {
            Some("Policy.AllowedBackendSettings")
        } else {
            None
        }
    }
}

/// The engine of a task, if this runner has it.
fn known_engine(name: &EngineName, engines: &Engines) -> Result<Arc<dyn Engine>, Refusal> {
    engines.get(name).map_err(|unknown| {
        let what = format!("the engine {name}");
        Refusal::new("Policy.AllowedEngines", what, format!("this runner has {}", unknown.known))
    })
}

/// Describes a setting without its value, which may be secret.
fn without_value(setting: &str) -> String {
    match setting.split_once('=') {
        Some((name, _)) => format!("the backend setting {name:?}"),
        None => format!("the file {setting:?} of backend settings"),
    }
}

/// Whether an engine reads further arguments from the variable with this name.
fn holds_engine_arguments(name: &str) -> bool {
    ["TF_CLI_ARGS", "PULUMI_OPTION_"].iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests;
