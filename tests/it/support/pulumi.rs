//! Modules for the real Pulumi: programs in YAML, with a state and a home of their own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hawser_contract::{
    EngineName, EngineTask, Flag, FlagLists, InitOptions, PulumiArrayFlag, PulumiFlag, Task, TaskRequest,
};

use super::real_engines::real;
use super::steps::Bench;

/// A module with this program below its name and runtime, or `None` if Pulumi is missing and the test must be skipped.
///
/// A resource that needs no provider is `type: pulumi:index:Stash` with `properties: {input: …}`.
pub(crate) fn pulumi_module(program: &str) -> Option<Bench> {
    let engine = real(EngineName::PULUMI)?;
    let text = format!("name: program\nruntime: yaml\n{program}");
    Some(Bench::new(&[("Pulumi.yaml", &text)]).with_engine(&engine))
}

/// The folder with the state of a module that [`pulumi_init`] initialized.
pub(crate) fn pulumi_state(bench: &Bench) -> PathBuf {
    bench.root.path().join("state")
}

/// Init with a backend in a folder of the test. Further flags come after that.
pub(crate) fn pulumi_init(bench: &Bench, flags: &[(PulumiFlag, Option<&str>)]) -> TaskRequest {
    let state = pulumi_state(bench);
    std::fs::create_dir_all(&state).unwrap();
    let url = format!("file://{}", state.display());
    let flags = [&[(PulumiFlag::CloudUrl, Some(url.as_str()))], flags].concat();
    let home = bench.root.path().join("pulumi-home").display().to_string();
    let variables = [("PULUMI_HOME", home.as_str()), ("PULUMI_CONFIG_PASSPHRASE", "a long passphrase")];
    TaskRequest::Engine(EngineTask {
        init: InitOptions {
            resolved_env_vars: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..InitOptions::default()
        },
        flags: pulumi_flags(&flags, &[]),
        ..EngineTask::new(Task::Init, EngineName::PULUMI)
    })
}

/// A Plan or PlanDestroy. The values of parameters are HCL.
pub(crate) fn pulumi_plan(task: Task, parameters: &[(&str, &str)], flags: FlagLists) -> TaskRequest {
    let parameters = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let resolved_parameters: BTreeMap<_, _> = parameters.collect();
    TaskRequest::Engine(EngineTask {
        flags,
        resolved_parameters,
        ..EngineTask::new(task, EngineName::PULUMI)
    })
}

/// Any other task.
pub(crate) fn pulumi_task(task: Task, flags: FlagLists) -> TaskRequest {
    TaskRequest::Engine(EngineTask { flags, ..EngineTask::new(task, EngineName::PULUMI) })
}

pub(crate) fn pulumi_flags(
    flags: &[(PulumiFlag, Option<&str>)],
    arrays: &[(PulumiArrayFlag, &str)],
) -> FlagLists {
    let flags = flags.iter().map(|(flag, value)| Flag::new(*flag, *value));
    let arrays = arrays.iter().map(|(flag, value)| Flag::new(*flag, Some(value)));
    FlagLists {
        pulumi_flags: flags.collect::<Vec<_>>().into(),
        pulumi_array_flags: arrays.collect::<Vec<_>>().into(),
        ..FlagLists::default()
    }
}
