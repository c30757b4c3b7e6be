//! What a step must not say is found before its first line, again when its after hook begins, and when its script has
//! ended. What is found late counts for all lines that were not sent by then, those of a batch in the making included.

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
use crate::step::{Step, StepWork};
use crate::tasks::{TaskContext, TaskError};
use crate::workspace::Workspace;

/// The secrets of a step's job, with those that its folder has noted. To be held for as long as the step is driven.
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

/// Learns what the task must not say, and notes it in the step's folder. Nothing has been said of it by then.
pub(crate) async fn learn_before(
    secret_store: &SecretStore,
    context: &TaskContext,
    request: &Request,
) -> Result<(), TaskError> {
    let workspace = Workspace::new(&context.settings.working_directory, &request.common.metadata).ok();
    let (secret_store, task, engines) = (secret_store.clone(), request.task.clone(), context.engines.clone());
    let finding =
        blocking(move || module::before(&engines, &task, workspace.as_ref(), &host(), secret_store.rules()));
    let unknown =
        |reason: String| Fault::new(format!("cannot tell what is to be masked in the log: {reason}"));
    let found = finding.await.map_err(|error| unknown(error.to_string()))??;
    context.secrets.learn(found.iter().map(String::as_str));
    compile(&context.secrets).await;
    context.folder.add_secrets(&found).map_err(|error| unknown(error.to_string()).into())
}

fn host() -> BTreeMap<String, String> {
    let texts =
        |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
    std::env::vars_os().filter_map(texts).collect()
}

/// Learns what the words of a refusal may repeat: they quote the request. To be held until all is said.
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
    let finding =
        move || module::of_refused(&engines, &task, workspace.as_ref(), &host(), secret_store.rules());
    match blocking(finding).await {
        Ok(found) => {
            secrets.learn(found.iter().map(String::as_str));
            if let Err(error) = step.folder.add_secrets(&found) {
                warn!(step = step.name(), "cannot note what is to be masked: {error}");
            }
        }
        Err(_) => secrets.hide_everything("they could not be looked for"),
    }
    secrets
}

/// Compiles what has been learnt, so that no thread of the async runtime has to.
async fn compile(secrets: &JobSecrets) {
    let secrets = secrets.clone();
    // Whoever needs it next compiles it, if this fails.
    let _ = blocking(move || drop(secrets.masker())).await;
}

/// Learns what the engine has revealed before an after hook can say much of it: all that is looked at then is on the disk
/// when the hook begins. To be dropped when the script has ended.
pub(crate) async fn learn_meanwhile(
    secret_store: &SecretStore,
    context: &TaskContext,
    request: &Request,
) -> Infallible {
    if request.task.hooks().iter().any(Option::is_some) {
        while context.folder.part().as_deref() != Some(ScriptPhase::After.word()) {
            tokio::time::sleep(retry::AFTER_HOOK).await;
        }
        learn_after(secret_store, context, request).await;
    }
    std::future::pending().await
}

/// Learns what the script has revealed. What it has done is done, so nothing here can fail the task.
pub(crate) async fn learn_after(secret_store: &SecretStore, context: &TaskContext, request: &Request) {
    let Ok(workspace) = Workspace::new(&context.settings.working_directory, &request.common.metadata) else {
        return;
    };
    let engines = context.engines.clone();
    let (secret_store, task, step) =
        (secret_store.clone(), request.task.clone(), context.folder.path().to_owned());
    let finding = move || module::after(&engines, &task, &workspace, &step, secret_store.rules());
    match blocking(finding).await {
        Ok(found) => {
            context.secrets.learn(found.iter().map(String::as_str));
            compile(&context.secrets).await;
            if let Err(error) = context.folder.add_secrets(&found) {
                warn!(step = context.folder.name(), "cannot note what is to be masked: {error}");
            }
        }
        Err(error) => warn!(step = context.folder.name(), "cannot tell what is to be masked: {error}"),
    }
}
