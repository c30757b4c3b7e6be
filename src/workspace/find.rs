//! Finds the modules of a working directory without a request that names them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use hawser_contract::Metadata;
use uuid::Uuid;

use super::marker::{GIT, Marker};
use super::{Workspace, WorkspaceError, names};
use crate::settings::model::WorkingDirectorySettings;

/// How many modules an error lists.
const LISTED: usize = 20;

/// The workspaces of all modules that have a folder three levels below `root`: the working directory, or a folder of the
/// runner with the same structure.
pub fn workspaces(settings: &WorkingDirectorySettings, root: &Path) -> io::Result<Vec<Workspace>> {
    let mut modules = vec![root.to_owned()];
    for _level in ["stack", "namespace", "module"] {
        let below: Result<Vec<_>, _> = modules.iter().map(|folder| folders_in(folder)).collect();
        modules = below?.concat();
    }
    let workspace = |module: &PathBuf| {
        let mut names = module.strip_prefix(root).ok()?.iter().map(|name| name.to_str());
        // The names of the runner's own folders are not valid for a stack.
        Workspace::new(settings, &metadata(names.next()??, names.next()??, names.next()??)).ok()
    };
    Ok(modules.iter().filter_map(workspace).collect())
}

/// The module with this name: `stack/namespace/module`, or the end of it if only one module has it.
pub fn find(settings: &WorkingDirectorySettings, name: &str) -> Result<Workspace, WorkspaceError> {
    let root = &settings.working_directory;
    let staged = root.join(".hawser").join("checkout");
    let list = |folder: &Path| {
        workspaces(settings, folder).map_err(|error| WorkspaceError::io("list the modules in", folder, error))
    };
    let all = [list(root)?, list(&staged)?].concat();
    // A crash in the middle of a swap leaves the module in its staging folder; the lock moves it back.
    let exists = |it: &Workspace| it.module_root.join(GIT).is_dir() || it.staging.join("old").is_dir();
    let mut known: BTreeMap<String, Workspace> =
        all.into_iter().filter(exists).map(|workspace| (workspace.module.clone(), workspace)).collect();
    let name = name.trim_matches('/');
    if let Some(found) = known.remove(name) {
        return Ok(found);
    }
    let ending = format!("/{name}");
    let found: Vec<String> = known.keys().filter(|module| module.ends_with(&ending)).cloned().collect();
    match found.as_slice() {
        [only] => known.remove(only).ok_or_else(|| unknown(name, root, Vec::new())),
        [] => Err(unknown(name, root, known.into_keys().collect())),
        _ => Err(WorkspaceError::AmbiguousModule { name: name.to_owned(), modules: listed(&found) }),
    }
}

fn unknown(name: &str, root: &Path, known: Vec<String>) -> WorkspaceError {
    let mut modules = known;
    modules.sort_by(|one, other| closeness(other, name).total_cmp(&closeness(one, name)));
    WorkspaceError::UnknownModule { name: name.to_owned(), root: root.to_owned(), modules }
}

/// How much a typed name resembles a module or the end of it, from 0.0 to 1.0.
pub fn closeness(module: &str, name: &str) -> f64 {
    let (module, name) = (module.to_lowercase(), name.to_lowercase());
    let depth = name.matches('/').count();
    let end = module.rmatch_indices('/').nth(depth).map_or(module.as_str(), |(at, _)| &module[at + 1..]);
    strsim::jaro_winkler(&module, &name).max(strsim::jaro_winkler(end, &name))
}

pub(super) fn known(modules: &[String]) -> String {
    if modules.is_empty() { "no modules".to_owned() } else { format!("the modules: {}", listed(modules)) }
}

fn listed(modules: &[String]) -> String {
    let more = modules.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("{}{more}", modules[..modules.len().min(LISTED)].join(", "))
}

fn metadata(stack: &str, namespace: &str, module: &str) -> Metadata {
    Metadata {
        stack_name: stack.to_owned(),
        namespace_name: namespace.to_owned(),
        module_name: module.to_owned(),
        module_id: Uuid::nil(),
        source_subdirectory: None,
    }
}

/// The subfolders of a folder in a fixed order, without symlinks; empty if the folder does not exist.
fn folders_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    Ok(folders)
}

impl Workspace {
    /// With the subdirectory of the checkout, which otherwise only a request names. The caller holds the module's lock.
    pub fn of_checkout(mut self) -> Result<Self, WorkspaceError> {
        let marker = Marker::read(&self.module_root)
            .ok_or_else(|| WorkspaceError::NoCheckout { path: self.module_root.clone() })?;
        let below = marker.subdirectory().to_string_lossy().into_owned();
        self.subdirectory = names::relative_path("source subdirectory", &below)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_found_by_a_unique_end_of_its_name() {
        let root = tempfile::tempdir().unwrap();
        for module in ["prod/net/vpc", "dev/net/vpc", "dev/net/dns", ".hawser/checkout/a/b/old-copy/old"] {
            let git = if module.starts_with('.') { "" } else { GIT };
            fs::create_dir_all(root.path().join(module).join(git)).unwrap();
        }
        fs::create_dir_all(root.path().join("dev/net/no-module")).unwrap();
        let settings = WorkingDirectorySettings {
            working_directory: root.path().to_owned(),
            temp_directory: root.path().join(".temp"),
        };
        let found = |name: &str| find(&settings, name).map(|workspace| workspace.module);
        assert_eq!(found("prod/net/vpc").unwrap(), "prod/net/vpc");
        assert_eq!(found("dev/net/vpc/").unwrap(), "dev/net/vpc");
        assert_eq!(found("dns").unwrap(), "dev/net/dns");
        assert_eq!(found("old-copy").unwrap(), "a/b/old-copy");
        let ambiguous = found("net/vpc").unwrap_err().to_string();
        assert!(ambiguous.contains("dev/net/vpc, prod/net/vpc"), "{ambiguous}");
        for name in ["prod/net/vcp", "no-module", "", "et/vpc", "../x"] {
            let unknown = found(name).unwrap_err().to_string();
            assert!(unknown.contains("dev/net/dns") && !unknown.contains("no-module/"), "{unknown}");
        }
        let near = found("prod/net/vcp").unwrap_err().to_string();
        assert!(near.contains("modules: prod/net/vpc, "), "{near}");
    }
}
