//! What a step must not say is found before its first line, and again when its script has ended.

use std::collections::BTreeMap;

use tracing::warn;

use crate::contract::{Fault, Request};
use crate::intake::{Step, Work};
use crate::redact::gather::{self, module};
use crate::redact::{JobSecrets, Vault};
use crate::tasks::{Context, TaskError};
use crate::workspace::Workspace;

/// The secrets of a step's job, with those that its folder has noted. To be held for as long as the step is driven.
pub(super) fn of_step(vault: &Vault, step: &Step) -> JobSecrets {
    let secrets = vault.job(step.job_id());
    match step.folder.secrets() {
        Ok(noted) => secrets.learn(noted.iter().map(String::as_str)),
        Err(error) => secrets.hide_everything(&error.to_string()),
    }
    if let Work::Refresh(refresh) = &step.work {
        for secret in gather::credentials(&refresh.source_url, vault.rules()) {
            vault.learn(&secret);
        }
    }
    secrets
}

/// Learns what the task must not say, and notes it in the step's folder. Nothing has been said of it by then.
pub(super) async fn learn_before(
    vault: &Vault,
    context: &Context,
    request: &Request,
) -> Result<(), TaskError> {
    let workspace = Workspace::new(&context.settings.working_directory, &request.common.metadata).ok();
    let (vault, task) = (vault.clone(), request.task.clone());
    let finding = tokio::task::spawn_blocking(move || {
        let texts = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let host: BTreeMap<String, String> = std::env::vars_os().filter_map(texts).collect();
        module::before(&task, workspace.as_ref(), &host, vault.rules())
    });
    let unknown =
        |reason: String| Fault::new(format!("cannot tell what is to be masked in the log: {reason}"));
    let found = finding.await.map_err(|error| unknown(error.to_string()))??;
    context.secrets.learn(found.iter().map(String::as_str));
    context.folder.add_secrets(&found).map_err(|error| unknown(error.to_string()).into())
}

/// Learns what a request itself says that must not be repeated. For a task that is refused: nothing of its module is looked at.
pub(super) fn learn_from_request(vault: &Vault, secrets: &JobSecrets, step: &Step) {
    let Work::Task(request) = &step.work else { return };
    let noted = module::before(&request.task, None, &BTreeMap::new(), vault.rules())
        .map_err(|error| error.to_string())
        .and_then(|found| {
            secrets.learn(found.iter().map(String::as_str));
            step.folder.add_secrets(&found).map_err(|error| error.to_string())
        });
    if let Err(reason) = noted {
        secrets.hide_everything(&reason);
    }
}

/// Learns what the script has revealed. What it has done is done, so nothing here can fail the task.
pub(super) async fn learn_after(vault: &Vault, context: &Context, request: &Request) {
    let Ok(workspace) = Workspace::new(&context.settings.working_directory, &request.common.metadata) else {
        return;
    };
    let (vault, task, step) = (vault.clone(), request.task.clone(), context.folder.path().to_owned());
    let finding = move || module::after(&task, &workspace, &step, vault.rules());
    match tokio::task::spawn_blocking(finding).await {
        Ok(found) => {
            context.secrets.learn(found.iter().map(String::as_str));
            if let Err(error) = context.folder.add_secrets(&found) {
                warn!(step = context.folder.name(), "cannot note what is to be masked: {error}");
            }
        }
        Err(error) => warn!(step = context.folder.name(), "cannot tell what is to be masked: {error}"),
    }
}
