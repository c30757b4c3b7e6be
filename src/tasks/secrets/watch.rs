//! Finds the secrets of a step before its first line, again when its after hook starts, and when its script has ended. Secrets
//! that are found late are masked in all lines that were not sent by then.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;

use hawser_contract::{Fault, Request};
use tracing::warn;

use super::module;
use crate::base::blocking::blocking;
use crate::base::retry;
use crate::engines::Engines;
use crate::masking::{JobSecrets, SecretStore};
use crate::script::ScriptPhase;
use crate::settings::Settings;
use crate::step::{Step, StepFolder, StepWork};
use crate::tasks::{TaskContext, TaskError};
use crate::workspace::{Workspace, WorkspaceError};

/// The secrets of a step's job, with those that are recorded in its folder. Hold it while the step is driven.
pub(crate) fn of_step(secret_store: &SecretStore, step: &Step) -> JobSecrets {
    let secrets = secret_store.job(step.job_id());
    if let Err(error) = step.folder.recall_secrets(&secrets) {
        secrets.hide_everything(&error.to_string());
    }
    if let StepWork::Refresh(refresh) = &step.work {
        secrets.learn_credentials(&refresh.source_url);
    }
    secrets
}

/// Finds secrets on a blocking thread, masks them from now on, and records them in the step folder.
async fn learn(
    secrets: &JobSecrets,
    folder: &StepFolder,
    find: impl FnOnce() -> Result<Vec<String>, WorkspaceError> + Send + 'static,
) -> Result<(), String> {
    let (secrets, folder) = (secrets.clone(), folder.clone());
    let learned = blocking(move || {
        let found = find().map_err(|error| error.to_string())?;
        secrets.learn(found.iter().map(String::as_str));
        // Compiled here, so that no runtime thread has to.
        drop(secrets.masker());
        folder.add_secrets(&found).map_err(|error| error.to_string())
    });
    learned.await.map_err(|error| error.to_string())?
}

/// Learns the secrets of a task before its first log line.
pub(crate) async fn learn_before(
    secret_store: &SecretStore,
    context: &TaskContext,
    request: &Request,
) -> Result<(), TaskError> {
    let workspace = context.workspace().ok();
    let (secret_store, task, engines) = (secret_store.clone(), request.task.clone(), context.engines.clone());
    let find = move || module::before(&engines, &task, workspace.as_ref(), &host(), secret_store.rules());
    let learned = learn(&context.secrets, &context.folder, find).await;
    learned
        .map_err(|error| Fault::new(format!("failed to find the secrets to mask in the log: {error}")).into())
}

fn host() -> BTreeMap<String, String> {
    let texts =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(texts).collect()
}

/// Learns the secrets that a refusal may quote from the request. Hold the result until the refusal is reported.
pub(crate) async fn learn_of_refused(
    secret_store: &SecretStore,
    settings: &Settings,
    engines: &Engines,
    step: &Step,
) -> JobSecrets {
    let secrets = of_step(secret_store, step);
    let StepWork::Task(request) = &step.work else { return secrets };
    let workspace = Workspace::new(&settings.working_directory, &request.common.metadata).ok();
    let (secret_store, task, engines) = (secret_store.clone(), request.task.clone(), engines.clone());
    let find =
        move || Ok(module::of_refused(&engines, &task, workspace.as_ref(), &host(), secret_store.rules()));
    if let Err(error) = learn(&secrets, &step.folder, find).await {
        secrets.hide_everything(&error);
    }
    secrets
}

/// Learns the secrets in the engine's results when the after hook starts, before it can print many of them. Drop it when the
/// script has ended.
pub(crate) async fn learn_meanwhile(
    secret_store: &SecretStore,
    context: &TaskContext,
    request: &Request,
) -> Infallible {
    if request.task.hooks().iter().any(Option::is_some) {
        while context.folder.part() != Some(ScriptPhase::After) {
            tokio::time::sleep(retry::AFTER_HOOK).await;
        }
        learn_after(secret_store, context, request).await;
    }
    std::future::pending().await
}

/// Learns the secrets in the results of the script. A failure does not fail the task.
pub(crate) async fn learn_after(secret_store: &SecretStore, context: &TaskContext, request: &Request) {
    let Ok(workspace) = context.workspace() else { return };
    let (secret_store, task, engines) = (secret_store.clone(), request.task.clone(), context.engines.clone());
    let step = context.folder.path().to_owned();
    let find = move || Ok(module::after(&engines, &task, &workspace, &step, secret_store.rules()));
    if let Err(error) = learn(&context.secrets, &context.folder, find).await {
        warn!(step = context.folder.name(), error, "failed to find the secrets in the results");
    }
}
