//! One event of the audit log: a line of JSON.

use hawser_contract::{EngineName, Outcome, OutcomeKind, StepOutcome, Success, Task};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::digest::fingerprint;
use crate::base::git_url::mask_url;
use crate::settings::Refusal;
use crate::step::{Cancel, CancelledBy, Exit, Step, StepFolder, StepWork};

/// The longest text from a server, in characters.
const MAX_TEXT_CHARS: usize = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum EventKind {
    Accepted,
    Refused,
    Cancelled,
    Finished,
    Exec,
}

#[derive(Debug, Serialize)]
pub(super) struct AuditEvent {
    /// When the event was written; after a crash, this is the next start.
    time: String,
    #[serde(rename = "event")]
    pub(super) kind: EventKind,
    /// The other members. Those that are unknown or do not apply are absent.
    #[serde(flatten)]
    fields: Map<String, Value>,
}

impl AuditEvent {
    /// An event of a push that has no step folder.
    pub(super) fn new(kind: EventKind, job_id: Uuid, task: Option<Task>) -> Self {
        Self::empty(kind).with("jobId", job_id.to_string()).with("task", task.map(Task::name))
    }

    /// An event of a step, with the facts of its request.
    pub(super) fn of(kind: EventKind, step: &Step) -> Self {
        match &step.work {
            StepWork::Task(request) => {
                let (common, metadata) = (&request.common, &request.common.metadata);
                let source = request.task.source();
                let hooks: Map<String, Value> = request
                    .task
                    .hooks()
                    .into_iter()
                    .flatten()
                    .map(|hook| (hook.name.to_owned(), fingerprint(hook.text).into()))
                    .collect();
                Self::new(kind, common.job_id, Some(request.task.task()))
                    .with("organizationId", common.organization_id.to_string())
                    .with("stack", short(&metadata.stack_name))
                    .with("namespace", short(&metadata.namespace_name))
                    .with("module", short(&metadata.module_name))
                    .with("moduleId", metadata.module_id.to_string())
                    .with("engine", request.task.engine().map(ToString::to_string))
                    .with("sourceUrl", source.map(|source| short(&mask_url(&source.source_url))))
                    .with("sourceRevision", source.map(|source| short(&source.source_revision)))
                    .with(
                        "sourceCommit",
                        source.and_then(|source| source.source_definitive_revision.as_deref()).map(short),
                    )
                    .with("hooks", (!hooks.is_empty()).then_some(hooks))
            }
            StepWork::Refresh(refresh) => Self::empty(kind)
                .with("organizationId", refresh.organization_id.to_string())
                .with("task", "SourceRefresh")
                .with("sourceUrl", short(&mask_url(&refresh.source_url)))
                .with("sourceRevision", short(&refresh.source_revision)),
        }
    }

    /// A command that a user runs in a module.
    pub(super) fn exec(module: &str, engine: &EngineName, command: &[String]) -> Self {
        let mut names = module.splitn(3, '/').map(short);
        let user = ["SUDO_USER", "LOGNAME", "USER"].iter().find_map(|name| std::env::var(name).ok());
        Self::empty(EventKind::Exec)
            .with("stack", names.next())
            .with("namespace", names.next())
            .with("module", names.next())
            .with("engine", engine.as_str())
            .with("command", verb(engine, command))
            .with("arguments", command.len().saturating_sub(1))
            .with("user", user.as_deref().map(short))
            .with("uid", rustix::process::getuid().as_raw())
    }

    fn empty(kind: EventKind) -> Self {
        // A fixed number of digits, so that lines sort as text.
        Self { time: format!("{:.6}", Timestamp::now()), kind, fields: Map::new() }
    }

    /// Adds a member, unless it is null.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        if !value.is_null() {
            self.fields.insert(name.to_owned(), value);
        }
        self
    }

    pub(super) fn refused(self, refusal: &Refusal) -> Self {
        self.with("rule", refusal.rule).with("reason", short(&refusal.what))
    }

    pub(super) fn cancelled(self, cancel: &Cancel) -> Self {
        let reason = match cancel.by {
            CancelledBy::Server => None,
            CancelledBy::Drain => {
                Some("the runner was shutting down, and Runner.DrainTimeoutSeconds elapsed")
            }
        };
        self.with("cancel", json!(cancel.kind)).with("reason", reason)
    }

    /// Adds how the step ended, from its folder.
    pub(super) fn finished(self, folder: &StepFolder, outcome: &StepOutcome) -> Self {
        let exit = folder.exit().ok().flatten();
        let facts = folder.facts().ok().flatten().unwrap_or_default();
        let resolved = match &outcome.outcome {
            Outcome::Completed(Success::Revision(commit)) => Some(short(commit)),
            _ => None,
        };
        let result = match outcome.kind() {
            OutcomeKind::Completed => "completed",
            OutcomeKind::Cancelled => "cancelled",
            // The script started, and its end was not recorded. The server gets a fault.
            OutcomeKind::Faulted if exit.is_none() && matches!(folder.supervisor(), Ok(Some(_))) => "unknown",
            OutcomeKind::Faulted => "faulted",
        };
        let exit = exit.map(|exit| match exit {
            Exit::Code(code) => json!({"code": code}),
            Exit::Signal(signal) => json!({"signal": signal}),
            Exit::Failure(reason) => json!({"failure": short(&reason)}),
        });
        self.with("result", result)
            .with("exit", exit)
            .with("engineVersion", facts.engine_version.as_deref().map(short))
            .with("sourceCommit", resolved.or(facts.source_commit))
    }

    /// A text member, for the runtime log.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name).and_then(Value::as_str)
    }
}

/// The program, and for an engine what it does, such as `terraform state rm`. Further words and options may be secret.
fn verb(engine: &EngineName, command: &[String]) -> String {
    let program = command.first().map(|program| program.rsplit('/').next().unwrap_or(program));
    let is_verb =
        |word: &&str| word.chars().all(|it| it.is_ascii_lowercase() || it == '-') && !word.starts_with('-');
    let is_engine = program == Some(engine.as_str());
    let verbs = command.iter().skip(1).map(String::as_str).take_while(is_verb).take(2);
    let verbs = verbs.filter(|_| is_engine);
    program.into_iter().chain(verbs).map(short).collect::<Vec<_>>().join(" ")
}

fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_verb_of_a_command_is_recorded() {
        let verb =
            |engine, command: &str| verb(&engine, &command.split(' ').map(str::to_owned).collect::<Vec<_>>());
        use EngineName as Name;
        for (engine, command, recorded) in [
            (Name::TERRAFORM, "terraform state rm aws_instance.web", "terraform state rm"),
            (Name::TOFU, "/opt/bin/tofu force-unlock 6227-11", "tofu force-unlock"),
            (Name::TERRAFORM, "terraform apply -var password=hush", "terraform apply"),
            (Name::PULUMI, "pulumi config set db hush --secret", "pulumi config set"),
            (Name::PULUMI, "pulumi login https://me:hush@example.com", "pulumi login"),
            (Name::TERRAFORM, "bash -c hush", "bash"),
            (Name::TERRAFORM, "vault login hush", "vault"),
        ] {
            assert_eq!(verb(engine, command), recorded);
        }
    }
}
