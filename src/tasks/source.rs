//! GetDefinitiveRevision, GetModule and SourceRefresh: what has to do with where a module comes from.

use std::time::Duration;

use hawser_contract::requests::GetModule;
use hawser_contract::{Call, Source, SourceRefresh, Success};
use tokio_util::sync::CancellationToken;

use super::{Prepared, TaskContext, TaskError};
use crate::base::process::Inherited;
use crate::masking::JobSecrets;
use crate::settings::patterns::SourceRule;
use crate::settings::{Refusal, Settings};
use crate::sources::{Fetcher, resolve};
use crate::step::Facts;
use crate::workspace::Workspace;

fn fetcher(settings: &Settings, http: reqwest::Client, secrets: &JobSecrets) -> Fetcher {
    let folders = &settings.working_directory;
    let host = Inherited::of_this_process().without_secret(&settings.runner.credentials.client_secret);
    let allowed = SourceRule::new(settings.policy.allowed_sources.clone());
    let fetcher = Fetcher::new(http, &settings.engine.additional_binary_paths, &folders.temp_directory)
        .host_environment(host)
        .allow_only(allowed)
        .secrets(secrets.clone())
        .fetch_timeout(Duration::from_secs(settings.source.fetch_timeout_seconds));
    if settings.source.cache_enabled {
        fetcher.cache(&folders.working_directory.join("sourcecache"), settings.source.cache_max_bytes)
    } else {
        fetcher
    }
}

pub(super) async fn revision(context: &TaskContext, source: &Source) -> Result<Prepared, TaskError> {
    let fetcher = fetcher(&context.settings, context.http.clone(), &context.secrets);
    let log = |line: &str| context.info(line);
    let revision = resolve(source, &fetcher, &log, &context.cancel).await?;
    context.info(&format!("The definitive revision is {revision}"));
    Ok(Prepared::Finished(Success::Revision(revision)))
}

pub(super) async fn module(
    context: &TaskContext,
    source: &Source,
    request: &GetModule,
) -> Result<Prepared, TaskError> {
    let workspace = Workspace::new(&context.settings.working_directory, &context.common.metadata)?;
    let workspace = workspace.holding(context.held.clone());
    let fetcher = fetcher(&context.settings, context.http.clone(), &context.secrets);
    let log = |line: &str| context.info(line);
    let commit = workspace.get_module(source, request, &fetcher, &log, &context.cancel).await?;
    context.info(&format!("{} is at {commit}", workspace.module()));
    context.note_facts(&Facts { engine_version: None, source_commit: Some(commit) });
    Ok(Prepared::Finished(Success::Done))
}

/// What a SourceRefresh comes to.
#[derive(Debug)]
pub struct Refreshed {
    pub call: Call,
    /// What the source led to that the settings of this runner do not allow.
    pub refusal: Option<Refusal>,
}

/// Answers a SourceRefresh; None when it was cancelled, which only a shutdown does.
pub async fn refresh(
    request: &SourceRefresh,
    settings: &Settings,
    http: reqwest::Client,
    secrets: &JobSecrets,
    cancel: &CancellationToken,
) -> Option<Refreshed> {
    let fetcher = fetcher(settings, http, secrets);
    let log = |line: &str| tracing::debug!("source refresh: {line}");
    match resolve(&request.source(), &fetcher, &log, cancel).await {
        Ok(revision) => Some(Refreshed { call: request.completed(&revision), refusal: None }),
        Err(error) => match TaskError::from(error) {
            TaskError::Cancelled => None,
            TaskError::Faulted(fault) => Some(Refreshed { call: request.faulted(&fault), refusal: None }),
            TaskError::Refused { refusal, fault } => {
                Some(Refreshed { call: request.faulted(&fault), refusal: Some(*refusal) })
            }
        },
    }
}
