//! Settings: where they come from, what they are, and what is wrong with them.
//!
//! Layers, a later one wins, value by value:
//!
//! 1. the defaults of the types in [`model`],
//! 2. `appsettings.json` in the working directory (comments and trailing commas allowed),
//! 3. `appsettings.{Environment}.json`, by `DOTNET_ENVIRONMENT`, else `ASPNETCORE_ENVIRONMENT`, else `Production`,
//! 4. environment variables: `Runner__Credentials__ClientSecret`, list items by index (`…__0`),
//! 5. the command line: `--Runner:Id=…` or `--Runner:Id …`.
//!
//! Keys match in any case. `null` takes back what earlier layers said about a value; for a list or a section it is the same
//! as leaving it out, and in `Policy` only a list may be `null`. A wrong value is a [`SettingsProblem`], and all of them are reported
//! together. An unknown key is a [`Warning`], and a [`SettingsProblem`] where it looks like a rule of `Policy`. Only variables below
//! one of our sections are looked at.
//!
//! The way of a value: a layer is read into flat pairs of path and value (`layers`), each path finds its
//! setting (`resolve`), the layers are merged (`merge`), and the texts become checked values (`bind`,
//! `values`). All knowledge about keys comes from the types, through their schema (`schema_tree`).

mod bind;
mod diagnostics;
mod inputs;
mod layers;
mod merge;
pub mod model;
pub mod patterns;
mod refusal;
mod resolve;
mod schema;
mod schema_tree;
mod values;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use thiserror::Error;

pub use bind::Effective;
pub use diagnostics::{Origin, SettingsProblem, Warning};
pub use inputs::Origins;
pub use model::Settings;
pub use refusal::Refusal;
pub use schema::settings_schema;
pub use values::Fault;

use bind::Binder;
use diagnostics::Diagnostics;
use layers::LayerValue;
use model::WorkingDirectorySettings;
use resolve::Placer;
use schema_tree::SchemaNode;
use values::PathRoots;

use crate::base::tls;

/// Files with references to secrets, by their present and their older name.
const EXTERNAL_FILES: [&str; 2] = ["appsettings.External.json", "externalsettings.json"];

const CA_FILE: &str = "Server.CaFile";

/// Settings that are complete and checked.
#[derive(Debug)]
pub struct Loaded {
    pub settings: Settings,
    pub warnings: Vec<Warning>,
    /// Every setting with its value and where it came from, sorted by section.
    pub effective: Vec<Effective>,
}

/// Why there are no settings.
#[derive(Debug, Error)]
pub enum SettingsError {
    #[error("cannot tell the current directory")]
    CurrentDirectory(#[source] io::Error),
    #[error("{}", told(problems))]
    Invalid {
        problems: Vec<SettingsProblem>,
        /// A misspelt key is often the reason for a missing one.
        warnings: Vec<Warning>,
        /// The settings as far as they are known.
        effective: Vec<Effective>,
    },
}

fn told(problems: &[SettingsProblem]) -> String {
    let count = problems.len();
    let mut text = format!("{count} {} with the settings", if count == 1 { "problem" } else { "problems" });
    for problem in problems {
        text.push_str(&format!("\n  {problem}"));
    }
    text
}

/// Reads all layers. What it says depends on `origins` and the files in its working directory, and on nothing else.
pub fn load(origins: &Origins) -> Result<Loaded, SettingsError> {
    let Read { object, mut findings, effective } = read(origins);
    findings.drop_echoes();
    let Diagnostics { mut problems, mut warnings } = findings;
    if problems.is_empty() {
        match serde_path_to_error::deserialize::<_, Settings>(serde_json::Value::Object(object)) {
            Ok(settings) => {
                let hooks = &settings.hooks_preapproval;
                let only_approved = hooks.enabled || settings.policy.hooks == model::HookPolicy::Preapproved;
                if only_approved
                    && !hooks.preapproved_hooks_directory.as_ref().is_some_and(|directory| directory.is_dir())
                {
                    warnings.push(Warning::NothingPreapproved);
                }
                return Ok(Loaded { settings, warnings, effective });
            }
            Err(error) => problems.push(refused(error)),
        }
    }
    Err(SettingsError::Invalid { problems, warnings, effective })
}

/// Reads all layers for the one section that cleaning up needs. What is wrong with other settings keeps nobody from that; a
/// layer that cannot be read might name another directory, and a slip on the command line was made just now.
pub fn load_working_directory(
    origins: &Origins,
) -> Result<(WorkingDirectorySettings, Vec<Warning>), SettingsError> {
    const SECTION: &str = "WorkingDirectory";
    let Read { mut object, findings: Diagnostics { mut problems, warnings }, effective } = read(origins);
    problems.retain(|SettingsProblem { key, origin, .. }| {
        let section = key.as_ref().and_then(|key| key.split('.').next());
        section.is_none_or(|section| section.eq_ignore_ascii_case(SECTION))
            || origin.as_ref().is_some_and(Origin::is_command_line)
    });
    if problems.is_empty() {
        match serde_path_to_error::deserialize(object.remove(SECTION).unwrap_or_default()) {
            Ok(section) => return Ok((section, warnings)),
            Err(error) => problems.push(refused(error)),
        }
    }
    Err(SettingsError::Invalid { problems, warnings, effective })
}

fn refused(error: serde_path_to_error::Error<serde_json::Error>) -> SettingsProblem {
    SettingsProblem {
        key: Some(error.path().to_string()),
        value: None,
        origin: None,
        fault: Fault::Refused(error.into_inner().to_string()),
    }
}

/// What all layers say together.
struct Read {
    /// From which the types are read when there was no problem.
    object: serde_json::Map<String, serde_json::Value>,
    findings: Diagnostics,
    effective: Vec<Effective>,
}

fn read(origins: &Origins) -> Read {
    let shape = SchemaNode::of_settings();
    let mut findings = Diagnostics::default();
    let mut placer = Placer { shape: &shape, map_keys: HashMap::new(), placed: Vec::new() };
    for layer in read_layers(origins, &shape, &mut findings) {
        warn_of_open_secrets(origins, &shape, &layer, &mut findings);
        placer.place(layer, &mut findings);
    }
    let mut binder = Binder {
        places: PathRoots { working_dir: &origins.working_dir, home: origins.home.as_deref() },
        host_name: &origins.host_name,
        merged: merge::merge(placer.placed),
        findings: &mut findings,
        effective: Vec::new(),
    };
    let object = binder.section(shape.keys(), &[]);
    let effective = binder.effective;
    patterns::check(&effective, &mut findings);
    if let Some(path) = object["Server"]["CaFile"].as_str()
        && let Err(error) = tls::authorities(Path::new(path))
    {
        let fault = Fault::NotAuthorities(error);
        let origin = effective.iter().find(|one| one.key == CA_FILE).map(|one| &one.origin);
        findings.problem(CA_FILE, Some(path.to_owned()), origin, fault);
    }
    Read { object, findings, effective }
}

/// Warns of secrets where others can read them: in a file, or on the command line.
fn warn_of_open_secrets(
    origins: &Origins,
    shape: &SchemaNode,
    layer: &[LayerValue],
    findings: &mut Diagnostics,
) {
    for given in layer.iter().filter(|given| shape.is_secret(&given.path)) {
        let key = given.path.join(".");
        match &given.origin {
            Origin::Option(_) => findings.warn(Warning::SecretOnCommandLine { key }),
            Origin::File(file) => {
                let Ok(found) = std::fs::metadata(origins.working_dir.join(file)) else { continue };
                let mode = found.permissions().mode() & 0o7777;
                if mode & 0o044 != 0 {
                    findings.warn(Warning::SecretReadable { key, file: file.clone(), mode });
                }
            }
            _ => {}
        }
    }
}

/// What each layer gives, lowest first.
fn read_layers(origins: &Origins, shape: &SchemaNode, findings: &mut Diagnostics) -> [Vec<LayerValue>; 4] {
    let dir = &origins.working_dir;
    let environment = origins.environment_name(findings);
    for file in EXTERNAL_FILES.into_iter().filter(|file| dir.join(file).exists()) {
        findings.warn(Warning::ExternalNotRead { file: file.to_owned() });
    }
    [
        layers::file::read(dir, "appsettings.json", findings),
        layers::file::read(dir, &format!("appsettings.{environment}.json"), findings),
        layers::from_environment(&origins.environment, shape, findings),
        layers::from_command_line(&origins.arguments, findings),
    ]
}
