//! The entries of the lists in `Policy`.

mod allowed_flags;
mod names;
mod sources;

use serde_json::json;

pub use allowed_flags::FlagName;
pub use names::{BackendPattern, FilePattern, ModulePattern, VariablePattern};
pub use sources::{SourcePattern, SourceRule};

use super::bind::Effective;
use super::diagnostics::Diagnostics;
use super::model::PolicySettings;
use super::values::SettingFault;
use crate::base::git_url::mask_url;

/// Reports every malformed entry with its origin. The runner does not start with a rule that would allow more or less than it
/// seems to.
pub(super) fn check(effective: &[Effective], diagnostics: &mut Diagnostics) {
    for Effective { key, value, origin } in effective {
        let Some((list, _)) = key.strip_prefix("Policy.").and_then(|rule| rule.split_once('.')) else {
            continue;
        };
        if let Err(error) = serde_json::from_value::<PolicySettings>(json!({ list: [value] })) {
            diagnostics.problem_with_value(
                key,
                Some(mask_url(value)),
                Some(origin),
                SettingFault::NotPattern(error.to_string()),
            );
        }
    }
}
