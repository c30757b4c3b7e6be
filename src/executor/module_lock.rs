//! The module's directory: a step works in it with its lock held, and nobody else does.

use hawser_contract::requests::Request;
use hawser_contract::{Fault, TaskRequest};
use tracing::info;

use super::LOOK_AGAIN;
use super::drive::Executor;
use crate::step::RecoveryPhase;
use crate::tasks::TaskError;
use crate::workspace::{ModuleLock, Workspace, WorkspaceError};

impl Executor {
    /// The lock of the module's directory, for tasks that work in one. A supervisor that is still running
    /// holds it already, and to say that one is gone the directory is not needed.
    pub(crate) async fn lock_module(
        &self,
        request: &Request,
        stage: RecoveryPhase,
    ) -> Result<Option<ModuleLock>, WorkspaceError> {
        let works_in_directory = !matches!(request.task, TaskRequest::GetDefinitiveRevision(_));
        if !works_in_directory || matches!(stage, RecoveryPhase::Running | RecoveryPhase::Lost) {
            return Ok(None);
        }
        let workspace = Workspace::new(&self.settings().working_directory, &request.common.metadata)?;
        // Folders are made for it, and the disk may take its time.
        match tokio::task::spawn_blocking(move || workspace.lock()).await {
            Ok(locked) => locked.map(Some),
            Err(source) => Err(WorkspaceError::Thread { action: "lock the module", source }),
        }
    }

    /// Waits for the module's directory: another process may have been quicker when the supervisor let go.
    pub(crate) async fn module_lock_now(&self, request: &Request) -> Result<ModuleLock, TaskError> {
        let mut said = false;
        loop {
            match self.lock_module(request, RecoveryPhase::Conclude).await {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) => return Err(Fault::new("the task has no module directory to conclude in").into()),
                Err(WorkspaceError::Busy { holder, .. }) => {
                    if !std::mem::replace(&mut said, true) {
                        info!("waits to conclude a step: its module directory is in use by {holder}");
                    }
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                Err(problem) => return Err(Fault::new(problem.to_string()).into()),
            }
        }
    }
}
