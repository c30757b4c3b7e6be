//! The entries of `Policy` that are more than text.

use super::bind::Effective;
use super::findings::Findings;
use super::values::Fault;
use crate::base::git_url::mask_url;
use crate::policy::{BackendPattern, FilePattern, ModulePattern, SourcePattern, check_flag_name};

/// An entry that cannot be right is a problem like any other value: a rule that nobody can obey, or that allows less
/// or more than it seems to, is worse than no start.
pub(super) fn check(effective: &[Effective], findings: &mut Findings) {
    for Effective { key, value, origin } in effective {
        let Some((list, index)) = key.rsplit_once('.') else { continue };
        if index.parse::<u32>().is_err() {
            continue;
        }
        let checked = match list {
            "Policy.AllowedSources" => value.parse::<SourcePattern>().map(drop).map_err(Fault::NotSource),
            "Policy.AllowedModules" => value.parse::<ModulePattern>().map(drop).map_err(Fault::NotModule),
            "Policy.AllowedFlags" => check_flag_name(value).map_err(Fault::NotFlag),
            "Policy.AllowedExtraFiles" => value.parse::<FilePattern>().map(drop).map_err(Fault::NotFile),
            "Policy.AllowedVariables" if value.trim().is_empty() || value.contains('=') => {
                Err(Fault::NotVariable)
            }
            "Policy.AllowedBackendSettings" => {
                value.parse::<BackendPattern>().map(drop).map_err(Fault::NotBackendSetting)
            }
            _ => Ok(()),
        };
        if let Err(fault) = checked {
            findings.problem(key, Some(mask_url(value)), Some(origin), fault);
        }
    }
}
