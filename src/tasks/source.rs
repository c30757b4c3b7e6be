//! GetDefinitiveRevision, GetModule and SourceRefresh: the source of a module.

use std::time::Duration;

use hawser_contract::requests::GetModule;
use hawser_contract::{Source, SourceRefresh, Success};
use tokio_util::sync::CancellationToken;

use super::{Prepared, TaskContext, TaskError};
use crate::base::process::Inherited;
use crate::masking::JobSecrets;
use crate::policy::Policy;
use crate::settings::Settings;
use crate::settings::model::WorkingDirectorySettings;
use crate::sources::{Cache, Fetcher, JobLog};
use crate::step::Facts;

fn fetcher<'a>(
    settings: &Settings,
    policy: &Policy,
    http: reqwest::Client,
    secrets: &JobSecrets,
    log: JobLog<'a>,
    cancel: &CancellationToken,
) -> Fetcher<'a> {
    let WorkingDirectorySettings { working_directory, temp_directory } = &settings.working_directory;
    let max_bytes = settings.source.cache_max_bytes;
    let cache = Cache { folder: working_directory.join("sourcecache"), max_bytes };
    Fetcher {
        binary_paths: settings.engine.additional_binary_paths.clone(),
        host: Inherited::of_this_process().without_secret(&settings.runner.credentials.client_secret),
        fetch_timeout: Duration::from_secs(settings.source.fetch_timeout_seconds),
        cache: settings.source.cache_enabled.then_some(cache),
        allowed: policy.sources().clone(),
        secrets: Some(secrets.clone()),
        ..Fetcher::new(http, temp_directory.clone(), log, cancel.clone())
    }
}

fn task_fetcher<'a>(context: &TaskContext, log: JobLog<'a>) -> Fetcher<'a> {
    let TaskContext { settings, policy, http, secrets, cancel, .. } = context;
    fetcher(settings, policy, http.clone(), secrets, log, cancel)
}

pub(super) async fn revision(context: &TaskContext, source: &Source) -> Result<Prepared, TaskError> {
    let log = |line: &str| context.info(line);
    let revision = task_fetcher(context, &log).resolve(source).await?;
    context.info(&format!("The definitive revision is {revision}"));
    Ok(Prepared::Finished(Success::Revision(revision)))
}

pub(super) async fn module(
    context: &TaskContext,
    source: &Source,
    request: &GetModule,
) -> Result<Prepared, TaskError> {
    let workspace = context.workspace()?.holding(context.held.upgrade());
    let log = |line: &str| context.info(line);
    let is_module_file = |name: &str| context.engines.iter().any(|engine| engine.uses_file(name));
    let fetcher = task_fetcher(context, &log);
    let commit = workspace.get_module(source, request, &is_module_file, &fetcher).await?;
    // Otherwise GetDefinitiveRevision has logged it.
    if source.source_definitive_revision.as_ref() != Some(&commit) {
        context.info(&format!("{} is at {commit}", workspace.module()));
    }
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
    let log = |line: &str| tracing::debug!(line, "source refresh");
    let fetcher = fetcher(settings, policy, http, secrets, &log, cancel);
    Ok(Success::Revision(fetcher.resolve(&request.source()).await?))
}
