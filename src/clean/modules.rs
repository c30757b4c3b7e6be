//! Module directories and their interrupted checkouts.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use hawser_contract::{Metadata, Push};

use super::{CleanError, Cleaning, folders_in, modified, state};
use crate::base::files::{create_private_dir_all, remove_all};
use crate::step::{StepFolder, StepRequest};
use crate::workspace::{self, Workspace};

/// A module that was old when it was checked without its lock.
struct Candidate {
    workspace: Workspace,
    last_locked: Option<SystemTime>,
}

impl Cleaning<'_> {
    fn workspaces(&self, root: &Path) -> Result<Vec<Workspace>, CleanError> {
        let failed = |source| CleanError::List { path: root.to_owned(), source };
        workspace::workspaces(self.folders, root).map_err(failed)
    }

    /// Checkouts that were in progress when a runner was killed.
    pub(super) fn checkouts(&mut self) -> Result<(), CleanError> {
        for workspace in self.workspaces(&self.own.join("checkout"))? {
            let staging = workspace.staging_dir().to_owned();
            let Some(_lock) = self.lock(&workspace, &staging) else { continue };
            if !workspace.module_root().exists() && staging.join("old").exists() {
                self.keep(&staging, "contains the only copy of its module, which the next task restores");
                continue;
            }
            self.remove("interrupted checkout", &staging, || remove_all(&staging));
        }
        Ok(())
    }

    pub(super) fn modules(&mut self) -> Result<(), CleanError> {
        for workspace in self.workspaces(&self.folders.working_directory)? {
            if let Some(candidate) = self.candidate(workspace) {
                self.remove_unused(&candidate)?;
            }
        }
        Ok(())
    }

    /// Checks a module without its lock. [`Self::remove_unused`] checks it again with the lock.
    fn candidate(&mut self, workspace: Workspace) -> Option<Candidate> {
        let root = workspace.module_root();
        if !root.join(".git").is_dir() {
            self.keep(root, "not a module that this runner has fetched");
            return None;
        }
        let last_locked = workspace.last_locked();
        let is_old = self.is_old(last_locked.unwrap_or_else(|| modified(root)));
        is_old.then_some(Candidate { workspace, last_locked })
    }

    fn remove_unused(&mut self, candidate: &Candidate) -> Result<(), CleanError> {
        let Candidate { workspace, last_locked } = candidate;
        let root = workspace.module_root().to_owned();
        let Some(_lock) = self.lock(workspace, &root) else { return Ok(()) };
        // A task may have run before we got the lock, and its job may continue.
        if workspace.last_locked() != *last_locked {
            self.keep(&root, "just used");
            return Ok(());
        }
        // Checked under the lock: a later step finds no module and fetches it again.
        if self.modules_in_use()?.is_none_or(|names| names.contains(workspace.module())) {
            self.keep(&root, "a step is using it or waiting for it");
            return Ok(());
        }
        let what = match state::find(&root) {
            None => "unused module",
            Some(_) if self.options.with_state => "unused module WITH ITS STATE",
            Some(file) => {
                let file = file.display();
                self.keep(&root, format!("{file} contains state (remove it with --with-state)"));
                return Ok(());
            }
        };
        let trash = self.trash();
        self.remove(what, &root, || {
            create_private_dir_all(&trash)?;
            let moved = trash.join(uuid::Uuid::new_v4().to_string());
            fs::rename(&root, &moved)?;
            remove_all(&moved)
        });
        Ok(())
    }

    /// Locks the module, or keeps `path` and reports who holds the lock. A dry run does not create a lock file.
    fn lock(&mut self, workspace: &Workspace, path: &Path) -> Option<Option<fs::File>> {
        match workspace.hold_quietly(self.options.remove) {
            Ok(lock) => Some(lock),
            Err(error) => {
                self.keep(path, error.to_string());
                None
            }
        }
    }

    /// The modules of all running and waiting steps. `None` if a step cannot be read, because it may be for any module.
    fn modules_in_use(&self) -> Result<Option<HashSet<String>>, CleanError> {
        let mut names = HashSet::new();
        for store in self.stores()? {
            for step in folders_in(&store.join("steps"))? {
                match StepFolder::at(&step).request() {
                    Ok(request) => names.extend(module_of(&request)),
                    // The step has ended in the meantime.
                    Err(_) if !step.exists() => {}
                    Err(_) => return Ok(None),
                }
            }
        }
        Ok(Some(names))
    }
}

/// `stack/namespace/module` of a request, parsed as the runner parses it. `None` if the runner would not run it.
fn module_of(request: &StepRequest) -> Option<String> {
    match request.push() {
        Ok(Push::Task(task)) => {
            let Metadata { stack_name, namespace_name, module_name, .. } = &task.common.metadata;
            Some(format!("{stack_name}/{namespace_name}/{module_name}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
