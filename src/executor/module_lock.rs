//! The lock of a module directory: one step at a time works in it.

use hawser_contract::requests::Request;
use hawser_contract::{Fault, TaskRequest};
use tracing::info;

use super::Executor;
use crate::base::blocking::blocking;
use crate::base::retry;
use crate::step::RecoveryPhase;
use crate::tasks::TaskError;
use crate::workspace::{ModuleLock, Workspace, WorkspaceError};

impl Executor {
    /// Locks the module directory, for tasks that work in one. A supervisor that is still running holds the lock
    /// already, and a lost step does not need it.
    pub(super) async fn lock_module(
        &self,
        request: &Request,
        phase: RecoveryPhase,
    ) -> Result<Option<ModuleLock>, WorkspaceError> {
        let works_in_directory = !matches!(request.task, TaskRequest::GetDefinitiveRevision(_));
        if !works_in_directory || matches!(phase, RecoveryPhase::Running | RecoveryPhase::Lost) {
            return Ok(None);
        }
        let workspace = Workspace::new(&self.settings.working_directory, &request.common.metadata)?;
        let holder = format!("task {} of job {}", request.task.task(), request.common.job_id);
        match blocking(move || workspace.lock(&holder)).await {
            Ok(locked) => locked.map(Some),
            Err(source) => Err(WorkspaceError::Thread { action: "lock the module", source }),
        }
    }

    /// Like [`lock_module`](Self::lock_module), but a step that only has to be concluded starts without the lock: its conclusion
    /// waits for it, and meanwhile the task is reported as running.
    pub(super) async fn module_for(
        &self,
        request: &Request,
        phase: RecoveryPhase,
    ) -> Result<Option<ModuleLock>, WorkspaceError> {
        match self.lock_module(request, phase).await {
            Err(WorkspaceError::Busy { .. }) if phase == RecoveryPhase::Conclude => Ok(None),
            locked => locked,
        }
    }

    /// Waits for the lock: another process may have taken it when the supervisor released it.
    pub(super) async fn module_lock_now(&self, request: &Request) -> Result<ModuleLock, TaskError> {
        let mut logged = false;
        loop {
            match self.lock_module(request, RecoveryPhase::Conclude).await {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) => return Err(Fault::new("the task has no module directory to conclude in").into()),
                Err(WorkspaceError::Busy { holder, .. }) => {
                    if !std::mem::replace(&mut logged, true) {
                        let job = request.common.job_id;
                        info!(%job, task = %request.task.task(), holder, "waiting for module directory");
                    }
                    tokio::time::sleep(retry::MODULE_DIRECTORY).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
