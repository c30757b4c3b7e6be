//! The variables and outputs that a module declares, read from its files by real parsers.
//!
//! Which files count: in the module's folder itself (not below it) those that end in `.tf` and `.tf.json`, for tofu also
//! `.tofu` and `.tofu.json`, where `a.tofu` takes the place of `a.tf`. Files that editors leave behind are passed
//! over as the engines do. `override.tf` and `*_override.tf` come last and replace single attributes.
//! A file that cannot be parsed is named in a warning, and the rest still counts.

mod json;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::Path;

use hawser_contract::{Variable, VariableSet};
use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, UnaryOperator};
use hcl_edit::structure::Body;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{EngineError, hcl_values};
use crate::base::confined_dir::read_limited;
use crate::base::digest::hex;
use crate::workspace::Tree;
use json::{Members, bodies};

/// Nobody writes this much of a module into one file.
pub(crate) const LARGEST_FILE: u64 = 16 * 1024 * 1024;

/// What a module's files declare.
#[derive(Debug, Default)]
pub struct Declarations {
    variables: BTreeMap<String, Declared>,
    /// Name of each output with the file that it is in.
    outputs: BTreeMap<String, String>,
    pub warnings: Vec<String>,
}

/// A variable as far as it is known: an override may fill in or replace each attribute.
#[derive(Debug, Default)]
struct Declared {
    file: String,
    kind: Option<String>,
    description: Option<String>,
    /// What cannot be evaluated here counts as true.
    sensitive: Option<bool>,
    nullable: Option<bool>,
    /// Whether there is a default, and whether it is something else than null.
    default: Option<bool>,
    /// The texts in that default.
    default_texts: Vec<String>,
}

impl Declared {
    fn overridden_by(&mut self, other: Self) {
        self.kind = other.kind.or(self.kind.take());
        self.description = other.description.or(self.description.take());
        self.sensitive = other.sensitive.or(self.sensitive);
        self.nullable = other.nullable.or(self.nullable);
        self.default = other.default.or(self.default);
        self.default_texts.extend(other.default_texts);
    }
}

impl Declarations {
    /// Reads the module in a tree, and nothing that symlinks lead to outside of that.
    pub fn of_module(folder: &Path, tree: &Tree, reads_tofu: bool) -> Result<Self, EngineError> {
        let failed =
            |source| EngineError::Read { what: "the module's folder", path: folder.to_owned(), source };
        let names = tree.file_names().map_err(failed)?;
        Self::of_files(folder, names, reads_tofu, |name| tree.open_file(name))
    }

    fn of_files(
        folder: &Path,
        names: Vec<String>,
        reads_tofu: bool,
        open: impl Fn(&str) -> io::Result<File>,
    ) -> Result<Self, EngineError> {
        let mut found = Self::default();
        for name in files(names.into_iter().collect(), reads_tofu) {
            let path = folder.join(&name);
            let text = open(&name).and_then(|file| read_limited(file, LARGEST_FILE));
            let text = match text.map(String::from_utf8) {
                Ok(Ok(text)) => text,
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                    found
                        .warnings
                        .push(format!("{name} is too large: its variables and outputs are not seen"));
                    continue;
                }
                Ok(Err(_)) => {
                    found
                        .warnings
                        .push(format!("{name} is not UTF-8: its variables and outputs are not seen"));
                    continue;
                }
                Err(source) => return Err(EngineError::Read { what: "a file of the module", path, source }),
            };
            // The parser takes a byte order mark for a syntax error.
            let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
            let parsed = if name.ends_with(".json") {
                found.json(&name, text).map_err(|error| error.to_string())
            } else {
                found.hcl(&name, text)
            };
            if let Err(reason) = parsed {
                let reason = reason.lines().next().unwrap_or_default().to_owned();
                found.warnings.push(format!(
                    "{name} cannot be parsed, its variables and outputs are not seen: {reason}"
                ));
            }
        }
        Ok(found)
    }

    fn hcl(&mut self, file: &str, text: &str) -> Result<(), String> {
        let body = hcl_edit::parser::parse_body(text)
            .map_err(|error| format!("line {}: {}", error.location().line(), error.message()))?;
        for block in body.blocks() {
            let [label] = block.labels.as_slice() else { continue };
            let name = label.as_str().to_owned();
            match block.ident.as_str() {
                "variable" => self.variable(file, name, hcl_variable(&block.body, text)),
                "output" => self.output(file, name),
                _ => {}
            }
        }
        Ok(())
    }

    fn json(&mut self, file: &str, text: &str) -> Result<(), serde_json::Error> {
        for (kind, blocks) in bodies(text)?.into_iter().flat_map(|root| root.0) {
            if !["variable", "output"].contains(&kind.as_str()) {
                continue;
            }
            for (name, body) in bodies(blocks.get())?.into_iter().flat_map(|block| block.0) {
                if kind == "output" {
                    self.output(file, name);
                    continue;
                }
                for attributes in bodies(body.get())? {
                    self.variable(file, name.clone(), json_variable(&attributes)?);
                }
            }
        }
        Ok(())
    }

    fn variable(&mut self, file: &str, name: String, declared: Declared) {
        match self.variables.get_mut(&name) {
            Some(earlier) if is_override(file) => earlier.overridden_by(declared),
            // Two declarations in ordinary files are an error that the engine itself will name.
            Some(_) => {}
            None => {
                self.variables.insert(name, Declared { file: file.to_owned(), ..declared });
            }
        }
    }

    fn output(&mut self, file: &str, name: String) {
        self.outputs.entry(name).or_insert_with(|| file.to_owned());
    }

    /// Whether the values of this variable are secret: it says so, or no file that could be read declares it and one could
    /// not be read.
    pub fn is_sensitive(&self, variable: &str) -> bool {
        match self.variables.get(variable) {
            Some(declared) => declared.sensitive == Some(true),
            None => !self.warnings.is_empty(),
        }
    }

    /// Each variable with the texts in its default.
    pub fn defaults(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.variables.iter().map(|(name, declared)| (name.as_str(), declared.default_texts.as_slice()))
    }

    /// The outputs that the extra files declare.
    pub fn outputs_of(&self, extra_files: &[String]) -> BTreeSet<String> {
        let own = self.outputs.iter().filter(|(_, file)| extra_files.contains(file));
        own.map(|(name, _)| name.clone()).collect()
    }

    /// The variables as the server wants them; None when there are none.
    pub fn variable_set(
        &self,
        module_id: Uuid,
        extra_files: &[String],
        timestamp: i64,
    ) -> Option<VariableSet> {
        let variables: Vec<_> = self
            .variables
            .iter()
            .map(|(name, it)| Variable {
                name: name.clone(),
                kind: it.kind.clone(),
                description: it.description.clone(),
                sensitive: it.sensitive.unwrap_or(false),
                nullable: it.nullable.unwrap_or(it.default == Some(true)),
                from_extra_file: extra_files.contains(&it.file),
            })
            .collect();
        if variables.is_empty() {
            return None;
        }
        // In the order of their names and without the time, so that it only changes when a variable does.
        let mut hash = Sha256::new();
        for variable in &variables {
            hash.update(serde_json::to_vec(variable).unwrap_or_default());
        }
        Some(VariableSet { module_id, timestamp, checksum: hex(&hash.finalize()), variables })
    }
}

/// The files that count, ordinary ones before overrides, each in the order of their names.
#[expect(clippy::needless_pass_by_value, reason = "nobody needs the others any more")]
fn files(names: BTreeSet<String>, reads_tofu: bool) -> Vec<String> {
    let is_left_behind = |name: &str| {
        name.starts_with('.') || name.ends_with('~') || (name.starts_with('#') && name.ends_with('#'))
    };
    let counts = |name: &String| {
        if is_left_behind(name) {
            return false;
        }
        let replaced_by = |stem: &str, ending| names.contains(&format!("{stem}{ending}"));
        match split(name) {
            None => false,
            Some((_, ending)) if !reads_tofu => ending.starts_with(".tf"),
            Some((stem, ".tf")) => !replaced_by(stem, ".tofu"),
            Some((stem, ".tf.json")) => !replaced_by(stem, ".tofu.json"),
            Some(_) => true,
        }
    };
    let mut files: Vec<_> = names.iter().filter(|name| counts(name)).cloned().collect();
    files.sort_by_key(|name| is_override(name));
    files
}

fn split(name: &str) -> Option<(&str, &'static str)> {
    [".tf.json", ".tofu.json", ".tf", ".tofu"]
        .into_iter()
        .find_map(|ending| name.strip_suffix(ending).map(|stem| (stem, ending)))
}

fn is_override(name: &str) -> bool {
    split(name).is_some_and(|(stem, _)| stem == "override" || stem.ends_with("_override"))
}

fn hcl_variable(body: &Body, text: &str) -> Declared {
    let attribute = |name: &str| body.get_attribute(name).map(|attribute| &attribute.value);
    let source = |expression: &Expression| {
        let range = expression.span()?;
        text.get(range).map(|text| text.trim().to_owned())
    };
    Declared {
        file: String::new(),
        kind: attribute("type").and_then(|it| source(it).or_else(|| Some(it.to_string().trim().to_owned()))),
        description: attribute("description").and_then(hcl_values::string),
        sensitive: attribute("sensitive").map(|it| switch(it).unwrap_or(true)),
        nullable: attribute("nullable").and_then(switch),
        default: attribute("default").map(|value| !value.is_null()),
        default_texts: attribute("default").map(hcl_values::texts).unwrap_or_default(),
    }
}

/// What the engines make of an expression that has to be true or false. They also evaluate calls and templates, but here
/// nobody does.
fn switch(expression: &Expression) -> Option<bool> {
    match expression {
        Expression::Bool(value) => Some(*value.value()),
        Expression::Parenthesis(inner) => switch(inner.inner()),
        Expression::UnaryOp(operation) if *operation.operator.value() == UnaryOperator::Not => {
            switch(&operation.expr).map(|value| !value)
        }
        other => hcl_values::string(other).as_deref().and_then(switch_text),
    }
}

fn switch_text(text: &str) -> Option<bool> {
    match text {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

fn json_variable(attributes: &Members) -> Result<Declared, serde_json::Error> {
    let mut members = serde_json::Map::new();
    for (name, value) in &attributes.0 {
        members.insert(name.clone(), serde_json::from_str(value.get())?);
    }
    let text = |name: &str| members.get(name).and_then(Value::as_str).map(str::to_owned);
    // JSON has no bare words, and a string that says true is taken for it.
    let switch = |name: &str| match members.get(name) {
        Some(Value::Bool(value)) => Some(*value),
        Some(Value::String(text)) => switch_text(text),
        _ => None,
    };
    let is_sensitive = || switch("sensitive").unwrap_or(true);
    Ok(Declared {
        file: String::new(),
        kind: text("type"),
        description: text("description"),
        sensitive: members.contains_key("sensitive").then(is_sensitive),
        nullable: switch("nullable"),
        default: members.get("default").map(|value| !value.is_null()),
        default_texts: members.get("default").map(json_texts).unwrap_or_default(),
    })
}

fn json_texts(value: &Value) -> Vec<String> {
    serde_json::value::to_raw_value(value).map(|raw| hcl_values::json_texts(&raw)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
