//! The part of the host's environment that child processes inherit.
//!
//! * Never the runner's own settings, which hold its credentials, and never the variables of its service manager.
//! * Never a variable that holds the runner's secret under another name, as in start scripts with
//!   `--Runner:Credentials:ClientSecret="$SECRET"`.
//! * With `Engine.EnvironmentAllowList`, engines and hooks, which run code of a module, get only the variables on the list
//!   and [`ALWAYS`]. git is not restricted: it runs no code of a module (it reuses only the index of an old checkout, never
//!   its configuration, see [`crate::sources`]), and it needs what the operator has set up for it (`SSH_AUTH_SOCK`,
//!   `GIT_SSH_COMMAND`, credential helpers and their variables).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use secrecy::{ExposeSecret as _, SecretString};

use crate::base::wildcard::Wildcard;

/// The sections of the settings. Variables such as `Runner__Credentials__ClientSecret` never reach a program.
const SETTINGS: [&str; 10] = [
    "runner",
    "server",
    "workingdirectory",
    "hookspreapproval",
    "engine",
    "source",
    "policy",
    "audit",
    "joblogstream",
    "logging",
];

/// The secret is still a secret if its section is misspelled, which the settings warn about.
const MISSPELLED_SECRET: [&str; 2] = ["credentials__clientsecret", "credentials:clientsecret"];

/// Variables that systemd sets for the runner only. With them a child could impersonate the runner or read its
/// credentials. The last one is the key to the embedded hub.
const SERVICE: [&str; 9] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "CREDENTIALS_DIRECTORY",
    "ENCRYPTED_CREDENTIALS_DIRECTORY",
    "HAWSER_HUB_ADMIN_TOKEN",
];

/// Variables that programs need and that hold no secrets. They are passed on with any allow list. Proxies are not among
/// them, because their URLs may contain a password.
pub const ALWAYS: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// A shorter secret may occur inside harmless values, so it must match a whole value.
const LONG_ENOUGH: usize = 8;

/// Variables of the host that may be passed to a child.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Inherited {
    variables: Vec<(OsString, OsString)>,
}

impl Inherited {
    /// The environment of this process without the runner's own variables.
    pub fn of_this_process() -> Self {
        Self::new(std::env::vars_os())
    }

    pub fn new(host: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self { variables: host.into_iter().filter(|(name, _)| !is_the_runners_own(name)).collect() }
    }

    /// Removes variables that contain this secret.
    #[must_use]
    pub fn without_secret(mut self, secret: &SecretString) -> Self {
        let secret = secret.expose_secret().as_bytes();
        let holds = |value: &OsStr| {
            let value = value.as_bytes();
            let part = secret.len() >= LONG_ENOUGH && memchr::memmem::find(value, secret).is_some();
            !secret.is_empty() && (value == secret || part)
        };
        self.variables.retain(|(_, value)| !holds(value));
        self
    }

    /// Keeps only variables that match a pattern or [`ALWAYS`]. Without patterns everything stays.
    #[must_use]
    pub fn narrowed_to(mut self, patterns: Option<&[String]>) -> Self {
        if let Some(patterns) = patterns {
            let given = patterns.iter().map(String::as_str);
            let allowed: Vec<_> = given.chain(ALWAYS).map(Wildcard::new).collect();
            let is_allowed = |name: &OsStr| {
                let name = name.to_string_lossy();
                allowed.iter().any(|pattern| pattern.matches(&name))
            };
            self.variables.retain(|(name, _)| is_allowed(name));
        }
        self
    }

    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_os_str())
    }

    pub fn into_variables(self) -> Vec<(OsString, OsString)> {
        self.variables
    }
}

impl std::fmt::Debug for Inherited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The values may be secret.
        f.debug_list().entries(self.variables.iter().map(|(name, _)| name)).finish()
    }
}

/// Whether this is a setting of the runner or a variable of its service manager.
pub fn is_the_runners_own(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    // .NET also accepts a colon as the separator.
    let section = name.split_once("__").or_else(|| name.split_once(':')).map(|(section, _)| section);
    let lower = name.to_ascii_lowercase();
    SERVICE.contains(&name.as_ref())
        || section.is_some_and(|section| SETTINGS.iter().any(|own| own.eq_ignore_ascii_case(section)))
        || MISSPELLED_SECRET.iter().any(|tail| lower.ends_with(tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(pairs: &[(&str, &str)]) -> Inherited {
        Inherited::new(pairs.iter().map(|(name, value)| (name.into(), value.into())))
    }

    fn names(inherited: Inherited) -> Vec<String> {
        let names = inherited.into_variables().into_iter();
        names.map(|(name, _)| name.into_string().unwrap()).collect()
    }

    #[test]
    fn the_runners_own_settings_are_never_passed_on() {
        let host = host(&[
            ("Runner__Credentials__ClientSecret", "s"),
            ("RUNNER__ID", "x"),
            ("Server:Url", "x"),
            ("hooksPreapproval__enabled", "x"),
            ("Runer__Credentials__ClientSecret", "typo"),
            ("NOTIFY_SOCKET", "x"),
            ("CREDENTIALS_DIRECTORY", "x"),
            ("DOTNET_ENVIRONMENT", "kept"),
            ("RUNNER", "kept"),
            ("MY__ENGINE", "kept"),
            ("HOME", "kept"),
        ]);
        assert_eq!(names(host), ["DOTNET_ENVIRONMENT", "RUNNER", "MY__ENGINE", "HOME"]);
    }

    #[test]
    fn every_section_of_the_settings_is_listed() {
        let schema = serde_json::to_value(schemars::schema_for!(crate::settings::Settings)).unwrap();
        let sections: Vec<_> =
            schema["properties"].as_object().unwrap().keys().map(|it| it.to_lowercase()).collect();
        for section in sections {
            assert!(SETTINGS.contains(&section.as_str()), "{section} would reach the engines");
        }
    }

    #[test]
    fn the_secret_is_not_passed_on_under_any_name() {
        let pairs =
            [("A", "long-enough-secret"), ("B", "x=long-enough-secret;"), ("C", "long"), ("D", "abc")];
        assert_eq!(names(host(&pairs).without_secret(&"long-enough-secret".into())), ["C", "D"]);
        assert_eq!(names(host(&pairs).without_secret(&"abc".into())), ["A", "B", "C"]);
        assert_eq!(names(host(&[("A", "xabcx"), ("E", "")]).without_secret(&"abc".into())), ["A", "E"]);
        assert_eq!(names(host(&pairs).without_secret(&"".into())).len(), 4);
    }

    #[test]
    fn an_allow_list_keeps_listed_and_essential_variables() {
        let pairs =
            [("AWS_REGION", ""), ("AWS", ""), ("PATH", ""), ("LC_ALL", ""), ("HTTPS_PROXY", ""), ("X", "")];
        let with = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|&it| it.to_owned()).collect();
            names(host(&pairs).narrowed_to(Some(&patterns)))
        };
        assert_eq!(with(&[]), ["PATH", "LC_ALL"]);
        assert_eq!(with(&["AWS_*", "x", "*_PROXY"]), ["AWS_REGION", "PATH", "LC_ALL", "HTTPS_PROXY"]);
        assert_eq!(with(&["*"]).len(), pairs.len());
        assert_eq!(names(host(&pairs).narrowed_to(None)).len(), pairs.len());
        let own = host(&[("Runner__Id", "")]).narrowed_to(Some(&["*".to_owned()]));
        assert!(names(own).is_empty(), "no list can pass on the runner's own settings");
    }
}
