//! The local veto: what this runner refuses to do, whatever a server asks for (`Policy.*`).
//!
//! The settings of this process decide and nothing else. A request, the variables of a module and the files of a
//! checkout have no way in: [`Policy::new`] sees the settings only, and they are read once, at start.
//!
//! [`Policy::judge`] is asked before a task gets a place in the queue, for new tasks and for those that an
//! earlier process accepted and did not begin. What only shows later is asked for at the moment of use: the
//! answers of registries and the URLs of submodules ([`SourceRule`], by [`crate::sources`]), and the variables and backend
//! settings that an earlier Init has left with the module ([`Policy::judge_variables`],
//! [`Policy::judge_backend_settings`], by [`crate::tasks`]).
//!
//! The rules are about what a server asks the runner for. A hook that is run can do anything that the runner's
//! user can, and so can the code of a module (providers, `external` data sources, provisioners, Pulumi programs):
//! whoever allows these has to trust them. Modules that an engine downloads by itself in its init are not seen here.

mod backend;
mod flags;
mod hooks;

pub use hooks::HookRule;

use hawser_contract::{Engine, Hook, Request, SourceRefresh, Task, TaskRequest, engine_of, source_of};

use crate::settings::patterns::{
    BackendPattern, FilePattern, FlagName, ModulePattern, SourceRule, VariablePattern,
};
use crate::settings::{Refusal, Settings};

/// The settings `Policy.*` and `HooksPreapproval.*`, ready for use.
#[derive(Debug, Clone)]
pub struct Policy {
    engines: Option<Vec<Engine>>,
    sources: SourceRule,
    modules: Option<Vec<ModulePattern>>,
    flags: Option<Vec<FlagName>>,
    extra_files: Option<Vec<FilePattern>>,
    variables: Option<Vec<VariablePattern>>,
    backend_settings: Option<Vec<BackendPattern>>,
    plan_only: bool,
    hooks: HookRule,
}

impl Policy {
    pub fn new(settings: &Settings) -> Self {
        let policy = &settings.policy;
        Self {
            engines: policy.allowed_engines.clone(),
            sources: SourceRule::new(policy.allowed_sources.clone()),
            modules: policy.allowed_modules.clone(),
            flags: policy.allowed_flags.clone(),
            extra_files: policy.allowed_extra_files.clone(),
            variables: policy.allowed_variables.clone(),
            backend_settings: policy.allowed_backend_settings.clone(),
            plan_only: policy.plan_only,
            hooks: HookRule::new(settings),
        }
    }

    /// Whether a task may be done. It may read the directory of pre-approved hooks, so this is not for a thread of the
    /// async runtime.
    pub fn judge(&self, request: &Request) -> Result<(), Refusal> {
        let task = &request.task;
        self.judge_module(request)?;
        self.judge_engine(task)?;
        if let Some(source) = source_of(task) {
            self.sources.judge(&source.source_url)?;
        }
        self.judge_plan_only(task)?;
        self.judge_flags(task)?;
        if let TaskRequest::GetModule(_, own) = task {
            self.judge_extra_files(own.extra_files.iter().map(|file| file.file_name.as_str()))?;
        }
        if let TaskRequest::Init(init) = task {
            self.judge_variables(init.resolved_env_vars.keys().map(String::as_str))?;
            self.judge_backend_settings(backend::given(init).iter().map(String::as_str))?;
        }
        let hooks: Vec<Hook<'_>> = task.hooks().into_iter().flatten().collect();
        self.hooks.judge(hooks)
    }

    pub fn judge_refresh(&self, refresh: &SourceRefresh) -> Result<(), Refusal> {
        self.sources.judge(&refresh.source_url)
    }

    fn judge_module(&self, request: &Request) -> Result<(), Refusal> {
        let Some(allowed) = &self.modules else { return Ok(()) };
        let metadata = &request.common.metadata;
        let names = [&metadata.stack_name, &metadata.namespace_name, &metadata.module_name];
        if allowed.iter().any(|pattern| pattern.matches(names.map(String::as_str))) {
            return Ok(());
        }
        let module = names.map(String::as_str).join("/");
        Err(Refusal::new(
            "Policy.AllowedModules",
            format!("the module {module}"),
            "no entry of the list matches it",
        ))
    }

    fn judge_engine(&self, task: &TaskRequest) -> Result<(), Refusal> {
        let (Some(allowed), Some(engine)) = (&self.engines, engine_of(task)) else { return Ok(()) };
        if allowed.contains(&engine) {
            return Ok(());
        }
        let names: Vec<&str> = allowed.iter().map(|engine| engine.program()).collect();
        let why = match names.as_slice() {
            [] => "no engine is allowed".to_owned(),
            names => format!("allowed are {}", names.join(", ")),
        };
        Err(Refusal::new("Policy.AllowedEngines", format!("the engine {engine}"), why))
    }

    /// Applies and destroys, and what writes to a state all the same: an Init that migrates it, and a Pulumi preview that
    /// is told to leave out the preview.
    fn judge_plan_only(&self, task: &TaskRequest) -> Result<(), Refusal> {
        if !self.plan_only {
            return Ok(());
        }
        let refuse = |what: String| Err(Refusal::new("Policy.PlanOnly", what, "this runner only plans"));
        if matches!(task.task(), Task::ApplyFromPlan | Task::DestroyFromPlan) {
            return refuse(format!("the task {}", task.task()));
        }
        match flags::that_changes_state(task) {
            Some(flag) => refuse(format!("the flag {flag} of {}", task.task())),
            None => Ok(()),
        }
    }

    fn judge_flags(&self, task: &TaskRequest) -> Result<(), Refusal> {
        let given = flags::given(task);
        if let Some(allowed) = &self.flags
            && let Some(flag) = given.iter().find(|flag| !allowed.iter().any(|name| name.matches(flag.name)))
        {
            let what = format!("the flag {} of {}", flag.name, task.task());
            return Err(Refusal::new("Policy.AllowedFlags", what, "it is not in the list"));
        }
        // Pulumi takes a value as an argument of its own, and reads one with a dash as the next flag.
        if let Some(rule) = self.rule_on_arguments()
            && let Some(flag) = given.iter().find(|flag| flag.value_may_be_a_flag)
        {
            let what = format!("the flag {} of {}", flag.name, task.task());
            return Err(Refusal::new(rule, what, "its value begins with a dash and could be another flag"));
        }
        // It would fetch a module from an address that nobody has looked at.
        if self.sources.is_set()
            && let Some(flag) = given.iter().find(|flag| flag.name == "FromModule")
        {
            let what = format!("the flag {} of {}", flag.name, task.task());
            return Err(Refusal::new("Policy.AllowedSources", what, "it fetches a module from elsewhere"));
        }
        Ok(())
    }

    fn judge_extra_files<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<(), Refusal> {
        let Some(allowed) = &self.extra_files else { return Ok(()) };
        match names.into_iter().find(|name| !allowed.iter().any(|pattern| pattern.matches(name))) {
            None => Ok(()),
            Some(name) => {
                let what = format!("the extra file {name:?}");
                Err(Refusal::new("Policy.AllowedExtraFiles", what, "no entry of the list matches it"))
            }
        }
    }

    /// Whether a module may have these variables. Some are more arguments for the engine.
    pub fn judge_variables<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<(), Refusal> {
        let rule_on_arguments = self.rule_on_arguments();
        for name in names {
            let what = || format!("the environment variable {name:?}");
            if let Some(allowed) = &self.variables
                && !allowed.iter().any(|pattern| pattern.matches(name))
            {
                let why = "no entry of the list matches it";
                return Err(Refusal::new("Policy.AllowedVariables", what(), why));
            }
            if let Some(rule) = rule_on_arguments
                && flags::is_arguments_to_an_engine(name)
            {
                return Err(Refusal::new(rule, what(), "it would put any flag on an engine's command line"));
            }
        }
        Ok(())
    }

    /// Whether a module may have these backend settings, each as [`crate::engines::terraform::backend_settings`] makes it.
    pub fn judge_backend_settings<'a>(
        &self,
        settings: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), Refusal> {
        let Some(allowed) = &self.backend_settings else { return Ok(()) };
        let is_allowed = |setting: &str| allowed.iter().any(|pattern| pattern.matches(setting));
        match settings.into_iter().find(|setting| !is_allowed(setting)) {
            None => Ok(()),
            Some(setting) => {
                let what = backend::shown(setting);
                Err(Refusal::new("Policy.AllowedBackendSettings", what, "no entry of the list matches it"))
            }
        }
    }

    /// Whether a module may go on whose backend settings nobody has kept.
    pub fn judge_unknown_backend_settings(&self) -> Result<(), Refusal> {
        if self.backend_settings.is_none() {
            return Ok(());
        }
        let why = "what an earlier Init has told the engine is not known; a clean init, or one with Reconfigure, makes it known";
        Err(Refusal::new("Policy.AllowedBackendSettings", "the module's backend", why))
    }

    /// A rule that flags which nobody looked at would get round.
    fn rule_on_arguments(&self) -> Option<&'static str> {
        if self.flags.is_some() {
            Some("Policy.AllowedFlags")
        } else if self.plan_only {
            Some("Policy.PlanOnly")
        } else if self.sources.is_set() {
            Some("Policy.AllowedSources")
        } else if self.backend_settings.is_some() {
            Some("Policy.AllowedBackendSettings")
        } else {
            None
        }
    }

    /// The hooks that the settings do not allow, looked at once more before they run.
    pub fn judge_hooks<'a>(&self, hooks: impl IntoIterator<Item = Hook<'a>>) -> Result<(), Refusal> {
        self.hooks.judge(hooks)
    }
}

#[cfg(test)]
mod tests;
