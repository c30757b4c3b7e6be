//! The tasks that run an engine. They differ only in their members.
//!
//! | task | hooks | more members |
//! |---|---|---|
//! | `Init` | `init…Hook` | those of [`InitOptions`]; the flag lists are inside `backendConfiguration` |
//! | `Validate` | `validate…Hook` | |
//! | `Variables` | | `extraFileNames` |
//! | `Plan`, `PlanDestroy` | `plan…Hook`, `planDestroy…Hook` | `resolvedParameters`, flag lists |
//! | `ApplyFromPlan`, `DestroyFromPlan` | `apply…Hook`, `destroy…Hook` | flag lists |
//! | `Output` | `output…Hook` | `extraFileNames`, flag lists |

use std::collections::BTreeMap;

use schemars::SchemaGenerator;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::enums::EngineName;
use crate::flags::FlagLists;
use crate::names::Task;
use crate::reading::{MemberError, member, members, part};

/// A task for an engine. Members that the task does not have on the wire keep their defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineTask {
    pub task: Task,
    pub engine: EngineName,
    pub before_hook: Option<String>,
    pub after_hook: Option<String>,
    pub flags: FlagLists,
    /// Variables of the module, encoded as HCL.
    pub resolved_parameters: BTreeMap<String, String>,
    pub extra_file_names: Vec<String>,
    pub init: InitOptions,
}

/// The members that only `Init` has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InitOptions {
    pub backend_configuration: BackendConfiguration,
    pub flags: InitFlags,
    pub clean_init_enabled: bool,
    pub resolved_env_vars: BTreeMap<String, String>,
}

/// Backend settings, and for Init the flag lists as well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendConfiguration {
    pub ignore_namespace_backend_configs: bool,
    pub namespace_backend_configs: Vec<BackendConfig>,
    pub module_backend_configs: Vec<BackendConfig>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendConfig {
    pub name: String,
    #[serde(default)]
    pub value: String,
}

/// Deprecated switches of Init. They still work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InitFlags {
    pub auto_upgrade_enabled: bool,
    pub auto_reconfigure_enabled: bool,
    pub auto_migrate_enabled: bool,
}

/// A hook with its name for users, such as `ApplyBeforeHook`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook<'a> {
    pub name: &'static str,
    pub text: &'a str,
}

impl<'a> Hook<'a> {
    /// `None` if the hook is missing or blank. Such a hook is neither run nor checked.
    pub fn new(name: &'static str, text: Option<&'a str>) -> Option<Self> {
        text.filter(|text| !text.trim().is_empty()).map(|text| Self { name, text })
    }
}

/// Which members a task has on the wire besides its engine.
struct Members {
    /// The names of both hooks. On the wire, the first letter is lowercase.
    hooks: Option<[&'static str; 2]>,
    flags: bool,
    parameters: bool,
    extra_file_names: bool,
}

impl Members {
    fn of(task: Task) -> Self {
        let hooks = match task {
            Task::GetDefinitiveRevision | Task::GetModule | Task::Variables => None,
            Task::Init => Some(["InitBeforeHook", "InitAfterHook"]),
            Task::Validate => Some(["ValidateBeforeHook", "ValidateAfterHook"]),
            Task::Plan => Some(["PlanBeforeHook", "PlanAfterHook"]),
            Task::PlanDestroy => Some(["PlanDestroyBeforeHook", "PlanDestroyAfterHook"]),
            Task::ApplyFromPlan => Some(["ApplyBeforeHook", "ApplyAfterHook"]),
            Task::DestroyFromPlan => Some(["DestroyBeforeHook", "DestroyAfterHook"]),
            Task::Output => Some(["OutputBeforeHook", "OutputAfterHook"]),
        };
        Self {
            hooks,
            flags: hooks.is_some() && !matches!(task, Task::Init | Task::Validate),
            parameters: matches!(task, Task::Plan | Task::PlanDestroy),
            extra_file_names: matches!(task, Task::Variables | Task::Output),
        }
    }
}

fn wire_name(hook: &str) -> String {
    let (first, rest) = hook.split_at(1);
    first.to_ascii_lowercase() + rest
}

const ENGINE: &str = "engine";
const BACKEND: &str = "backendConfiguration";
const PARAMETERS: &str = "resolvedParameters";
const EXTRA_FILE_NAMES: &str = "extraFileNames";

impl EngineTask {
    pub fn new(task: Task, engine: EngineName) -> Self {
        Self {
            task,
            engine,
            before_hook: None,
            after_hook: None,
            flags: FlagLists::default(),
            resolved_parameters: BTreeMap::new(),
            extra_file_names: Vec::new(),
            init: InitOptions::default(),
        }
    }

    /// The hooks that are not blank: before and after the engine command.
    pub fn hooks(&self) -> [Option<Hook<'_>>; 2] {
        let Some([before, after]) = Members::of(self.task).hooks else { return [None, None] };
        [Hook::new(before, self.before_hook.as_deref()), Hook::new(after, self.after_hook.as_deref())]
    }

    pub(crate) fn read(task: Task, value: &Value) -> Result<Self, MemberError> {
        let has = Members::of(task);
        let mut read = Self::new(task, member(value, ENGINE)?);
        if let Some([before, after]) = has.hooks {
            read.before_hook = member(value, &wire_name(before))?;
            read.after_hook = member(value, &wire_name(after))?;
        }
        if has.flags {
            read.flags = part(value)?;
        }
        if has.parameters {
            read.resolved_parameters = member(value, PARAMETERS)?;
        }
        if has.extra_file_names {
            read.extra_file_names = member(value, EXTRA_FILE_NAMES)?;
        }
        if task == Task::Init {
            read.flags = member(value, BACKEND)?;
            read.init = part(value)?;
        }
        Ok(read)
    }

    pub(crate) fn write(&self) -> Map<String, Value> {
        let has = Members::of(self.task);
        let mut object = Map::new();
        object.insert(ENGINE.to_owned(), json!(self.engine));
        if let Some([before, after]) = has.hooks {
            object.insert(wire_name(before), json!(self.before_hook));
            object.insert(wire_name(after), json!(self.after_hook));
        }
        if has.flags {
            object.extend(members(&self.flags));
        }
        if has.parameters {
            object.insert(PARAMETERS.to_owned(), json!(self.resolved_parameters));
        }
        if has.extra_file_names {
            object.insert(EXTRA_FILE_NAMES.to_owned(), json!(self.extra_file_names));
        }
        if self.task == Task::Init {
            object.extend(members(&self.init));
            if let Some(Value::Object(backend)) = object.get_mut(BACKEND) {
                backend.extend(members(&self.flags));
            }
        }
        object
    }

    /// Adds the definition of a task to a schema. Returns the references that describe its payload.
    pub(crate) fn schema(task: Task, generator: &mut SchemaGenerator) -> Vec<Value> {
        let flag_lists = generator.subschema_for::<FlagLists>().to_value();
        let init_options = generator.subschema_for::<InitOptions>().to_value();
        let mut own = Self::new(task, EngineName::default()).write();
        // These have definitions of their own.
        own.retain(|name, _| {
            !members(&FlagLists::default()).contains_key(name)
                && !members(&InitOptions::default()).contains_key(name)
        });
        let mut properties = Map::new();
        for (name, default) in own {
            let mut property = match name.as_str() {
                ENGINE => generator.subschema_for::<EngineName>(),
                PARAMETERS => generator.subschema_for::<BTreeMap<String, String>>(),
                EXTRA_FILE_NAMES => generator.subschema_for::<Vec<String>>(),
                _ => generator.subschema_for::<Option<String>>(),
            };
            property.insert("default".to_owned(), default);
            properties.insert(name, property.to_value());
        }
        let mut definition = json!({ "type": "object", "properties": properties });
        if task == Task::Variables {
            definition["description"] = json!("Variable discovery, pushed as `Input`.");
        }
        let definitions = generator.definitions_mut();
        definitions.insert(task.pushed_as().to_owned(), definition);
        let mut parts = vec![json!({ "$ref": format!("#/$defs/{}", task.pushed_as()) })];
        if Members::of(task).flags {
            parts.push(flag_lists);
        }
        if task == Task::Init {
            parts.push(init_options);
            let lists = definitions["FlagLists"]["properties"].clone();
            if let (Value::Object(lists), Value::Object(backend)) =
                (lists, &mut definitions["BackendConfiguration"]["properties"])
            {
                backend.extend(lists);
            }
        }
        parts
    }
}
