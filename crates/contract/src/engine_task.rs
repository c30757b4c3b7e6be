//! The tasks that work with an engine, which differ only in which members they have.
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
use crate::reading::{MemberError, StringMap, member, members, or_default, part};

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
    #[serde(deserialize_with = "or_default")]
    pub ignore_namespace_backend_configs: bool,
    #[serde(deserialize_with = "or_default")]
    pub namespace_backend_configs: Vec<BackendConfig>,
    #[serde(deserialize_with = "or_default")]
    pub module_backend_configs: Vec<BackendConfig>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendConfig {
    pub name: String,
    #[serde(default, deserialize_with = "or_default")]
    pub value: String,
}

/// Deprecated switches of Init, still honoured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InitFlags {
    #[serde(deserialize_with = "or_default")]
    pub auto_upgrade_enabled: bool,
    #[serde(deserialize_with = "or_default")]
    pub auto_reconfigure_enabled: bool,
    #[serde(deserialize_with = "or_default")]
    pub auto_migrate_enabled: bool,
}

/// A hook with the name that users know, such as `ApplyBeforeHook`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook<'a> {
    pub name: &'static str,
    pub text: &'a str,
}

impl<'a> Hook<'a> {
    /// None if the hook is missing or blank: such a hook is neither run nor checked.
    pub fn new(name: &'static str, text: Option<&'a str>) -> Option<Self> {
        text.filter(|text| !text.trim().is_empty()).map(|text| Self { name, text })
    }
}

/// Which members a task has on the wire besides its engine.
struct Members {
    /// The names of both hooks; on the wire the first letter is in lower case.
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
const SWITCHES: &str = "flags";
const CLEAN_INIT: &str = "cleanInitEnabled";
const ENV_VARS: &str = "resolvedEnvVars";
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
            read.resolved_parameters = member::<StringMap>(value, PARAMETERS)?.0;
        }
        if has.extra_file_names {
            read.extra_file_names = member(value, EXTRA_FILE_NAMES)?;
        }
        if task == Task::Init {
            read.flags = member(value, BACKEND)?;
            read.init = InitOptions {
                backend_configuration: member(value, BACKEND)?,
                flags: member(value, SWITCHES)?,
                clean_init_enabled: member(value, CLEAN_INIT)?,
                resolved_env_vars: member::<StringMap>(value, ENV_VARS)?.0,
            };
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
            let mut backend = members(&self.init.backend_configuration);
            backend.extend(members(&self.flags));
            object.insert(BACKEND.to_owned(), Value::Object(backend));
            object.insert(SWITCHES.to_owned(), json!(self.init.flags));
            object.insert(CLEAN_INIT.to_owned(), json!(self.init.clean_init_enabled));
            object.insert(ENV_VARS.to_owned(), json!(self.init.resolved_env_vars));
        }
        object
    }

    /// Adds the definition of a task to a schema and returns the references that describe its payload.
    pub(crate) fn schema(task: Task, generator: &mut SchemaGenerator) -> Vec<Value> {
        let flag_lists = generator.subschema_for::<FlagLists>().to_value();
        let list_names: Vec<String> =
            members(&FlagLists::default()).into_iter().map(|(name, _)| name).collect();
        let mut properties = Map::new();
        for (name, default) in Self::new(task, EngineName::default()).write() {
            if list_names.contains(&name) {
                continue;
            }
            let mut property = match name.as_str() {
                ENGINE => generator.subschema_for::<EngineName>(),
                BACKEND => generator.subschema_for::<BackendConfiguration>(),
                SWITCHES => generator.subschema_for::<InitFlags>(),
                CLEAN_INIT => generator.subschema_for::<bool>(),
                ENV_VARS | PARAMETERS => generator.subschema_for::<BTreeMap<String, String>>(),
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
        if task == Task::Init {
            let lists = definitions["FlagLists"]["properties"].clone();
            if let (Value::Object(lists), Some(Value::Object(backend))) =
                (lists, definitions.get_mut("BackendConfiguration").and_then(|it| it.get_mut("properties")))
            {
                backend.extend(lists);
            }
        }
        definitions.insert(task.pushed_as().to_owned(), definition);
        let own = json!({ "$ref": format!("#/$defs/{}", task.pushed_as()) });
        if Members::of(task).flags { vec![own, flag_lists] } else { vec![own] }
    }
}
