//! Module directories, and the checkouts that were made for them.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use hawser_contract::{Metadata, Push};

use super::{CleanError, Cleaning, changed, folders_in, state};
use crate::base::files::{create_private_dir_all, remove_all};
use crate::step::{StepFolder, StepRequest};
use crate::workspace::Workspace;

/// A module that was not used for long when it was looked at.
struct Candidate {
    workspace: Workspace,
    last_locked: Option<SystemTime>,
}

impl Cleaning<'_> {
    /// The workspaces of all modules that have a folder three levels below `place`.
    fn workspaces(&self, place: &Path) -> Result<Vec<Workspace>, CleanError> {
        let mut found = Vec::new();
        for stack in folders_in(place)? {
            for namespace in folders_in(&stack)? {
                for module in folders_in(&namespace)? {
                    let name =
                        |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
                    let (Some(stack_name), Some(namespace_name), Some(module_name)) =
                        (name(&stack), name(&namespace), name(&module))
                    else {
                        continue;
                    };
                    let metadata = Metadata {
                        stack_name,
                        namespace_name,
                        module_name,
                        module_id: uuid::Uuid::nil(),
                        source_subdirectory: None,
                    };
                    // A folder of the runner's own has a name that no stack can have.
                    found.extend(Workspace::new(self.folders, &metadata));
                }
            }
        }
        Ok(found)
    }

    /// Checkouts that were being prepared or swapped out when a runner was killed.
    pub(super) fn checkouts(&mut self) -> Result<(), CleanError> {
        for workspace in self.workspaces(&self.own.join("checkout"))? {
            let staging = workspace.staging_dir().to_owned();
            let Some(_held) = self.hold(&workspace, &staging) else { continue };
            if !workspace.module_root().exists() && staging.join("old").exists() {
                self.keep(&staging, "it holds the only copy of its module, which the next task puts back");
                continue;
            }
            self.take("a checkout that was cut short", &staging, || remove_all(&staging));
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

    /// Looks at a module without its lock. What is seen here may be over by the time that the lock is ours.
    fn candidate(&mut self, workspace: Workspace) -> Option<Candidate> {
        let root = workspace.module_root();
        if !root.join(".git").is_dir() {
            self.keep(root, "it is no module that this runner has fetched");
            return None;
        }
        let last_locked = workspace.last_locked();
        let is_old = self.is_old(last_locked.unwrap_or_else(|| changed(root)));
        is_old.then_some(Candidate { workspace, last_locked })
    }

    fn remove_unused(&mut self, candidate: &Candidate) -> Result<(), CleanError> {
        let Candidate { workspace, last_locked } = candidate;
        let root = workspace.module_root().to_owned();
        let Some(held) = self.hold(workspace, &root) else { return Ok(()) };
        // A task may have come and gone before the lock was ours, and its job may go on. Whoever takes the lock writes
        // its name into the file, so one that was made just now is empty.
        let is_unused = match last_locked {
            Some(_) => workspace.last_locked() == *last_locked,
            None => held.as_ref().is_none_or(|file| file.metadata().is_ok_and(|found| found.len() == 0)),
        };
        if !is_unused {
            self.keep(&root, "it was used just now");
            return Ok(());
        }
        // With the lock held: a step that comes later finds no module, and fetches it.
        if self.waited_for()?.is_none_or(|names| names.contains(workspace.module())) {
            self.keep(&root, "a step runs in it or waits for it");
            return Ok(());
        }
        let what = match state::held_by(&root) {
            None => "a module that was not used for long",
            Some(_) if self.order.with_state => "a module that was not used for long, WITH ITS STATE",
            Some(file) => {
                let file = file.display();
                self.keep(&root, format!("{file} holds state; --with-state removes it all the same"));
                return Ok(());
            }
        };
        let gone = self.gone();
        self.take(what, &root, || {
            create_private_dir_all(&gone)?;
            let gone = gone.join(uuid::Uuid::new_v4().to_string());
            fs::rename(&root, &gone)?;
            remove_all(&gone)
        });
        Ok(())
    }

    /// The module's lock, or a word on who has it. Without removing, a lock that was never taken is not made.
    fn hold(&mut self, workspace: &Workspace, path: &Path) -> Option<Option<fs::File>> {
        match workspace.hold_quietly(self.order.remove) {
            Ok(held) => Some(held),
            Err(error) => {
                self.keep(path, error.to_string());
                None
            }
        }
    }

    /// The modules that steps are there for, running or waiting. None when a step cannot be read: it may be any.
    fn waited_for(&self) -> Result<Option<HashSet<String>>, CleanError> {
        let mut names = HashSet::new();
        for store in self.stores()? {
            for step in folders_in(&store.join("steps"))? {
                match StepFolder::at(&step).request() {
                    Ok(request) => names.extend(module_of(&request)),
                    // It may have ended meanwhile.
                    Err(_) if !step.exists() => {}
                    Err(_) => return Ok(None),
                }
            }
        }
        Ok(Some(names))
    }
}

/// `stack/namespace/module` of a request; none when it is about no module. Read as the runner reads it: what it cannot
/// read it does not work on.
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
