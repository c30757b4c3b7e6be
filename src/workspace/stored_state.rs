//! States in the working directory: where a local backend stores them, and how many resources they contain.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::base::confined_dir::{open_regular, read_limited};

#[derive(Deserialize)]
struct Initialized {
    backend: Option<Backend>,
}

#[derive(Deserialize)]
struct Backend {
    r#type: String,
    #[serde(default)]
    config: LocalBackend,
}

#[derive(Deserialize, Default)]
struct LocalBackend {
    path: Option<String>,
    workspace_dir: Option<String>,
}

/// The path of a module's state on this machine; `None` if it is in a remote backend. `data` is the engine's data folder:
/// `.terraform` or `TF_DATA_DIR`. `workspace` is `TF_WORKSPACE`, which overrides the workspace selected in the data folder.
pub fn local_state(directory: &Path, data: &Path, workspace: Option<&str>) -> Option<PathBuf> {
    let config = match saved_backend(data) {
        None => LocalBackend::default(),
        Some(backend) if backend.r#type == "local" => backend.config,
        Some(_) => return None,
    };
    let selected = small(&data.join("environment")).unwrap_or_default();
    let selected = String::from_utf8_lossy(&selected);
    Some(match workspace.unwrap_or(&selected).trim() {
        "" | "default" => directory.join(config.path.as_deref().unwrap_or("terraform.tfstate")),
        other => {
            let folder = directory.join(config.workspace_dir.as_deref().unwrap_or("terraform.tfstate.d"));
            folder.join(other).join("terraform.tfstate")
        }
    })
}

/// The backend that the last init saved in the engine's data folder.
fn saved_backend(data: &Path) -> Option<Backend> {
    let saved = small(&data.join("terraform.tfstate"))?;
    serde_json::from_slice::<Initialized>(&saved).ok()?.backend
}

/// The file that a local backend was configured with. All other local states have the engine's own names.
pub fn named_local_state(directory: &Path, data: &Path) -> Option<PathBuf> {
    let backend = saved_backend(data).filter(|backend| backend.r#type == "local")?;
    backend.config.path.filter(|path| !path.is_empty()).map(|path| directory.join(path))
}

/// Reads a small regular file.
pub(crate) fn small(path: &Path) -> Option<Vec<u8>> {
    read_limited(open_regular(path).ok()?, 1024 * 1024).ok()
}

/// A state as Terraform and OpenTofu store it.
#[derive(Debug, Deserialize)]
pub struct StoredState {
    version: u64,
    resources: Option<Vec<StoredStateResource>>,
}

#[derive(Debug, Deserialize)]
struct StoredStateResource {
    #[serde(default)]
    mode: String,
    #[serde(default)]
    instances: Vec<serde::de::IgnoredAny>,
}

impl StoredState {
    /// None if the text is not such a state.
    pub fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok().filter(|state: &Self| state.version == 4)
    }

    /// Whether it certainly has no resources at all, managed or not.
    pub fn is_empty(&self) -> bool {
        self.resources.as_ref().is_some_and(Vec::is_empty)
    }
}

/// Whether this is a state that OpenTofu has encrypted.
pub fn is_encrypted(state: &[u8]) -> bool {
    let state: Option<Value> = serde_json::from_slice(state).ok();
    state.is_some_and(|state| state["encrypted_data"].is_string())
}

/// Counts the managed resources in a state as the engine stores it; None if it is not such a state.
pub fn stored_resources(state: &[u8]) -> Option<u64> {
    let state = StoredState::parse(state)?;
    let managed = state.resources.iter().flatten().filter(|resource| resource.mode == "managed");
    Some(managed.map(|resource| resource.instances.len() as u64).sum())
}

/// The number of resources in a stack file of Pulumi, without the stack itself; `None` if it is not one.
pub fn stored_stack_resources(stack: &[u8]) -> Option<u64> {
    let stack: Value = serde_json::from_slice(stack).ok()?;
    stack.get("checkpoint")?;
    let resources = stack.pointer("/checkpoint/latest/resources").and_then(Value::as_array);
    let urns = resources.into_iter().flatten().map(|resource| resource["urn"].as_str().unwrap_or_default());
    Some(urns.filter(|urn| !is_stack(urn)).count() as u64)
}

/// Whether a URN is the stack itself: `urn:pulumi:{stack}::{project}::{types}::{name}`, where the types
/// from the outermost parent inwards are joined by `$`.
pub(crate) fn is_stack(urn: &str) -> bool {
    let types = urn.split("::").nth(2).unwrap_or_default();
    types.rsplit('$').next() == Some("pulumi:pulumi:Stack")
}
