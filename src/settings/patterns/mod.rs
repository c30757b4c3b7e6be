//! The entries of `Policy` that are more than text.

mod backend;
mod files;
mod flags;
mod modules;
mod sources;
mod variables;

use serde_json::json;

pub use backend::BackendPattern;
pub use files::FilePattern;
pub use flags::FlagName;
pub use modules::ModulePattern;
pub use sources::{SourcePattern, SourceRule};
pub use variables::VariablePattern;

use super::bind::Effective;
use super::diagnostics::Diagnostics;
use super::model::PolicySettings;
use super::values::Fault;
use crate::base::git_url::mask_url;

/// Reports every entry that its type refuses, with its origin: a rule that nobody can obey, or that allows less or more than
/// it seems to, is worse than no start.
pub(super) fn check(effective: &[Effective], findings: &mut Diagnostics) {
    for Effective { key, value, origin } in effective {
        let Some((list, _)) = key.strip_prefix("Policy.").and_then(|rule| rule.split_once('.')) else {
            continue;
        };
        if let Err(error) = serde_json::from_value::<PolicySettings>(json!({ list: [value] })) {
            findings.problem(key, Some(mask_url(value)), Some(origin), Fault::NotPattern(error.to_string()));
        }
    }
}
