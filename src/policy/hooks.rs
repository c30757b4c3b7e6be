//! Which hooks may run: all, none, or only pre-approved ones. The stricter of `Policy.Hooks` and `HooksPreapproval.Enabled`
//! applies.
//!
//! A hook is pre-approved if a file in the operator's directory has the same SHA-256, after CRLF is changed to LF and trailing
//! whitespace is removed. An editor or a web form that changes line endings does not invalidate an approval.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use hawser_contract::Hook;

use crate::base::digest::normalized_digest;
use crate::settings::model::HookPolicy;
use crate::settings::{Refusal, Settings};

/// How many characters of a refused hook its fault shows.
const EXCERPT_CHARS: usize = 100;

#[derive(Debug)]
pub(super) struct HookRule {
    /// The setting to name in a refusal.
    rule: &'static str,
    allowed: HookPolicy,
    directory: Option<PathBuf>,
}

impl HookRule {
    pub(super) fn new(settings: &Settings) -> Self {
        let preapproval = &settings.hooks_preapproval;
        let (rule, allowed) = match settings.policy.hooks {
            HookPolicy::All if preapproval.enabled => ("HooksPreapproval.Enabled", HookPolicy::Preapproved),
            hooks => ("Policy.Hooks", hooks),
        };
        Self { rule, allowed, directory: preapproval.preapproved_hooks_directory.clone() }
    }

    /// Refuses the first hook that is not allowed.
    pub(super) fn check<'a>(&self, hooks: impl IntoIterator<Item = Hook<'a>>) -> Result<(), Refusal> {
        let mut hooks = hooks.into_iter().peekable();
        let Some(first) = hooks.peek().copied() else { return Ok(()) };
        match self.allowed {
            HookPolicy::All => return Ok(()),
            HookPolicy::None => return Err(self.refusal(first, "this runner runs no hooks".to_owned())),
            HookPolicy::Preapproved => {}
        }
        let Some(directory) = &self.directory else {
            let reason = "HooksPreapproval.PreapprovedHooksDirectory is not set";
            return Err(self.not_preapproved(first, reason));
        };
        let mut approved = HashSet::new();
        collect(directory, &mut approved).map_err(|(path, error)| {
            self.not_preapproved(first, &format!("cannot read {}: {error}", path.display()))
        })?;
        match hooks.find(|hook| !approved.contains(&normalized_digest(hook.text.as_bytes()))) {
            None => Ok(()),
            Some(hook) => {
                let reason = format!("no file in {} has its text", directory.display());
                Err(self.not_preapproved(hook, &reason))
            }
        }
    }

    fn not_preapproved(&self, hook: Hook<'_>, reason: &str) -> Refusal {
        let excerpt: String = hook.text.chars().take(EXCERPT_CHARS).collect();
        self.refusal(hook, format!("it is not pre-approved: {reason}; it starts with {excerpt:?}"))
    }

    fn refusal(&self, hook: Hook<'_>, why: String) -> Refusal {
        Refusal::new(self.rule, format!("the hook {}", hook.name), why)
    }
}

/// Follows symlinks to files, because a mounted ConfigMap consists of them. Does not follow symlinks to directories, because
/// they could form a cycle.
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
            // Some editors add a byte order mark.
            into.insert(normalized_digest(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn preapproved(directory: Option<&Path>) -> HookRule {
        let directory = directory.map(Path::to_owned);
        HookRule { rule: "Policy.Hooks", allowed: HookPolicy::Preapproved, directory }
    }

    fn hook(text: &str) -> Option<Hook<'_>> {
        Hook::new("ApplyBeforeHook", Some(text))
    }

    #[test]
    fn line_endings_and_trailing_white_space_do_not_affect_approval() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        fs::write(root.path().join("a/b/any-name"), "echo one\r\necho two\r\n\r\n").unwrap();
        let rule = preapproved(Some(root.path()));

        for text in ["echo one\necho two", "echo one\r\necho two  \t\n", "echo one\necho two\n\n"] {
            rule.check(hook(text)).unwrap();
        }
        for text in ["echo one \necho two", " echo one\necho two", "echo one\recho two", "echo"] {
            rule.check(hook(text)).unwrap_err();
        }
    }

    #[test]
    fn a_refusal_shows_the_first_hundred_characters_of_the_hook() {
        let root = tempfile::tempdir().unwrap();
        let text = format!("{}END", "é".repeat(100));
        let error = preapproved(Some(root.path())).check(hook(&text)).unwrap_err();
        assert_eq!(error.what, "the hook ApplyBeforeHook");
        let error = error.to_string();
        assert!(error.contains(&"é".repeat(100)) && !error.contains("END"), "{error}");
    }

    #[test]
    fn without_a_directory_only_blank_hooks_are_allowed() {
        let root = tempfile::tempdir().unwrap();
        let gone = root.path().join("gone");
        for rule in [preapproved(None), preapproved(Some(&gone))] {
            rule.check(hook("true")).unwrap_err();
            rule.check(hook(" \r\n\t")).unwrap();
            rule.check(Hook::new("ApplyAfterHook", None)).unwrap();
        }
    }

    #[test]
    fn the_second_hook_is_checked_too() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("ok"), "true").unwrap();
        let hooks = [hook("true"), Hook::new("ApplyAfterHook", Some("rm -rf /"))];
        let error = preapproved(Some(root.path())).check(hooks.into_iter().flatten()).unwrap_err();
        assert_eq!(error.what, "the hook ApplyAfterHook");
    }

    #[test]
    fn without_pre_approval_every_hook_is_allowed() {
        let rule = HookRule { rule: "Policy.Hooks", allowed: HookPolicy::All, directory: None };
        rule.check(hook("anything")).unwrap();
    }
}
