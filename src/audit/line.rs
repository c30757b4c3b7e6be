//! One line of the audit log.

use std::collections::BTreeMap;
use std::io;

use hawser_contract::requests::CancelKind;
use hawser_contract::{Call, Engine, Task, engine_of, source_of};
use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::base::digest::fingerprint;
use crate::base::git_url::mask_url;
use crate::settings::Refusal;
use crate::step::{Cancel, CancelledBy, Step, StepFolder, StepWork};

/// No text of a server's choice is longer than this, so that a line stays a line.
const LONGEST: usize = 2000;

/// Who writes.
#[derive(Debug)]
pub(super) struct AuditSource {
    pub(super) runner: Uuid,
    pub(super) instance: String,
}

/// The members of a line; what is not known, or makes no sense for an event, is left out.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AuditLine<'a> {
    /// When the line was written. Of one that a crash held up, this is the next start.
    time: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    organization_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stack: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<Engine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    engine_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_revision: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_commit: Option<String>,
    /// Name to SHA-256, as in pre-approval.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    hooks: BTreeMap<&'static str, String>,
    /// `graceful` or `kill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cancel: Option<CancelKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<AuditOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<ExitNote>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    runner: Uuid,
    instance: &'a str,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum AuditOutcome {
    Completed,
    Faulted,
    Cancelled,
    /// Its script was started, and nobody is left who could say how it ended. The server is told of a fault.
    Unknown,
}

/// How the script of a task ended.
#[derive(Debug, Serialize)]
struct ExitNote {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

impl<'a> AuditLine<'a> {
    fn empty(event: &'static str, writer: &'a AuditSource) -> Self {
        Self {
            // Always as many digits, so that lines sort as text.
            time: format!("{:.6}", Timestamp::now()),
            event,
            job_id: None,
            organization_id: None,
            stack: None,
            namespace: None,
            module: None,
            module_id: None,
            task: None,
            engine: None,
            engine_version: None,
            source_url: None,
            source_revision: None,
            source_commit: None,
            hooks: BTreeMap::new(),
            cancel: None,
            result: None,
            exit: None,
            rule: None,
            reason: None,
            runner: writer.runner,
            instance: &writer.instance,
        }
    }

    /// With all that the request says.
    pub(super) fn of(step: &Step, event: &'static str, writer: &'a AuditSource) -> Self {
        let mut line = Self::empty(event, writer);
        match &step.work {
            StepWork::Task(request) => {
                let (common, metadata) = (&request.common, &request.common.metadata);
                line.job_id = Some(common.job_id);
                line.organization_id = Some(common.organization_id);
                line.stack = Some(short(&metadata.stack_name));
                line.namespace = Some(short(&metadata.namespace_name));
                line.module = Some(short(&metadata.module_name));
                line.module_id = Some(metadata.module_id);
                line.task = Some(request.task.task().name());
                line.engine = engine_of(&request.task);
                if let Some(source) = source_of(&request.task) {
                    line.source_url = Some(short(&mask_url(&source.source_url)));
                    line.source_revision = Some(short(&source.source_revision));
                    // Asked for, until it is known what was got.
                    line.source_commit = source.source_definitive_revision.as_deref().map(short);
                }
                line.hooks = request
                    .task
                    .hooks()
                    .into_iter()
                    .flatten()
                    .map(|it| (it.name, fingerprint(it.text)))
                    .collect();
            }
            StepWork::Refresh(refresh) => {
                line.organization_id = Some(refresh.organization_id);
                line.task = Some("SourceRefresh");
                line.source_url = Some(short(&mask_url(&refresh.source_url)));
                line.source_revision = Some(short(&refresh.source_revision));
            }
        }
        line
    }

    /// Of a push whose payload says nothing more.
    pub(super) fn without_request(
        event: &'static str,
        job_id: Uuid,
        task: Option<Task>,
        writer: &'a AuditSource,
    ) -> Self {
        Self { job_id: Some(job_id), task: task.map(Task::name), ..Self::empty(event, writer) }
    }

    pub(super) fn refused(self, refusal: &Refusal) -> Self {
        Self { rule: Some(refusal.rule), reason: Some(short(&refusal.what)), ..self }
    }

    pub(super) fn reason(self, reason: &str) -> Self {
        Self { reason: Some(reason.to_owned()), ..self }
    }

    pub(super) fn cancelled(self, cancel: &Cancel) -> Self {
        let reason = match cancel.by {
            CancelledBy::Server => None,
            CancelledBy::Drain => {
                Some("the runner was being stopped, and Runner.DrainTimeoutSeconds was over".to_owned())
            }
        };
        Self { cancel: Some(cancel.kind), reason, ..self }
    }

    pub(super) fn unknown(self) -> Self {
        Self { result: Some(AuditOutcome::Unknown), ..self }
    }

    /// With what only the end of a step tells, from its folder.
    pub(super) fn finished(mut self, folder: &StepFolder, call: &Call) -> Self {
        let exit = folder.exit().ok().flatten();
        self.result = match call.method.as_str() {
            method if method.ends_with("Completed") => Some(AuditOutcome::Completed),
            method if method.ends_with("Cancelled") => Some(AuditOutcome::Cancelled),
            _ if exit.is_none() && matches!(folder.supervisor(), Ok(Some(_))) => Some(AuditOutcome::Unknown),
            _ => Some(AuditOutcome::Faulted),
        };
        self.exit = exit.map(|it| ExitNote {
            code: it.code,
            signal: it.signal,
            failure: it.failure.as_deref().map(short),
        });
        let facts = folder.facts().ok().flatten().unwrap_or_default();
        self.engine_version = facts.engine_version.as_deref().map(short);
        // The answer to a question for a commit is that commit.
        let found = match call.method.as_str() {
            "GetDefinitiveRevisionCompleted" | "SourceRefreshCompleted" => call.arguments.last(),
            _ => None,
        };
        let found = found.and_then(|commit| commit.as_str()).map(short);
        self.source_commit = found.or(facts.source_commit).or(self.source_commit);
        self
    }

    pub(super) fn text(&self) -> io::Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// For the runtime log, when the line cannot be written.
    pub(super) fn in_words(&self) -> String {
        let task = self.task.unwrap_or("a task");
        let job = self.job_id.map_or_else(String::new, |job| format!(" of job {job}"));
        format!("{task}{job} was {}", self.event)
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
