//! State locks that stay behind, and the state that a backend refused, as Terraform and OpenTofu report them.
//!
//! * Terraform and OpenTofu write `errored.tfstate` to the working directory when the backend refuses the new state.
//! * A lock that another process holds is described on stderr, in a frame of `│` if there is color:
//!
//!   ```text
//!   Error: Error acquiring the state lock
//!   Error message: HTTP remote state already locked:
//!   ID=2ec423c9-6fa8-723e-833f-b1d8c89176fa
//!   Lock Info:
//!     ID:        ca427c02-585d-ab02-42b7-462069251054
//!     Path:      …
//!     Operation: OperationTypePlan
//!     Who:       root@vm
//!     Created:   2026-11-16 02:12:57.758552812 +0000 UTC
//!   ```
//!
//!   With the `http` backend, `Lock Info` describes the lock that it failed to get, and the error message has the id of the
//!   existing lock (tested with 1.11).
//! * A lock that could not be released is reported without its id; the next command that needs it prints the id.
//! * A local state is locked by the operating system until the process ends. The description of the lock
//!   (`.terraform.tfstate.lock.info`) remains after a kill and has no effect.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::workspace::stored_state::small;

/// The file to which an engine writes a state that the backend did not accept.
pub const ERRORED_STATE: &str = "errored.tfstate";

/// A lock as the engine describes it. Only the id is required.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Lock {
    #[serde(rename = "ID")]
    pub id: String,
    pub path: String,
    pub operation: String,
    pub who: String,
    pub created: String,
}

impl Lock {
    /// Everything but the id, in parentheses, or nothing.
    pub fn about(&self) -> String {
        let operation = self.operation.trim_start_matches("OperationType").to_lowercase();
        let parts = [("", operation), ("by ", self.who.clone()), ("since ", self.created.clone())];
        let known: Vec<_> =
            parts.iter().filter(|(_, it)| !it.is_empty()).map(|(word, it)| format!("{word}{it}")).collect();
        if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) }
    }
}

/// A problem with a lock that the engine has reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockTrouble {
    /// Another process holds the lock, or has left it behind.
    Held(Lock),
    /// A running process holds the lock of a state on this machine.
    HeldByProcess(Lock),
    /// The engine could not release its lock, whose id is unknown.
    NotReleased,
}

/// Looks for problems with locks in the output of an engine, without colors.
pub fn lock_trouble(lines: &[String]) -> Option<LockTrouble> {
    let lines: Vec<&str> = lines.iter().map(|line| unframed(line)).collect();
    let after = |text: &str| lines.iter().position(|line| line.contains(text)).map(|at| &lines[at..]);
    if let Some(said) = after("Error acquiring the state lock") {
        return held(said);
    }
    after("Error releasing the state lock").map(|_| LockTrouble::NotReleased)
}

/// The line without the frame around errors.
fn unframed(line: &str) -> &str {
    line.trim_start_matches(['│', '╷', '╵']).trim_end()
}

fn held(said: &[&str]) -> Option<LockTrouble> {
    let info = said.iter().position(|line| line.trim() == "Lock Info:")?;
    let (message, info) = said.split_at(info);
    // Long lines may be wrapped anywhere.
    let words = message.iter().flat_map(|line| line.split_whitespace()).collect::<Vec<_>>();
    let message = words.join(" ");
    if let Some((_, other)) = message.split_once("HTTP remote state already locked") {
        let id = other.strip_prefix(": ID=")?.split_whitespace().next()?.to_owned();
        return Some(LockTrouble::Held(Lock { id, ..Lock::default() }));
    }
    let members = info[1..].iter().map_while(|line| line.split_once(':'));
    let members = members.map(|(name, value)| (name.trim().to_owned(), value.trim().into())).collect();
    let lock: Lock = serde_json::from_value(serde_json::Value::Object(members)).ok()?;
    let of_process = message.contains("resource temporarily unavailable");
    let trouble = if of_process { LockTrouble::HeldByProcess } else { LockTrouble::Held };
    Some(lock).filter(|lock| !lock.id.is_empty()).map(trouble)
}

/// Whether the engine reports that it wrote an `errored.tfstate`.
pub fn says_errored_state(lines: &[String]) -> bool {
    lines.iter().any(|line| line.contains("state push errored.tfstate"))
}

/// The description of a lock that was left beside a local state.
pub fn local_lock(state: &Path) -> Option<(PathBuf, Lock)> {
    let name = state.file_name()?.to_string_lossy();
    let file = state.with_file_name(format!(".{name}.lock.info"));
    let lock: Lock = serde_json::from_slice(&small(&file)?).ok()?;
    (!lock.id.is_empty()).then_some((file, lock))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::stored_state::{
        local_state, named_local_state, stored_resources, stored_stack_resources,
    };
    use serde_json::json;
    use std::fs;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_held_lock_is_found_in_a_frame() {
        let said = "╷\n│ Error: Error acquiring the state lock\n│ \n│ Error message: resource temporarily unavailable\n\
            │ Lock Info:\n│   ID:        56fe9e98-9649\n│   Path:      terraform.tfstate\n\
            │   Operation: OperationTypeApply\n│   Who:       root@vm\n│   Version:   1.11.4\n\
            │   Created:   2026-11-16 02:12:58.67 +0000 UTC\n│   Info:      \n│ \n│ \n\
            │ Terraform acquires: a state lock\n╵";
        let Some(LockTrouble::HeldByProcess(lock)) = lock_trouble(&lines(said)) else { panic!("not found") };
        assert_eq!((lock.id.as_str(), lock.path.as_str()), ("56fe9e98-9649", "terraform.tfstate"));
        assert_eq!(lock.about(), " (apply, by root@vm, since 2026-11-16 02:12:58.67 +0000 UTC)");
    }

    #[test]
    fn the_existing_lock_is_reported() {
        let said = "Error: Error acquiring the state lock\n\nError message: HTTP remote state already locked:\n\
            ID=theirs\nLock Info:\n  ID:        ours\n  Who:       root@vm\n";
        let theirs = Lock { id: "theirs".into(), ..Lock::default() };
        assert_eq!(theirs.about(), "");
        assert_eq!(lock_trouble(&lines(said)), Some(LockTrouble::Held(theirs)));
        let unnamed = said.replace(":\nID=theirs", ", failed to read body");
        assert_eq!(lock_trouble(&lines(&unnamed)), None);
        let stored =
            said.replace("HTTP remote state already locked:\nID=theirs", "state blob is already locked");
        let stored = lock_trouble(&lines(&stored));
        assert!(matches!(&stored, Some(LockTrouble::Held(lock)) if lock.id == "ours"), "{stored:?}");
    }

    #[test]
    fn other_problems_with_locks_are_distinguished() {
        let said = |text: &str| lock_trouble(&lines(text));
        assert_eq!(said("│ Error: Error releasing the state lock"), Some(LockTrouble::NotReleased));
        assert_eq!(said("Error: Error acquiring the state lock\n\nError message: no such host"), None);
        assert_eq!(said("Error: something else\nLock Info:\n  ID: x"), None);
    }

    #[test]
    fn the_path_of_a_local_state_depends_on_backend_and_workspace() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        assert_eq!(local_state(at, &at.join(".terraform"), None), Some(at.join("terraform.tfstate")));
        fs::create_dir(at.join(".terraform")).unwrap();
        let backend = |kind: &str, config: serde_json::Value| {
            let text = json!({"version": 3, "backend": {"type": kind, "config": config}}).to_string();
            fs::write(at.join(".terraform/terraform.tfstate"), text).unwrap();
        };
        backend("local", json!({"path": "a/b.tfstate", "workspace_dir": null}));
        assert_eq!(local_state(at, &at.join(".terraform"), None), Some(at.join("a/b.tfstate")));
        assert_eq!(named_local_state(at, &at.join(".terraform")), Some(at.join("a/b.tfstate")));
        fs::write(at.join(".terraform/environment"), "dev").unwrap();
        assert_eq!(
            local_state(at, &at.join(".terraform"), None),
            Some(at.join("terraform.tfstate.d/dev/terraform.tfstate"))
        );
        let named = |name| local_state(at, &at.join(".terraform"), Some(name));
        assert_eq!(named("prod"), Some(at.join("terraform.tfstate.d/prod/terraform.tfstate")));
        assert_eq!(named("default"), Some(at.join("a/b.tfstate")));
        assert_eq!(named_local_state(at, &at.join(".terraform")), Some(at.join("a/b.tfstate")));
        backend("s3", json!({"bucket": "x", "path": "y"}));
        assert_eq!(named_local_state(at, &at.join(".terraform")), None);
        assert_eq!(local_state(at, &at.join(".terraform"), None), None);
    }

    #[test]
    fn the_lock_file_of_a_local_state_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("b.tfstate");
        assert_eq!(local_lock(&state), None);
        let file = folder.path().join(".b.tfstate.lock.info");
        fs::write(&file, r#"{"ID":"56fe","Operation":"OperationTypeApply","Info":"","Who":"root@vm"}"#)
            .unwrap();
        let (at, lock) = local_lock(&state).unwrap();
        assert_eq!((at, lock.about()), (file, " (apply, by root@vm)".to_owned()));
    }

    #[test]
    fn resources_in_stored_states_are_counted() {
        let state = json!({"version": 4, "resources": [
            {"mode": "managed", "instances": [{}, {"index_key": 1}]}, {"mode": "data", "instances": [{}]},
        ]});
        assert_eq!(stored_resources(state.to_string().as_bytes()), Some(2));
        assert_eq!(stored_resources(b"{\"version\": 4, \"resou"), None);
        assert_eq!(stored_resources(b"{\"version\": 3}"), None);
        let stack = json!({"version": 3, "checkpoint": {"stack": "dev", "latest": {"resources": [
            {"urn": "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev"}, {"urn": "urn:pulumi:dev::p::x:y:Z::a"},
        ]}}});
        assert_eq!(stored_stack_resources(stack.to_string().as_bytes()), Some(1));
        assert_eq!(stored_stack_resources(br#"{"checkpoint": {"latest": null}}"#), Some(0));
        assert_eq!(stored_stack_resources(state.to_string().as_bytes()), None);
    }
}
