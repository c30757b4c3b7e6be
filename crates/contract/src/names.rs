//! The names of tasks and methods. Variable discovery is pushed as `Input` and answered as `Variables…`.

use serde::{Deserialize, Serialize};

macro_rules! tasks {
    ($($task:ident),+ $(,)?) => {
        /// A task of a job.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Task { $($task),+ }

        impl Task {
            pub const ALL: [Self; [$(Self::$task),+].len()] = [$(Self::$task),+];

            /// The name in `ReportRunningTask`, in log entries, and before `Completed`, `Cancelled` and `Faulted`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$task => stringify!($task)),+ }
            }
        }
    };
}

tasks! {
    GetDefinitiveRevision, GetModule, Init, Validate, Variables, Plan, PlanDestroy, ApplyFromPlan,
    DestroyFromPlan, Output,
}

impl Task {
    /// The method with which the server pushes the task.
    pub fn pushed_as(self) -> &'static str {
        match self {
            Self::Variables => "Input",
            other => other.name(),
        }
    }

    /// Whether the task changes resources, and so the state.
    pub fn applies(self) -> bool {
        matches!(self, Self::ApplyFromPlan | Self::DestroyFromPlan)
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|task| task.name() == name)
    }

    /// The task that is pushed with this method, in any case, as in SignalR.
    pub fn from_pushed(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|task| task.pushed_as().eq_ignore_ascii_case(method))
    }
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Methods of the runner besides the outcomes of tasks, and pushes besides tasks.
pub mod method {
    pub const ADD_LOGS: &str = "AddLogs";
    pub const REPORT_RUNNING_TASK: &str = "ReportRunningTask";
    pub const CANCEL_GRACEFUL: &str = "CancelGraceful";
    pub const CANCEL_KILL: &str = "CancelKill";
    pub const CANCEL_GRACEFUL_COMPLETED: &str = "CancelGracefulCompleted";
    pub const CANCEL_KILL_COMPLETED: &str = "CancelKillCompleted";
    pub const SOURCE_REFRESH: &str = "SourceRefresh";
    pub const SOURCE_REFRESH_COMPLETED: &str = "SourceRefreshCompleted";
    pub const SOURCE_REFRESH_FAULTED: &str = "SourceRefreshFaulted";
}
