//! ssh that never asks.
//!
//! Which ssh git runs is the operator's choice, in the order in which git itself looks: `GIT_SSH_COMMAND`,
//! `core.sshCommand`, `GIT_SSH`, and `ssh` from the PATH. It may also run for a URL that does not look like it: the
//! operator's `url.*.insteadOf` turns https into ssh. So every call that talks to a server gets the command that git
//! would have taken, with the option added that forbids questions (passphrases, unknown hosts).
//!
//! The option goes to the end of the command, where git appends its own, so it is safe wherever those are. For OpenSSH the
//! first value of an option counts: an operator who says `-o BatchMode=no` keeps it. A program that is not known to take the
//! option is left as it is, because a wrapper may count its arguments. Whatever it runs has no askpass and an empty stdin.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use tokio_util::sync::CancellationToken;

use super::{Fetcher, SourceError};
use crate::base::process::ProcessError;
use crate::hooks::quote;

/// The programs whose options git knows, by the words of `ssh.variant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    OpenSsh,
    Plink,
    /// It takes no option, or git passes the one that we want by itself.
    Other,
}

impl Variant {
    /// What the operator has said, or what git concludes from the program's name.
    fn of(command: &str, said: Option<&str>) -> Self {
        let name = match said {
            None | Some("auto") => program_name(command),
            Some(said) => said.to_owned(),
        };
        match name.to_ascii_lowercase().as_str() {
            "ssh" | "ssh.exe" => Self::OpenSsh,
            "plink" | "plink.exe" | "putty" => Self::Plink,
            _ => Self::Other,
        }
    }
}

/// The same command with the option that forbids questions; none when it must stay as it is.
fn without_questions(command: &str, variant: Option<&str>) -> Option<String> {
    match Variant::of(command, variant) {
        Variant::OpenSsh => Some(format!("{command} -o BatchMode=yes")),
        Variant::Plink => Some(format!("{command} -batch")),
        Variant::Other => None,
    }
}

/// The file name of the program that a shell would run. A guess is enough: what is not recognised is left alone.
fn program_name(command: &str) -> String {
    let mut rest = command.trim_start();
    loop {
        let (word, after) = match rest.chars().next() {
            Some(mark @ ('\'' | '"')) => rest[1..].split_once(mark).unwrap_or((rest, "")),
            _ => rest.split_once(char::is_whitespace).unwrap_or((rest, "")),
        };
        // `NAME=value ssh …`
        let assigns = word.split_once('=').is_some_and(|(name, _)| !name.contains(['/', '\\']));
        if !assigns || after.trim().is_empty() {
            return word.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
        }
        rest = after.trim_start();
    }
}

impl Fetcher {
    /// The value for `GIT_SSH_COMMAND` in a call that runs in `folder`; none when git is to find its ssh by itself.
    pub(super) async fn ssh_command(
        &self,
        folder: &Path,
        cancel: &CancellationToken,
    ) -> Result<Option<String>, SourceError> {
        // What git calls the variant may be said in either place; the environment counts first.
        let (mut configured, mut variant) = (None, None);
        let mut asked = self.tool("read the settings of ssh".to_owned())?.current_dir(folder);
        // The repository is named outright: the settings may depend on where it is.
        if folder.join(".git").is_dir() {
            asked = asked.args([super::git::IN_CHECKOUT]);
        } else if folder.join("HEAD").is_file() {
            asked = asked.args([super::git::IN_BARE]);
        }
        let keys = ["config", "-z", "--get-regexp", r"^(core\.sshcommand|ssh\.variant)$"];
        match asked.args(keys).run(cancel).await {
            Ok(output) => {
                for entry in output.text()?.split('\0') {
                    match entry.split_once('\n') {
                        Some(("core.sshcommand", value)) => configured = Some(value.to_owned()),
                        Some(("ssh.variant", value)) => variant = Some(value.to_owned()),
                        _ => {}
                    }
                }
            }
            // None of them is set.
            Err(ProcessError::Failed { status, .. }) if status.code() == Some(1) => {}
            Err(error) => return Err(error.into()),
        }
        let text = |name| self.variable(name).and_then(|value| value.into_string().ok());
        let variant = text("GIT_SSH_VARIANT").or(variant);
        let command = match (self.variable("GIT_SSH_COMMAND"), configured, self.variable("GIT_SSH")) {
            (Some(command), ..) => command.into_string().ok(),
            (None, Some(command), _) => Some(command),
            // A path, which is not for a shell to read.
            (None, None, Some(program)) => program.into_string().ok().map(|program| quote(&program)),
            (None, None, None) => Some("ssh".to_owned()),
        };
        Ok(command.and_then(|command| without_questions(&command, variant.as_deref())))
    }

    /// A variable as git is going to see it.
    fn variable(&self, name: &str) -> Option<OsString> {
        let own = self.environment.iter().rev().find(|(own, _)| own == name);
        own.map(|(_, value)| value.clone()).or_else(|| self.host.get(name).map(OsStr::to_owned))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_added_to_programs_that_take_it_and_to_no_other() {
        for (command, variant, expected) in [
            ("ssh", None, Some("ssh -o BatchMode=yes")),
            ("/usr/bin/ssh -i '/my key'", None, Some("/usr/bin/ssh -i '/my key' -o BatchMode=yes")),
            ("'/my tools/ssh' -4", None, Some("'/my tools/ssh' -4 -o BatchMode=yes")),
            ("\"C:\\tools\\ssh.exe\"", None, Some("\"C:\\tools\\ssh.exe\" -o BatchMode=yes")),
            ("A=b C=d ssh -v", None, Some("A=b C=d ssh -v -o BatchMode=yes")),
            ("plink -load x", None, Some("plink -load x -batch")),
            ("tortoiseplink", None, None),
            ("/opt/wrap ssh", None, None),
            ("/opt/wrap", Some("ssh"), Some("/opt/wrap -o BatchMode=yes")),
            ("/opt/wrap", Some("auto"), None),
            ("ssh", Some("simple"), None),
            ("A=b", None, None),
            ("", None, None),
            ("'open", None, None),
        ] {
            assert_eq!(without_questions(command, variant).as_deref(), expected, "{command} {variant:?}");
        }
    }
}
