//! Finds what Pulumi left behind: a lock of the stack, and operations that it began and did not see end. These are listed
//! under `pending_operations` of the exported state.

use hawser_contract::Task;

use super::state;
use crate::base::confined_dir::ConfinedDir;
use crate::engines::ResultPaths;
use crate::engines::directory::EngineDirectory;
use crate::engines::failed_step::{FailedStep, Leftovers};
use crate::script::ScriptPhase;
use crate::workspace::PrivateFile;
use crate::workspace::backup::{By, keep};

/// How many pending operations a message names.
const NAMED: usize = 10;

/// What to check after a task that nobody saw the end of. Only what the task can have left.
pub(super) fn to_check(task: Task) -> &'static str {
    match task {
        Task::ApplyFromPlan | Task::DestroyFromPlan => {
            "look for a lock of the stack that was left behind, for pending operations, and for resources that are \
             not in the state"
        }
        Task::Plan | Task::PlanDestroy => {
            "it changes no resources itself, but its hooks may, and the configuration of the stack may be half written"
        }
        _ => "it changes no resources itself, but its hooks may",
    }
}

/// `removes_stack` says that the stack is gone if the engine command succeeded.
pub(super) fn find(step: &FailedStep, removes_stack: bool) -> Leftovers {
    let is_removed = removes_stack && step.began() && step.phase != Some(ScriptPhase::Engine);
    let mut notes = Vec::new();
    if step.task.task.applies() && !is_removed {
        notes.extend(pending(step));
    }
    notes.extend(locked_stack(&step.stderr).map(|locks| lock_advice(&step.directory, &locks)));
    Leftovers { notes, resources: None }
}

fn pending(step: &FailedStep) -> Option<String> {
    let folder = step.folder.path();
    let places = ResultPaths::new(&step.workspace.private_dir(), folder).ok()?;
    let export = places.open_collected(PrivateFile::PulumiExport);
    let Ok(pending) = state::pending_operations(export) else {
        return step.began().then(|| unread_stack(&step.directory));
    };
    if pending.is_empty() {
        return None;
    }
    let name = format!("{}-pulumi-export.json", step.job_id);
    let export = PrivateFile::PulumiExport.name();
    let kept = ConfinedDir::open(folder)
        .and_then(|folder| keep(&folder, export, step.workspace.rescued_dir(), &name, By::Copy));
    let kept = match kept {
        Ok(Some((kept, _))) => format!("the state is kept in {}", kept.display()),
        Ok(None) => "the state is gone".to_owned(),
        Err(error) => format!("the state could not be kept: {error}"),
    };
    Some(pending_advice(&step.directory, &pending, &kept))
}

/// The lock files of a locked stack; the service, which keeps the lock itself, names none. None if it is not locked.
fn locked_stack(lines: &[String]) -> Option<Vec<String>> {
    let after = |text: &str| lines.iter().position(|line| line.contains(text)).map(|at| &lines[at + 1..]);
    if let Some(named) = after("the stack is currently locked by") {
        let locks = named.iter().map(|line| line.trim()).take_while(|line| line.contains("created by"));
        return Some(locks.take(3).map(str::to_owned).collect());
    }
    after("Another update is currently in progress").map(|_| Vec::new())
}

fn lock_advice(directory: &EngineDirectory, locks: &[String]) -> String {
    let locks = if locks.is_empty() { String::new() } else { format!(": {}", locks.join(", ")) };
    format!(
        "The stack is locked{locks}. Only when it is certain that no other update runs: {}",
        directory.command("pulumi cancel")
    )
}

fn pending_advice(directory: &EngineDirectory, pending: &[String], kept: &str) -> String {
    let more = pending.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "Pending operations ({}), which Pulumi began and did not see end: {}{more}; {kept}. Check what became of them, \
         then clear them by hand, which must be interactive for those that create: {}",
        pending.len(),
        pending[..pending.len().min(NAMED)].join(", "),
        directory.command("pulumi refresh")
    )
}

fn unread_stack(directory: &EngineDirectory) -> String {
    format!(
        "The state of the stack could not be read afterwards: whether there are pending_operations is shown by {}",
        directory.command("pulumi stack export")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_stack_is_recognized_with_its_lock_files() {
        let locked = |text: &str| locked_stack(&text.lines().map(str::to_owned).collect::<Vec<_>>());
        let files = "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end \
            or delete the lock file with `pulumi cancel`.\n  file:///x/a.json: created by me@vm (pid 7) at now\nbye";
        assert_eq!(locked(files).unwrap(), ["file:///x/a.json: created by me@vm (pid 7) at now"]);
        assert_eq!(
            locked("error: [409] Conflict: Another update is currently in progress.").unwrap(),
            [""; 0]
        );
        assert_eq!(locked("error: something else"), None);
    }
}
