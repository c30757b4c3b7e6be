//! What people are told to do about what an engine left behind: sentences without their full stop.

use std::io;
use std::path::Path;

use hawser_contract::{EngineName, Task};

use super::locks::{ERRORED_STATE, Lock, LockTrouble};
use crate::engines::directory::EngineDirectory;
use crate::script::quote;

/// What to check after a task that nobody saw the end of. Only what the task can have left.
pub(super) fn to_check(task: Task) -> &'static str {
    match task {
        Task::ApplyFromPlan | Task::DestroyFromPlan => {
            "look for a state lock that was left behind, for an errored.tfstate in the module's directory, and for \
             resources that are not in the state"
        }
        Task::Plan | Task::PlanDestroy => {
            "look for a state lock that was left behind; it changes no resources itself, but its hooks may"
        }
        Task::Init => {
            "where a state was to move to another backend, look where it is; apart from that, only its hooks can have \
             changed anything"
        }
        _ => "it changes no resources itself, but its hooks may",
    }
}

/// The new state is in `place` and nowhere else, with so many resources, as far as it could be read.
pub(super) fn errored_state(
    engine: &EngineName,
    directory: &EngineDirectory,
    place: &Path,
    resources: &io::Result<Option<u64>>,
) -> String {
    let holds = match resources {
        Ok(Some(count)) => format!("it has {count} resources"),
        Ok(None) => "it is damaged".to_owned(),
        Err(error) => format!("which cannot be read now: {error}"),
    };
    format!(
        "The backend did not take the new state; the only copy of it is {} ({holds}). Before the next run: {}",
        place.display(),
        push_command(engine, directory, place)
    )
}

/// The engine says that it wrote the state, but there is no such file.
pub(super) fn missing_state(engine: &EngineName, directory: &Path, rescued: &Path) -> String {
    format!(
        "{engine} has written an {ERRORED_STATE}, but it is not in {}: look where the hooks may have changed to, and in {}, \
         where the next apply puts what it finds; it is the only copy of that state",
        directory.display(),
        rescued.display()
    )
}

/// There may be such a file, or it is certain that there is, but it could not be kept elsewhere.
pub(super) fn unkept_state(engine: &EngineName, directory: &EngineDirectory, error: &io::Error) -> String {
    let place = directory.join(ERRORED_STATE);
    format!(
        "Whether there is an {ERRORED_STATE} could not be seen, or it could not be kept elsewhere ({error}). If {} is there, \
         the backend did not take the new state, and this is the only copy of it. Then, before the next run: {}",
        place.display(),
        push_command(engine, directory, &place)
    )
}

/// An apply was about to overwrite a state that is now in `kept`.
pub(super) fn earlier_state(engine: &EngineName, directory: &EngineDirectory, kept: &Path) -> String {
    let push = push_command(engine, directory, kept);
    format!(
        "An earlier apply left an {ERRORED_STATE}, a state that its backend did not take. It is kept in {}. If it was \
         not pushed since: {push}",
        kept.display()
    )
}

pub(super) fn rescued_states(count: usize, folder: &Path) -> String {
    format!(
        "There are rescued states ({count}) in {}, which a backend did not take. Push what was not pushed before \
         anything is applied, and remove what was",
        folder.display()
    )
}

pub(super) fn unseen_states(folder: &Path, error: &io::Error) -> String {
    format!(
        "Whether there are rescued states, which a backend did not take, could not be seen in {}: {error}",
        folder.display()
    )
}

/// What the engine itself said about a lock.
pub(super) fn lock_trouble(
    engine: &EngineName,
    directory: &EngineDirectory,
    trouble: &LockTrouble,
) -> String {
    match trouble {
        LockTrouble::HeldByProcess(lock) => format!(
            "The state {} is locked, lock id {}{}, by a process that still runs: the lock ends with it and cannot \
             be forced",
            lock.path,
            lock.id,
            lock.about()
        ),
        LockTrouble::Held(lock) => format!(
            "The state is locked, lock id {}{}. Only when it is certain that nobody works with it: {}",
            lock.id,
            lock.about(),
            directory.command(&format!("{} force-unlock {}", engine, quote(&lock.id)))
        ),
        LockTrouble::NotReleased => format!(
            "{engine} could not release its state lock and does not say its id: when it is still there, the next \
             Plan fails and names it"
        ),
    }
}

/// The engine said nothing, but the lock of a local state is still there.
pub(super) fn local_lock(engine: &EngineName, file: &Path, lock: &Lock) -> String {
    format!(
        "The state lock {}{} stayed behind in {}: the lock of a local state ends with its process, so make \
         sure that no {engine} runs there any more; there is nothing to unlock",
        lock.id,
        lock.about(),
        file.display()
    )
}

/// The engine was ended where it could not clean up, and its lock is on another machine.
pub(super) fn remote_lock(engine: &EngineName) -> String {
    format!(
        "{engine} may have been ended before it could release its state lock, which then may have stayed with the backend: \
         if so, the next Plan fails, names it and says how to unlock"
    )
}

fn push_command(engine: &EngineName, directory: &EngineDirectory, state: &Path) -> String {
    directory.command(&format!("{} state push {}", engine, quote(&state.to_string_lossy())))
}
