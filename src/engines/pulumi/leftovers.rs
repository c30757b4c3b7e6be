//! Finds what Pulumi left behind: a lock of the stack, and operations that it started and did not finish. The exported state
//! lists them in `pending_operations`.

use hawser_contract::Task;

use super::backend::ChosenBackend;
use super::state::StackExport;
use crate::base::confined_dir::ConfinedDir;
use crate::engines::failed_step::{FailedStep, Leftovers, began};
use crate::engines::{HOOKS_TO_CHECK, ResultPaths};
use crate::script::{ScriptPhase, quote};
use crate::workspace::PrivateFile;
use crate::workspace::backup::keep;

/// How many pending operations a message names.
const NAMED: usize = 10;

/// What to check after a task whose outcome is unknown.
pub(super) fn to_check(task: Task) -> &'static str {
    match task {
        Task::ApplyFromPlan | Task::DestroyFromPlan => {
            "check for a lock of the stack that was left behind, for pending operations, and for resources that are not in \
             the state"
        }
        Task::Plan | Task::PlanDestroy => {
            "check what its hooks changed, and whether the configuration of the stack is complete"
        }
        _ => HOOKS_TO_CHECK,
    }
}

/// `removes_stack`: the stack is gone if the engine command succeeded.
pub(super) fn find(step: &FailedStep, removes_stack: bool) -> Leftovers {
    let in_engine = step.phase == Some(ScriptPhase::Engine);
    let is_removed = removes_stack && began(step.phase) && !in_engine;
    let lock = locked_stack(&step.stderr).map(|locks| {
        let locks = if locks.is_empty() { String::new() } else { format!(": {}", locks.join(", ")) };
        format!("The stack is locked{locks}")
    });
    let mut notes = Vec::new();
    if let Some(lock) = lock {
        // The pending operations in the state are those of the update that has locked it.
        notes.push(unlock(step, &lock));
    } else if step.task.task.applies() {
        if step.killed && in_engine {
            notes.push(unlock(step, "Pulumi was killed, so the stack is probably still locked"));
        }
        if !is_removed {
            notes.extend(pending(step));
        }
    }
    Leftovers { notes, resources: None }
}

fn unlock(step: &FailedStep, problem: &str) -> String {
    let name = stack(step).map(|name| format!(" {}", quote(&name))).unwrap_or_default();
    let cancel = step.directory.command(&format!("pulumi cancel{name}"));
    format!("{problem}. Only if you are certain that no other update is running: {cancel}")
}

/// The stack of a step: the one that its flags name, or the one that Init has saved.
fn stack(step: &FailedStep) -> Option<String> {
    let paths = ResultPaths::new(&step.workspace.private_dir(), step.folder.path()).ok()?;
    let chosen = ChosenBackend::of(&step.task, &paths).ok()?;
    Some(chosen.stack(&step.task.flags).to_owned())
}

fn pending(step: &FailedStep) -> Option<String> {
    let folder = step.folder.path();
    let places = ResultPaths::new(&step.workspace.private_dir(), folder).ok()?;
    let file = PrivateFile::PULUMI_EXPORT.name();
    let Ok(export) = places.read_json::<StackExport>(file) else {
        return began(step.phase).then(|| {
            let export = step.directory.command("pulumi stack export");
            format!("Failed to read the state of the stack. To check for pending_operations: {export}")
        });
    };
    let pending = export.pending_operations();
    if pending.is_empty() {
        return None;
    }
    let name = format!("{}-pulumi-export.json", step.job_id);
    let kept = ConfinedDir::open(folder)
        .and_then(|folder| keep(&folder, file, step.workspace.rescued_dir(), &name, false));
    let kept = match kept {
        Ok(Some((kept, _))) => format!("a copy of the state is in {}", kept.display()),
        Ok(None) => "there is no copy of the state".to_owned(),
        Err(error) => format!("failed to keep a copy of the state: {error}"),
    };
    let more = pending.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!(
        "Pending operations ({}), which Pulumi started and did not finish: {}{more}; {kept}. Check their results, then clear \
         them in an interactive shell: {}",
        pending.len(),
        pending[..pending.len().min(NAMED)].join(", "),
        step.directory.command("pulumi refresh")
    ))
}

/// The lock files of a locked stack, or no files if the lock is in the Pulumi service. `None` if the stack is not locked.
fn locked_stack(lines: &[String]) -> Option<Vec<String>> {
    let after = |text: &str| lines.iter().position(|line| line.contains(text)).map(|at| &lines[at + 1..]);
    if let Some(named) = after("the stack is currently locked by") {
        let locks = named.iter().map(|line| line.trim()).take_while(|line| line.contains("created by"));
        return Some(locks.take(3).map(str::to_owned).collect());
    }
    after("Another update is currently in progress").map(|_| Vec::new())
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
