//! The submitted job, and the payload of each of its tasks.

use std::collections::BTreeMap;

use hawser_contract::enums::WireEnum;
use hawser_contract::requests::{ExtraFile, GetModule};
use hawser_contract::{
    BackendConfig, BackendConfiguration, CommandTask, Common, EngineName, EngineTask, FlagList, FlagLists,
    InitFlags, InitOptions, Metadata, Request, Source, SourceRevisionType, SourceType, Task, TaskRequest,
    Variable, VariableSet,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// How often a runner reports a running task again.
const REPORT_SECONDS: u64 = 60;

/// Which tasks a job has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JobKind {
    Apply,
    Plan,
    Destroy,
    /// These tasks in this order.
    Tasks(Vec<Task>),
}

impl JobKind {
    pub fn tasks(&self) -> Vec<Task> {
        const START: [Task; 5] =
            [Task::GetDefinitiveRevision, Task::GetModule, Task::Init, Task::Validate, Task::Variables];
        let rest: &[Task] = match self {
            Self::Apply => &[Task::Plan, Task::ApplyFromPlan, Task::Output],
            Self::Plan => &[Task::Plan],
            Self::Destroy => &[Task::PlanDestroy, Task::DestroyFromPlan],
            Self::Tasks(tasks) => return tasks.clone(),
        };
        START.iter().chain(rest).copied().collect()
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Plan => "plan",
            Self::Destroy => "destroy",
            Self::Tasks(_) => "tasks",
        }
    }
}

/// The hooks of every task that has some.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Hooks {
    pub init_before: Option<String>,
    pub init_after: Option<String>,
    pub validate_before: Option<String>,
    pub validate_after: Option<String>,
    pub plan_before: Option<String>,
    pub plan_after: Option<String>,
    pub plan_destroy_before: Option<String>,
    pub plan_destroy_after: Option<String>,
    pub apply_before: Option<String>,
    pub apply_after: Option<String>,
    pub destroy_before: Option<String>,
    pub destroy_after: Option<String>,
    pub output_before: Option<String>,
    pub output_after: Option<String>,
}

/// A job as it is submitted. Start from [`JobSpec::new`] and change what differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    pub kind: JobKind,
    /// If it has a definitive revision, that is used until the job's first task finds another one.
    pub source: Source,
    pub stack_name: String,
    pub namespace_name: String,
    pub module_name: String,
    pub subdirectory: Option<String>,
    pub engine: EngineName,
    /// Values in HCL.
    pub parameters: BTreeMap<String, String>,
    /// Values as typed by a user. They are converted to HCL when the variables of the module are known, in the same way as
    /// by terraform's `-var`. If the module does not declare a variable, the job fails before its plan, because the engine
    /// would only warn.
    pub typed_parameters: BTreeMap<String, String>,
    /// Whether modules for this engine declare their variables. If not, any typed parameter is accepted, as text.
    pub declares_variables: bool,
    pub env_vars: BTreeMap<String, String>,
    pub hooks: Hooks,
    /// Each task gets the entries for it and those for any task.
    pub flags: FlagLists,
    pub init_flags: InitFlags,
    pub extra_files: Vec<ExtraFile>,
    pub module_backend_configs: Vec<BackendConfig>,
    pub clean_init: bool,
    /// Only the runner with this instance name gets the job.
    pub instance: Option<String>,
    /// Wait for approval before anything is changed.
    pub needs_approval: bool,
}

impl JobSpec {
    /// A job on the default branch of a git repository, as the module `local/local/module`.
    pub fn new(kind: JobKind, source_url: impl Into<String>) -> Self {
        Self {
            kind,
            source: Source {
                source_type: SourceType::Git,
                source_revision_type: SourceRevisionType::Default,
                source_url: source_url.into(),
                source_revision: String::new(),
                source_definitive_revision: None,
                source_semantic_version: None,
            },
            stack_name: "local".to_owned(),
            namespace_name: "local".to_owned(),
            module_name: "module".to_owned(),
            subdirectory: None,
            engine: EngineName::TERRAFORM,
            parameters: BTreeMap::new(),
            typed_parameters: BTreeMap::new(),
            declares_variables: true,
            env_vars: BTreeMap::new(),
            hooks: Hooks::default(),
            flags: FlagLists::default(),
            init_flags: InitFlags::default(),
            extra_files: Vec::new(),
            module_backend_configs: Vec::new(),
            clean_init: false,
            instance: None,
            needs_approval: false,
        }
    }

    /// A job of one task.
    pub fn single(task: Task, source_url: impl Into<String>) -> Self {
        Self::new(JobKind::Tasks(vec![task]), source_url)
    }

    pub fn metadata(&self) -> Metadata {
        Metadata {
            stack_name: self.stack_name.clone(),
            namespace_name: self.namespace_name.clone(),
            module_name: self.module_name.clone(),
            module_id: self.module_id(),
            source_subdirectory: self.subdirectory.clone(),
        }
    }

    /// Parameters that the module should declare but does not. `None` is a module without variables.
    pub(super) fn undeclared(&self, declared: Option<&VariableSet>) -> Vec<&str> {
        if !self.declares_variables {
            return Vec::new();
        }
        let is_declared = |name: &&str| variable(declared, name).is_some();
        self.typed_parameters.keys().map(String::as_str).filter(|name| !is_declared(name)).collect()
    }

    fn resolved_parameters(&self, declared: Option<&VariableSet>) -> BTreeMap<String, String> {
        let mut parameters = self.parameters.clone();
        for (name, text) in &self.typed_parameters {
            let value = match self.declares_variables {
                true => typed_value(text, variable(declared, name)),
                false => hcl_string(text),
            };
            parameters.insert(name.clone(), value);
        }
        parameters
    }

    /// The same names always have the same ID.
    fn module_id(&self) -> Uuid {
        let names = [&self.stack_name, &self.namespace_name, &self.module_name];
        let mut hash = Sha256::new();
        for name in names {
            hash.update(name.as_bytes());
            hash.update([0]);
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// The payload with which `task` is pushed.
    pub(super) fn request(
        &self,
        task: Task,
        job_id: Uuid,
        organization_id: Uuid,
        definitive_revision: Option<&str>,
        declared: Option<&VariableSet>,
    ) -> Request {
        let common = Common {
            job_id,
            organization_id,
            metadata: self.metadata(),
            report_active_job_frequency_seconds: REPORT_SECONDS,
        };
        Request { common, task: self.task_request(task, definitive_revision, declared) }
    }

    fn task_request(
        &self,
        task: Task,
        definitive_revision: Option<&str>,
        declared: Option<&VariableSet>,
    ) -> TaskRequest {
        let mut source = self.source.clone();
        if let Some(revision) = definitive_revision {
            source.source_definitive_revision = Some(revision.to_owned());
        }
        match task {
            Task::GetDefinitiveRevision => TaskRequest::GetDefinitiveRevision(self.source.clone()),
            Task::GetModule => TaskRequest::GetModule(
                source,
                GetModule {
                    engine: self.engine.clone(),
                    clean_init_enabled: self.clean_init,
                    extra_files: self.extra_files.clone(),
                },
            ),
            task => TaskRequest::Engine(self.engine_task(task, declared)),
        }
    }

    fn engine_task(&self, task: Task, declared: Option<&VariableSet>) -> EngineTask {
        let hooks = self.hooks.clone();
        let (before_hook, after_hook) = match task {
            Task::GetDefinitiveRevision | Task::GetModule | Task::Variables => (None, None),
            Task::Init => (hooks.init_before, hooks.init_after),
            Task::Validate => (hooks.validate_before, hooks.validate_after),
            Task::Plan => (hooks.plan_before, hooks.plan_after),
            Task::PlanDestroy => (hooks.plan_destroy_before, hooks.plan_destroy_after),
            Task::ApplyFromPlan => (hooks.apply_before, hooks.apply_after),
            Task::DestroyFromPlan => (hooks.destroy_before, hooks.destroy_after),
            Task::Output => (hooks.output_before, hooks.output_after),
        };
        let flags = match task {
            Task::Init => self.flags_for(CommandTask::Init),
            Task::Plan | Task::PlanDestroy => self.flags_for(CommandTask::Plan),
            Task::ApplyFromPlan => self.flags_for(CommandTask::Apply),
            Task::DestroyFromPlan => self.flags_for(CommandTask::Destroy),
            Task::Output => self.flags_for(CommandTask::Output),
            _ => FlagLists::default(),
        };
        let mut request =
            EngineTask { before_hook, after_hook, flags, ..EngineTask::new(task, self.engine.clone()) };
        match task {
            Task::Init => request.init = self.init_options(),
            Task::Plan | Task::PlanDestroy => {
                request.resolved_parameters = self.resolved_parameters(declared);
            }
            Task::Variables | Task::Output => {
                request.extra_file_names =
                    self.extra_files.iter().map(|file| file.file_name.clone()).collect();
            }
            _ => {}
        }
        request
    }

    fn init_options(&self) -> InitOptions {
        InitOptions {
            backend_configuration: BackendConfiguration {
                module_backend_configs: self.module_backend_configs.clone(),
                ..BackendConfiguration::default()
            },
            flags: self.init_flags.clone(),
            clean_init_enabled: self.clean_init,
            resolved_env_vars: self.env_vars.clone(),
        }
    }

    fn flags_for(&self, task: CommandTask) -> FlagLists {
        fn of<T: WireEnum>(list: &FlagList<T>, task: CommandTask) -> FlagList<T> {
            let wanted = |entry: &&hawser_contract::Flag<T>| entry.task.is_none_or(|named| named == task);
            list.known.iter().filter(wanted).cloned().collect::<Vec<_>>().into()
        }
        FlagLists {
            terraform_flags: of(&self.flags.terraform_flags, task),
            terraform_array_flags: of(&self.flags.terraform_array_flags, task),
            pulumi_flags: of(&self.flags.pulumi_flags, task),
            pulumi_array_flags: of(&self.flags.pulumi_array_flags, task),
        }
    }
}

fn variable<'a>(declared: Option<&'a VariableSet>, name: &str) -> Option<&'a Variable> {
    declared?.variables.iter().find(|variable| variable.name == name)
}

/// Converts a typed value to HCL, in the same way as terraform's `-var`: for a variable that is declared as a string, number
/// or bool, or without a type, the value is text; for any other it is an expression. For an unknown variable, the first character
/// of the value decides.
fn typed_value(text: &str, declared: Option<&Variable>) -> String {
    // Old configurations write the type in quotes.
    let kind = |it: &Variable| it.kind.as_deref().map(|kind| kind.trim().trim_matches('"').to_owned());
    let is_text = match declared {
        Some(variable) => matches!(kind(variable).as_deref(), None | Some("string" | "number" | "bool")),
        None => !text.starts_with(['[', '{', '"']),
    };
    if is_text { hcl_string(text) } else { text.to_owned() }
}

/// Quotes a text as an HCL string.
fn hcl_string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            // Doubled, the start of a template is literal.
            '$' | '%' if characters.peek() == Some(&'{') => quoted.extend([character, character]),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_contract::{Flag, Push, TerraformArrayFlag, TerraformFlag};

    #[test]
    fn every_payload_reads_back_as_the_request_it_was_made_from() {
        let mut spec = JobSpec::new(JobKind::Apply, "https://example.org/x.git");
        spec.extra_files.push(ExtraFile {
            file_name: "extra.tf".into(),
            contents: "# extra".into(),
            overwrite: true,
            source: serde_json::Value::Null,
        });
        spec.flags.terraform_flags = vec![Flag::new(TerraformFlag::NoColor, None)].into();
        for task in Task::ALL {
            let request = spec.request(task, Uuid::new_v4(), Uuid::new_v4(), Some("abc"), None);
            let read = Push::read(task.pushed_as(), &[request.write()]).unwrap();
            assert_eq!(read, Push::Task(Box::new(request)));
        }
    }

    #[test]
    fn a_task_gets_its_own_flags_and_those_for_any_task() {
        let mut spec = JobSpec::new(JobKind::Apply, "x");
        let named = |task, value: &str| Flag {
            task: Some(task),
            flag: TerraformArrayFlag::Target,
            value: Some(value.to_owned()),
        };
        spec.flags.terraform_array_flags =
            vec![named(CommandTask::Plan, "plan"), named(CommandTask::Init, "init")].into();
        let values = |task| -> Vec<_> {
            spec.flags_for(task).terraform_array_flags.known.into_iter().filter_map(|it| it.value).collect()
        };
        assert_eq!(values(CommandTask::Plan), ["plan"]);
        assert_eq!(values(CommandTask::Init), ["init"]);
        assert!(values(CommandTask::Apply).is_empty());
    }

    #[test]
    fn the_definitive_revision_flows_into_get_module() {
        let spec = JobSpec::new(JobKind::Apply, "x");
        let TaskRequest::GetModule(source, _) = spec.task_request(Task::GetModule, Some("c0ffee"), None)
        else {
            panic!("not a GetModule");
        };
        assert_eq!(source.source_definitive_revision.as_deref(), Some("c0ffee"));
    }

    #[test]
    fn the_same_names_always_give_the_same_module_id() {
        let spec = JobSpec::new(JobKind::Apply, "x");
        let mut other = spec.clone();
        assert_eq!(spec.metadata().module_id, other.metadata().module_id);
        other.module_name = "other".into();
        assert_ne!(spec.metadata().module_id, other.metadata().module_id);
    }

    fn declared(kind: Option<&str>) -> Variable {
        Variable {
            name: "x".to_owned(),
            kind: kind.map(str::to_owned),
            description: None,
            sensitive: false,
            nullable: false,
            from_extra_file: false,
        }
    }

    #[test]
    fn primitive_variables_get_text_and_others_an_expression() {
        for (kind, typed, hcl) in [
            (Some("string"), "[1, 2]", r#""[1, 2]""#),
            (Some("string"), "${x}", r#""$${x}""#),
            (Some("number"), "3", r#""3""#),
            (Some("bool"), "true", r#""true""#),
            (None, "{a}", r#""{a}""#),
            (Some("\"string\""), "\"x\"", r#""\"x\"""#),
            (Some("list(string)"), "[\"a\"]", "[\"a\"]"),
            (Some("any"), "true", "true"),
        ] {
            let value = typed_value(typed, Some(&declared(kind)));
            assert_eq!(value, hcl, "{kind:?} {typed}");
        }
    }

    #[test]
    fn an_engine_without_declared_variables_gets_any_parameter_as_text() {
        let mut spec = JobSpec::new(JobKind::Apply, "x");
        spec.typed_parameters.insert("x".to_owned(), "[draft".to_owned());
        assert_eq!(spec.undeclared(None), ["x"]);
        spec.declares_variables = false;
        assert!(spec.undeclared(None).is_empty());
        assert_eq!(spec.resolved_parameters(None)["x"], "\"[draft\"");
    }

    #[test]
    fn the_first_character_decides_for_an_unknown_variable() {
        for (typed, hcl) in [
            ("plain", "\"plain\""),
            ("007", "\"007\""),
            ("say \"hi\" \\ ${x} %{y} $z", r#""say \"hi\" \\ $${x} %%{y} $z""#),
            ("two\nlines", r#""two\nlines""#),
            ("[1, 2]", "[1, 2]"),
            ("{a = 1}", "{a = 1}"),
            ("\"quoted\"", "\"quoted\""),
            ("", "\"\""),
        ] {
            assert_eq!(typed_value(typed, None), hcl);
        }
    }
}
