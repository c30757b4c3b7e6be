//! The names of tasks and methods. Variable discovery is pushed as `Input` and answered as `Variables…`.

/// A task of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Task {
    GetDefinitiveRevision,
    GetModule,
    Init,
    Validate,
    Variables,
    Plan,
    PlanDestroy,
    ApplyFromPlan,
    DestroyFromPlan,
    Output,
}

impl Task {
    pub const ALL: [Self; 10] = [
        Self::GetDefinitiveRevision,
        Self::GetModule,
        Self::Init,
        Self::Validate,
        Self::Variables,
        Self::Plan,
        Self::PlanDestroy,
        Self::ApplyFromPlan,
        Self::DestroyFromPlan,
        Self::Output,
    ];

    /// The name in `ReportRunningTask`, in log entries and before `Completed`, `Cancelled` and `Faulted`.
    pub fn name(self) -> &'static str {
        match self {
            Self::GetDefinitiveRevision => "GetDefinitiveRevision",
            Self::GetModule => "GetModule",
            Self::Init => "Init",
            Self::Validate => "Validate",
            Self::Variables => "Variables",
            Self::Plan => "Plan",
            Self::PlanDestroy => "PlanDestroy",
            Self::ApplyFromPlan => "ApplyFromPlan",
            Self::DestroyFromPlan => "DestroyFromPlan",
            Self::Output => "Output",
        }
    }

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

    /// SignalR matches method names case-insensitively, and so do we.
    pub fn from_pushed(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|task| task.pushed_as().eq_ignore_ascii_case(method))
    }
}

impl std::fmt::Display for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl serde::Serialize for Task {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> serde::Deserialize<'de> for Task {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::from_name(&name).ok_or_else(|| serde::de::Error::custom(format!("unknown task {name:?}")))
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
