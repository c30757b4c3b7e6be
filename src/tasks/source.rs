//! GetDefinitiveRevision, GetModule and SourceRefresh: what has to do with where a module comes from.

use std::time::Duration;

use hawser_contract::requests::GetModule;
use hawser_contract::{Source, SourceRefresh, Success};
use tokio_util::sync::CancellationToken;

use super::{Prepared, TaskContext, TaskError};
use crate::base::process::Inherited;
use crate::masking::JobSecrets;
use crate::policy::Policy;
use crate::settings::Settings;
use crate::sources::{Fetcher, resolve};
use crate::step::Facts;
use crate::workspace::Workspace;

fn fetcher(settings: &Settings, policy: &Policy, http: reqwest::Client, secrets: &JobSecrets) -> Fetcher {
    let folders = &settings.working_directory;
    let host = Inherited::of_this_process().without_secret(&settings.runner.credentials.client_secret);
    let fetcher = Fetcher::new(http, &settings.engine.additional_binary_paths, &folders.temp_directory)
        .host_environment(host)
        .allow_only(policy.sources().clone())
        .secrets(secrets.clone())
        .fetch_timeout(Duration::from_secs(settings.source.fetch_timeout_seconds));
    if settings.source.cache_enabled {
        fetcher.cache(&folders.working_directory.join("sourcecache"), settings.source.cache_max_bytes)
    } else {
        fetcher
    }
}

pub(super) async fn revision(context: &TaskContext, source: &Source) -> Result<Prepared, TaskError> {
    let fetcher = fetcher(&context.settings, &context.policy, context.http.clone(), &context.secrets);
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
    let fetcher = fetcher(&context.settings, &context.policy, context.http.clone(), &context.secrets);
    let log = |line: &str| context.info(line);
    let commit = workspace.get_module(source, request, &fetcher, &log, &context.cancel).await?;
    context.info(&format!("{} is at {commit}", workspace.module()));
    context.note_facts(&Facts { engine_version: None, source_commit: Some(commit) });
    Ok(Prepared::Finished(Success::Done))
}

/// Answers a SourceRefresh with the definitive revision. Only a shutdown cancels it.
pub async fn refresh(
    request: &SourceRefresh,
    settings: &Settings,
    policy: &Policy,
    http: reqwest::Client,
    secrets: &JobSecrets,
    cancel: &CancellationToken,
) -> Result<Success, TaskError> {
    let fetcher = fetcher(settings, policy, http, secrets);
    let log = |line: &str| tracing::debug!("source refresh: {line}");
    Ok(Success::Revision(resolve(&request.source(), &fetcher, &log, cancel).await?))
}
