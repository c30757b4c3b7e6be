//! Settings: their layers, their types, and their diagnostics.
//!
//! Layers; a later one wins, value by value:
//!
//! 1. the defaults of the types in [`model`],
//! 2. `appsettings.json` in the working directory (comments and trailing commas allowed),
//! 3. `appsettings.{Environment}.json`, by `DOTNET_ENVIRONMENT`, else `ASPNETCORE_ENVIRONMENT`, else `Production`,
//! 4. environment variables: `Runner__Credentials__ClientSecret`, list items by index (`…__0`),
//! 5. the command line: `--Runner:Id=…` or `--Runner:Id …`.
//!
//! Keys are case-insensitive. `null` resets a value of earlier layers; for a list or a section it is the same as leaving it
//! out, and in `Policy` only a list may be `null`. A wrong value is a [`SettingsProblem`], and all problems are reported
//! together. An unknown key is a [`Warning`], or a [`SettingsProblem`] if it looks like a rule of `Policy`. Only environment
//! variables below our sections are read.
//!
//! Each layer is read into flat pairs of path and value (`layers`), each path is resolved to a setting and the layers are
//! merged (`resolve`), and the texts are converted and checked (`bind`, `values`). The keys come from the types in
//! [`model`], through their schema (`schema_tree`).

mod bind;
mod diagnostics;
mod inputs;
mod layers;
pub mod model;
pub mod patterns;
mod refusal;
mod resolve;
mod schema;
mod schema_tree;
mod values;

use std::io;
use std::path::Path;

use serde_json::json;
use thiserror::Error;

pub use bind::Effective;
pub use diagnostics::{Origin, SettingsProblem, Warning};
pub use inputs::SettingsInputs;
pub use model::Settings;
pub use refusal::Refusal;
pub use schema::settings_schema;
pub use values::SettingFault;

use bind::Binder;
use diagnostics::Diagnostics;
use layers::LayerValue;
use model::WorkingDirectorySettings;
use resolve::Resolver;
use schema_tree::SchemaNode;
use values::PathRoots;

use crate::base::tls;

/// Files with references to secrets, by their current and their old name.
const EXTERNAL_FILES: [&str; 2] = ["appsettings.External.json", "externalsettings.json"];

const CA_FILE: &str = "Server.CaFile";

/// The result of a successful load.
#[derive(Debug)]
pub struct Loaded {
    pub settings: Settings,
    pub warnings: Vec<Warning>,
    /// Every setting with its value and origin, sorted by section.
    pub effective: Vec<Effective>,
}

impl Loaded {
    /// Whether a layer sets the working directory, so that it is not the default.
    pub fn sets_working_directory(&self) -> bool {
        let key = "WorkingDirectory.WorkingDirectory";
        self.effective.iter().any(|setting| setting.key == key && setting.origin != Origin::Default)
    }
}

#[derive(Debug, Error)]
pub enum SettingsError {
    #[error("cannot determine the current directory")]
    CurrentDirectory(#[source] io::Error),
    /// A value that the loader accepted does not fit the types in [`model`].
    #[error("the settings are inconsistent: {0}")]
    Inconsistent(#[from] serde_json::Error),
    #[error("{}", summary(problems))]
    Invalid {
        problems: Vec<SettingsProblem>,
        /// A misspelled key often explains a missing one.
        warnings: Vec<Warning>,
        /// The settings without problems.
        effective: Vec<Effective>,
    },
}

fn summary(problems: &[SettingsProblem]) -> String {
    let count = problems.len();
    let mut text = format!("{count} {} with the settings", if count == 1 { "problem" } else { "problems" });
    for problem in problems {
        text.push_str(&format!("\n  {problem}"));
    }
    text
}

/// Reads all layers. The result depends only on `inputs` and the files in its working directory.
pub fn load(inputs: &SettingsInputs) -> Result<Loaded, SettingsError> {
    let Read { object, mut diagnostics, effective } = read(inputs);
    diagnostics.drop_consequences();
    let Diagnostics { problems, mut warnings } = diagnostics;
    if !problems.is_empty() {
        return Err(SettingsError::Invalid { problems, warnings, effective });
    }
    let settings: Settings = serde_json::from_value(serde_json::Value::Object(object))?;
    let hooks = &settings.hooks_preapproval;
    let needs_approval = hooks.enabled || settings.policy.hooks == model::HookPolicy::Preapproved;
    if needs_approval
        && !hooks.preapproved_hooks_directory.as_ref().is_some_and(|directory| directory.is_dir())
    {
        warnings.push(Warning::NothingPreapproved);
    }
    Ok(Loaded { settings, warnings, effective })
}

/// Reads all layers for the section that `hawser clean` needs, and ignores problems with other settings.
pub fn load_working_directory(
    inputs: &SettingsInputs,
) -> Result<(WorkingDirectorySettings, Vec<Warning>), SettingsError> {
    const SECTION: &str = "WorkingDirectory";
    let (mut object, warnings, _) = read_sections(inputs, &[SECTION])?;
    Ok((serde_json::from_value(object.remove(SECTION).unwrap_or_default())?, warnings))
}

/// Reads all layers for commands that work in a module and never connect. Problems with the settings of the connection and of
/// logs are ignored, and missing ones have placeholders: these settings are often only in the environment of the service.
pub fn load_for_module(inputs: &SettingsInputs) -> Result<Loaded, SettingsError> {
    const NEEDED: [&str; 5] = ["WorkingDirectory", "Engine", "Policy", "HooksPreapproval", "Audit"];
    let (object, warnings, effective) = read_sections(inputs, &NEEDED)?;
    let mut settings = serde_json::Value::Object(object);
    let none = uuid::Uuid::nil();
    let credentials = json!({"ClientId": "", "ClientSecret": ""});
    let runner = json!({"Id": none, "OrganizationId": none, "Instance": "", "Credentials": credentials});
    fill(&mut settings, &json!({"Runner": runner, "Server": {"Url": "http://localhost"}}));
    Ok(Loaded { settings: serde_json::from_value(settings)?, warnings, effective })
}

/// Adds the members that are missing.
fn fill(settings: &mut serde_json::Value, placeholders: &serde_json::Value) {
    let (Some(settings), Some(placeholders)) = (settings.as_object_mut(), placeholders.as_object()) else {
        return;
    };
    for (name, placeholder) in placeholders {
        fill(settings.entry(name).or_insert_with(|| placeholder.clone()), placeholder);
    }
}

/// The values to deserialize, the warnings, and all settings with their origins.
type ReadSections = (serde_json::Map<String, serde_json::Value>, Vec<Warning>, Vec<Effective>);

/// Reads all layers, and ignores problems with settings outside of these sections, and warnings about them. Unreadable layers count, because they may
/// contain settings of these sections, and so do all problems on the command line.
fn read_sections(inputs: &SettingsInputs, sections: &[&str]) -> Result<ReadSections, SettingsError> {
    let Read { object, diagnostics: Diagnostics { mut problems, mut warnings }, effective } = read(inputs);
    warnings.retain(|warning| warning.concerns(sections));
    problems.retain(|SettingsProblem { key, origin, .. }| {
        let section = key.as_ref().and_then(|key| key.split('.').next());
        section.is_none_or(|section| sections.iter().any(|needed| needed.eq_ignore_ascii_case(section)))
            || matches!(origin, Some(Origin::CommandLine | Origin::Option(_)))
    });
    if !problems.is_empty() {
        return Err(SettingsError::Invalid { problems, warnings, effective });
    }
    Ok((object, warnings, effective))
}

/// The merged layers.
struct Read {
    /// To deserialize if there was no problem.
    object: serde_json::Map<String, serde_json::Value>,
    diagnostics: Diagnostics,
    effective: Vec<Effective>,
}

fn read(inputs: &SettingsInputs) -> Read {
    let node = SchemaNode::of_settings();
    let mut diagnostics = Diagnostics::default();
    let mut resolver = Resolver::new(&node, &inputs.working_dir);
    for layer in read_layers(inputs, &node, &mut diagnostics) {
        resolver.resolve(layer, &mut diagnostics);
    }
    let mut binder = Binder {
        roots: PathRoots { working_dir: &inputs.working_dir, home: inputs.home.as_deref() },
        host_name: &inputs.host_name,
        merged: resolver.merged(),
        diagnostics: &mut diagnostics,
        effective: Vec::new(),
    };
    let object = binder.section(node.keys(), &[]);
    let effective = binder.effective;
    patterns::check(&effective, &mut diagnostics);
    // Usually a placeholder, if another layer overrides it.
    let is_overridden = |key: &str, file: &str| {
        let mut same = effective.iter().filter(|setting| setting.key == key);
        same.any(|setting| !matches!(&setting.origin, Origin::File(origin) if origin == file))
    };
    diagnostics.warnings.retain(
        |warning| !matches!(warning, Warning::SecretReadable { key, file, .. } if is_overridden(key, file)),
    );
    if let Some(path) = object["Server"]["CaFile"].as_str()
        && let Err(error) = tls::authorities(Path::new(path))
    {
        let fault = SettingFault::NotAuthorities(error);
        let origin = effective.iter().find(|setting| setting.key == CA_FILE).map(|setting| &setting.origin);
        diagnostics.problem_with_value(CA_FILE, Some(path.to_owned()), origin, fault);
    }
    Read { object, diagnostics, effective }
}

/// Reads the layers, lowest first.
fn read_layers(
    inputs: &SettingsInputs,
    node: &SchemaNode,
    diagnostics: &mut Diagnostics,
) -> [Vec<LayerValue>; 4] {
    let dir = &inputs.working_dir;
    let environment = inputs.environment_name(diagnostics);
    for file in EXTERNAL_FILES.into_iter().filter(|file| dir.join(file).exists()) {
        diagnostics.warn(Warning::ExternalNotRead { file: file.to_owned() });
    }
    [
        layers::file::read(dir, "appsettings.json", diagnostics),
        layers::file::read(dir, &format!("appsettings.{environment}.json"), diagnostics),
        layers::from_environment(&inputs.environment, node, diagnostics),
        layers::from_command_line(&inputs.arguments, diagnostics),
    ]
}
