//! Which hooks may run: all of them, none, or with pre-approval those whose text the operator has put into a
//! directory. The narrower of `Policy.Hooks` and `HooksPreapproval.Enabled` counts.
//!
//! Texts are compared by SHA-256 after CRLF was turned to LF and trailing white space was cut, so that an editor
//! or a web form that changes line ends does not change what was approved.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use hawser_contract::Hook;

use crate::base::digest::normalized_digest;
use crate::settings::model::{HookPolicy, HooksPreapprovalSettings};
use crate::settings::{Refusal, Settings};

/// How much of a refused hook its fault shows.
const SHOWN: usize = 100;

#[derive(Debug, thiserror::Error)]
enum ApprovalError {
    #[error("it is not pre-approved: no file in {} has its text; it begins with {shown:?}", directory.display())]
    Refused { name: &'static str, shown: String, directory: PathBuf },
    #[error(
        "it is not pre-approved: there is no HooksPreapproval.PreapprovedHooksDirectory; it begins with {shown:?}"
    )]
    NoDirectory { name: &'static str, shown: String },
    #[error("it is not pre-approved: cannot read {}: {source}; it begins with {shown:?}", path.display())]
    Unreadable { name: &'static str, shown: String, path: PathBuf, source: io::Error },
}

/// The one place that decides which hooks may run.
#[derive(Debug, Clone)]
pub struct HookRule {
    /// The setting that says so.
    name: &'static str,
    none: bool,
    preapproval: HooksPreapprovalSettings,
}

impl HookRule {
    pub fn new(settings: &Settings) -> Self {
        let (hooks, mut preapproval) = (settings.policy.hooks, settings.hooks_preapproval.clone());
        let name = match (hooks, preapproval.enabled) {
            (HookPolicy::All, true) => "HooksPreapproval.Enabled",
            _ => "Policy.Hooks",
        };
        preapproval.enabled |= hooks == HookPolicy::Preapproved;
        Self { name, none: hooks == HookPolicy::None, preapproval }
    }

    /// Refuses the first hook that the settings do not allow. It may read a directory.
    pub fn judge<'a>(&self, hooks: impl IntoIterator<Item = Hook<'a>>) -> Result<(), Refusal> {
        let mut hooks = hooks.into_iter().peekable();
        let Some(first) = hooks.peek() else { return Ok(()) };
        if self.none {
            let what = format!("the hook {}", first.name);
            return Err(Refusal::new(self.name, what, "this runner runs no hooks"));
        }
        check_approved(&self.preapproval, hooks).map_err(|error| {
            let what = format!("the hook {}", error.hook());
            Refusal::new(self.name, what, error.to_string())
        })
    }
}

impl ApprovalError {
    fn hook(&self) -> &'static str {
        match self {
            Self::Refused { name, .. } | Self::NoDirectory { name, .. } | Self::Unreadable { name, .. } => {
                name
            }
        }
    }
}

/// Refuses the first hook that is not in the directory, when pre-approval is on.
fn check_approved<'a>(
    settings: &HooksPreapprovalSettings,
    hooks: impl IntoIterator<Item = Hook<'a>>,
) -> Result<(), ApprovalError> {
    if !settings.enabled {
        return Ok(());
    }
    let mut hooks = hooks.into_iter().peekable();
    let Some(first) = hooks.peek().copied() else { return Ok(()) };
    let Some(directory) = &settings.preapproved_hooks_directory else {
        return Err(ApprovalError::NoDirectory { name: first.name, shown: shown(first.text) });
    };
    let mut approved = HashSet::new();
    collect(directory, &mut approved).map_err(|(path, source)| ApprovalError::Unreadable {
        name: first.name,
        shown: shown(first.text),
        path,
        source,
    })?;
    match hooks.find(|hook| !approved.contains(&normalized_digest(hook.text.as_bytes()))) {
        None => Ok(()),
        Some(hook) => Err(ApprovalError::Refused {
            name: hook.name,
            shown: shown(hook.text),
            directory: directory.clone(),
        }),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// Files are followed through symlinks (a mounted ConfigMap is made of them), directories are not, so that a
/// link to a directory above cannot make this endless.
fn collect(directory: &Path, into: &mut HashSet<[u8; 32]>) -> Result<(), (PathBuf, io::Error)> {
    let failed = |source| (directory.to_owned(), source);
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        let kind = entry.file_type().map_err(|source| (path.clone(), source))?;
        if kind.is_dir() {
            collect(&path, into)?;
        } else if path.is_file() {
            let text = fs::read(&path).map_err(|source| (path.clone(), source))?;
            // A byte order mark is an editor's doing and no part of the text.
            into.insert(normalized_digest(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(directory: Option<&Path>) -> HooksPreapprovalSettings {
        HooksPreapprovalSettings { enabled: true, preapproved_hooks_directory: directory.map(Path::to_owned) }
    }

    fn hook(text: &str) -> Option<Hook<'_>> {
        Hook::new("ApplyBeforeHook", Some(text))
    }

    #[test]
    fn a_hook_is_approved_whatever_its_line_ends_and_trailing_space() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        fs::write(root.path().join("a/b/any-name"), "echo one\r\necho two\r\n\r\n").unwrap();
        let settings = settings(Some(root.path()));

        for text in ["echo one\necho two", "echo one\r\necho two  \t\n", "echo one\necho two\n\n"] {
            check_approved(&settings, hook(text)).unwrap();
        }
        for text in ["echo one \necho two", " echo one\necho two", "echo one\recho two", "echo"] {
            check_approved(&settings, hook(text)).unwrap_err();
        }
    }

    #[test]
    fn a_refusal_names_the_hook_and_its_first_hundred_characters() {
        let root = tempfile::tempdir().unwrap();
        let text = format!("{}END", "é".repeat(100));
        let error = check_approved(&settings(Some(root.path())), hook(&text)).unwrap_err();
        assert_eq!(error.hook(), "ApplyBeforeHook");
        let error = error.to_string();
        assert!(error.contains(&"é".repeat(100)) && !error.contains("END"), "{error}");
    }

    #[test]
    fn without_a_directory_every_hook_is_refused_but_blank_ones_do_not_count() {
        let root = tempfile::tempdir().unwrap();
        let gone = root.path().join("gone");
        for settings in [settings(None), settings(Some(&gone))] {
            check_approved(&settings, hook("true")).unwrap_err();
            check_approved(&settings, hook(" \r\n\t")).unwrap();
            check_approved(&settings, Hook::new("ApplyAfterHook", None)).unwrap();
        }
    }

    #[test]
    fn the_second_hook_is_checked_as_well() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("ok"), "true").unwrap();
        let hooks = [hook("true"), Hook::new("ApplyAfterHook", Some("rm -rf /"))];
        let error = check_approved(&settings(Some(root.path())), hooks.into_iter().flatten()).unwrap_err();
        assert_eq!(error.hook(), "ApplyAfterHook");
    }

    #[test]
    fn switched_off_everything_is_allowed() {
        check_approved(&HooksPreapprovalSettings::default(), hook("anything")).unwrap();
    }
}
