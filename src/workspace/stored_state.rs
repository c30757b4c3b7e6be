//! What a state that lies in the working directory says: where a local backend keeps it, and how many resources it has.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::base::confined_dir::{open_regular, read_limited};

#[derive(Deserialize)]
struct Initialised {
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

/// Where a module keeps its state on this machine; `None` when a backend elsewhere has it. `data` is the engine's own
/// folder: `.terraform`, unless `TF_DATA_DIR` says otherwise. `workspace` is what `TF_WORKSPACE` names, which counts before
/// the one that is noted there.
pub fn local_state(directory: &Path, data: &Path, workspace: Option<&str>) -> Option<PathBuf> {
    let config = match noted_backend(data) {
        None => LocalBackend::default(),
        Some(backend) if backend.r#type == "local" => backend.config,
        Some(_) => return None,
    };
    let noted = small(&data.join("environment")).unwrap_or_default();
    let noted = String::from_utf8_lossy(&noted);
    Some(match workspace.unwrap_or(&noted).trim() {
        "" | "default" => directory.join(config.path.as_deref().unwrap_or("terraform.tfstate")),
        other => {
            let folder = directory.join(config.workspace_dir.as_deref().unwrap_or("terraform.tfstate.d"));
            folder.join(other).join("terraform.tfstate")
        }
    })
}

/// The backend that the last init has noted in the engine's own folder.
fn noted_backend(data: &Path) -> Option<Backend> {
    let noted = small(&data.join("terraform.tfstate"))?;
    serde_json::from_slice::<Initialised>(&noted).ok()?.backend
}

/// The file that a local backend was told to use, whichever workspace is selected. All other local states have the
/// engine's own names.
pub fn named_local_state(directory: &Path, data: &Path) -> Option<PathBuf> {
    let backend = noted_backend(data).filter(|backend| backend.r#type == "local")?;
    backend.config.path.filter(|path| !path.is_empty()).map(|path| directory.join(path))
}

/// A small regular file, which is only read for a message.
pub(crate) fn small(path: &Path) -> Option<Vec<u8>> {
    read_limited(open_regular(path).ok()?, 1024 * 1024).ok()
}

#[derive(Deserialize)]
struct State {
    version: u64,
    #[serde(default)]
    resources: Vec<StoredStateResource>,
}

#[derive(Deserialize)]
struct StoredStateResource {
    mode: String,
    #[serde(default)]
    instances: Vec<serde::de::IgnoredAny>,
}

/// The managed resources in a state as the engine stores it; `None` when it is no such state.
pub fn stored_resources(state: &[u8]) -> Option<u64> {
    let state: State = serde_json::from_slice(state).ok().filter(|state: &State| state.version == 4)?;
    let managed = state.resources.iter().filter(|resource| resource.mode == "managed");
    Some(managed.map(|resource| resource.instances.len() as u64).sum())
}

#[derive(Deserialize)]
struct StoredStack {
    checkpoint: Checkpoint,
}

#[derive(Deserialize)]
struct Checkpoint {
    latest: Option<Latest>,
}

#[derive(Deserialize)]
struct Latest {
    resources: Option<Vec<StoredResource>>,
}

/// The resources of a stack as Pulumi stores it in files, without the stack itself; `None` when it is no such file.
pub fn stored_stack_resources(stack: &[u8]) -> Option<u64> {
    let stack: StoredStack = serde_json::from_slice(stack).ok()?;
    let resources = stack.checkpoint.latest.and_then(|latest| latest.resources).unwrap_or_default();
    Some(resources.iter().filter(|resource| !is_stack(&resource.urn)).count() as u64)
}

#[derive(Deserialize)]
struct StoredResource {
    urn: String,
}

/// Whether a URN is that of the stack itself: `urn:pulumi:{stack}::{project}::{types}::{name}`, where the types
/// from the outermost parent inwards are joined by `$`.
pub(crate) fn is_stack(urn: &str) -> bool {
    let types = urn.split("::").nth(2).unwrap_or_default();
    types.rsplit('$').next() == Some("pulumi:pulumi:Stack")
}
