//! What the tasks that run a script have in common: an engine, a command, two hooks and flags.

use hawser_contract::{Engine, FlagLists, Hook, Task, TaskRequest};

use crate::engines::pulumi;
use crate::workspace::PrivateFile;

#[derive(Debug, Clone, Copy)]
pub(super) struct ScriptTask<'a> {
    pub task: Task,
    pub engine: Engine,
    pub before: Option<Hook<'a>>,
    pub after: Option<Hook<'a>>,
    /// Where a copy of the script is kept for people to look at.
    pub script: PrivateFile,
    /// None for Init, which has its flags elsewhere, and for Validate, which has none.
    pub flags: Option<&'a FlagLists>,
}

impl<'a> ScriptTask<'a> {
    /// None for the tasks that run no script.
    pub(super) fn of(request: &'a TaskRequest) -> Option<Self> {
        let task = request.task();
        let [before, after] = request.hooks();
        Some(match request {
            TaskRequest::GetDefinitiveRevision(_)
            | TaskRequest::GetModule(..)
            | TaskRequest::Variables(_) => return None,
            TaskRequest::Init(own) => {
                Self { task, engine: own.engine, before, after, script: PrivateFile::InitScript, flags: None }
            }
            TaskRequest::Validate(own) => Self {
                task,
                engine: own.engine,
                before,
                after,
                script: PrivateFile::ValidateScript,
                flags: None,
            },
            TaskRequest::Plan(own, flags) => Self {
                task,
                engine: own.engine,
                before,
                after,
                script: PrivateFile::PlanScript,
                flags: Some(flags),
            },
            TaskRequest::PlanDestroy(own, flags) => Self {
                task,
                engine: own.engine,
                before,
                after,
                script: PrivateFile::PlanDestroyScript,
                flags: Some(flags),
            },
            TaskRequest::ApplyFromPlan(own, flags) => Self {
                task,
                engine: own.engine,
                before,
                after,
                script: PrivateFile::ApplyScript,
                flags: Some(flags),
            },
            TaskRequest::DestroyFromPlan(own, flags) => Self {
                task,
                engine: own.engine,
                before,
                after,
                script: PrivateFile::DestroyScript,
                flags: Some(flags),
            },
            TaskRequest::Output(own, flags) => Self {
                task,
                engine: own.engine,
                before,
                after,
                script: PrivateFile::OutputScript,
                flags: Some(flags),
            },
        })
    }

    /// Whether the task changes resources, and so the state.
    pub(super) fn applies(&self) -> bool {
        matches!(self.task, Task::ApplyFromPlan | Task::DestroyFromPlan)
    }

    /// Whether the engine removes the stack itself when it succeeds, so that afterwards there is no state to be read.
    pub(super) fn removes_stack(&self) -> bool {
        self.engine == Engine::Pulumi
            && self.task == Task::DestroyFromPlan
            && self.flags.is_some_and(pulumi::removes_stack)
    }

    /// The engine command as people know it.
    pub(super) fn command(&self) -> String {
        let terraform = match self.task {
            Task::Init => "init",
            Task::Validate => "validate",
            Task::Plan => "plan",
            Task::PlanDestroy => "plan -destroy",
            Task::ApplyFromPlan => "apply",
            Task::DestroyFromPlan => "apply (destroy)",
            _ => "output",
        };
        let pulumi = match self.task {
            Task::Init => "stack select",
            Task::Validate | Task::Plan => "preview",
            Task::PlanDestroy => "destroy --preview-only",
            Task::ApplyFromPlan => "up",
            Task::DestroyFromPlan => "destroy",
            _ => "stack output",
        };
        let verb = if self.engine == Engine::Pulumi { pulumi } else { terraform };
        format!("{} {verb}", self.engine)
    }
}
