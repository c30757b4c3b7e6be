//! The variables and outputs that a module declares, parsed from its files.
//!
//! The files are those in the module's folder that end in `.tf` or `.tf.json`. OpenTofu also reads `.tofu` and `.tofu.json`,
//! and `a.tofu` replaces `a.tf`. Backup files of editors are ignored, as by the engines. `override.tf` and `*_override.tf`
//! come last and replace single attributes. A file that cannot be parsed causes a warning and is ignored.

mod json;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;

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

/// Larger than any file that a person writes.
pub(crate) const LARGEST_FILE: u64 = 16 * 1024 * 1024;

#[derive(Debug, Default)]
pub struct Declarations {
    variables: BTreeMap<String, Declared>,
    /// Each output and its file.
    outputs: BTreeMap<String, String>,
    pub warnings: Vec<String>,
}

/// A variable. An override may add or replace each attribute.
#[derive(Debug, Default)]
struct Declared {
    file: String,
    kind: Option<String>,
    description: Option<String>,
    /// True if the expression cannot be evaluated here.
    sensitive: Option<bool>,
    /// True if the expression cannot be evaluated here.
    ephemeral: Option<bool>,
    nullable: Option<bool>,
    /// Whether the default, if there is one, is not null.
    default: Option<bool>,
    /// The strings and numbers in the default.
    default_texts: Vec<String>,
}

impl Declared {
    fn overridden_by(&mut self, other: Self) {
        self.kind = other.kind.or(self.kind.take());
        self.description = other.description.or(self.description.take());
        self.sensitive = other.sensitive.or(self.sensitive);
        self.ephemeral = other.ephemeral.or(self.ephemeral);
        self.nullable = other.nullable.or(self.nullable);
        self.default = other.default.or(self.default);
        self.default_texts.extend(other.default_texts);
    }
}

impl Declarations {
    /// Reads the files of a module. Symlinks that lead out of the tree are an error.
    pub fn of_module(tree: &Tree, reads_tofu: bool) -> Result<Self, EngineError> {
        let names = tree.file_names().map_err(|source| EngineError::Read { path: ".".into(), source })?;
        Self::of_files(names, reads_tofu, |name| tree.open_file(name))
    }

    fn of_files(
        names: Vec<String>,
        reads_tofu: bool,
        open: impl Fn(&str) -> io::Result<File>,
    ) -> Result<Self, EngineError> {
        let mut found = Self::default();
        for name in files(&names.into_iter().collect(), reads_tofu) {
            let text = match open(&name).and_then(|file| read_limited(file, LARGEST_FILE)) {
                Err(source) if source.kind() != io::ErrorKind::FileTooLarge => {
                    return Err(EngineError::Read { path: name.into(), source });
                }
                text => text.map_err(|error| error.to_string()),
            };
            if let Err(reason) = text.and_then(|text| found.parse(&name, &text)) {
                let reason = reason.lines().next().unwrap_or_default();
                found.warnings.push(format!("{name} is ignored, because it cannot be parsed: {reason}"));
            }
        }
        Ok(found)
    }

    fn parse(&mut self, file: &str, text: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(text).map_err(|_| "it is not UTF-8")?;
        // The parser does not accept a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match file.ends_with(".json") {
            true => self.json(file, text).map_err(|error| error.to_string()),
            false => self.hcl(file, text),
        }
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
            // The engine reports duplicate declarations.
            Some(_) => {}
            None => {
                self.variables.insert(name, Declared { file: file.to_owned(), ..declared });
            }
        }
    }

    fn output(&mut self, file: &str, name: String) {
        self.outputs.entry(name).or_insert_with(|| file.to_owned());
    }

    /// Whether the values of this variable are secret: it is declared sensitive or ephemeral, or it is not declared and a file
    /// could not be parsed.
    pub fn is_sensitive(&self, variable: &str) -> bool {
        match self.variables.get(variable) {
            Some(declared) => declared.sensitive == Some(true) || declared.ephemeral == Some(true),
            None => !self.warnings.is_empty(),
        }
    }

    /// Whether the engine forgets the values of this variable after a plan.
    pub fn is_ephemeral(&self, variable: &str) -> bool {
        self.variables.get(variable).is_some_and(|declared| declared.ephemeral == Some(true))
    }

    pub fn declares(&self, variable: &str) -> bool {
        self.variables.contains_key(variable)
    }

    /// Whether a value for this variable on a command line is a plain text. Otherwise it is HCL.
    pub fn takes_text(&self, variable: &str) -> bool {
        let kind = self.variables.get(variable).and_then(|declared| declared.kind.as_deref());
        kind.is_none_or(|kind| ["string", "number", "bool"].contains(&kind.trim_matches('"')))
    }

    /// Each variable with the strings and numbers in its default.
    pub fn defaults(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.variables.iter().map(|(name, declared)| (name.as_str(), declared.default_texts.as_slice()))
    }

    /// The outputs that the extra files declare.
    pub fn outputs_of(&self, extra_files: &[String]) -> BTreeSet<String> {
        let own = self.outputs.iter().filter(|(_, file)| extra_files.contains(file));
        own.map(|(name, _)| name.clone()).collect()
    }

    /// The variables for the server. `None` if there are none.
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
        // Ordered by name and without the time, so that it changes only with the variables.
        let mut hash = Sha256::new();
        for variable in &variables {
            hash.update(serde_json::to_vec(variable).unwrap_or_default());
        }
        Some(VariableSet { module_id, timestamp, checksum: hex(&hash.finalize()), variables })
    }
}

/// The files that the engine reads: ordinary ones, then overrides, each ordered by name.
fn files(names: &BTreeSet<String>, reads_tofu: bool) -> Vec<String> {
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
        ephemeral: attribute("ephemeral").map(|it| switch(it).unwrap_or(true)),
        nullable: attribute("nullable").and_then(switch),
        default: attribute("default").map(|value| !value.is_null()),
        default_texts: attribute("default").map(hcl_values::texts).unwrap_or_default(),
    }
}

/// The value of an expression that must be true or false. `None` for function calls and templates, which are not evaluated.
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
    // The engines accept the string "true" as well.
    let switch = |name: &str| match members.get(name) {
        Some(Value::Bool(value)) => Some(*value),
        Some(Value::String(text)) => switch_text(text),
        _ => None,
    };
    let is_set = |name: &str| members.contains_key(name).then(|| switch(name).unwrap_or(true));
    Ok(Declared {
        file: String::new(),
        kind: text("type"),
        description: text("description"),
        sensitive: is_set("sensitive"),
        ephemeral: is_set("ephemeral"),
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
