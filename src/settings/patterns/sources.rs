//! Where sources may come from: `Policy.AllowedSources`.
//!
//! A URL and a pattern are compared part by part, in the canonical spelling of [`CanonicalUrl`]:
//! - The scheme is one of `https`, `http`, `ssh`, `git` and `file` and must be the same. `user@host:path` is
//!   `ssh://user@host/path`, an absolute path is `file:///path`.
//! - User and password are ignored, except for a user in an `ssh` pattern, which must match.
//! - The host is compared in lower case, without a dot at its end; `*` in it matches within the host only.
//! - No port is the same as the scheme's default port; any other port must be in the pattern.
//! - The path is case-sensitive and compared after percent-decoding, without empty segments and without `.git` at its end. `*`
//!   in it matches any text, including slashes.
//!
//! A URL that could be read in more than one way is refused, because servers and git differ in how they read it: `.` and `..`
//! in a path, encoded slashes, a second `@`, a query, a backslash, a host that is not plain ASCII.

use std::str::FromStr;

use crate::base::git_url::{CanonicalUrl, GitUrl, UrlError, mask_url};
use crate::base::wildcard::Wildcard;
use crate::settings::Refusal;

const RULE: &str = "Policy.AllowedSources";

fn canonical(url: &str) -> Result<CanonicalUrl, UrlError> {
    GitUrl::parse(url)?.canonical()
}

/// One entry of `Policy.AllowedSources`.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcePattern {
    scheme: &'static str,
    user: Option<String>,
    host: Wildcard,
    port: u16,
    path: Wildcard,
}

impl FromStr for SourcePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if !text.contains("://") {
            let example = "https://github.com/my-org/* (ssh://host/… for user@host:path too)";
            return Err(format!("has no scheme; write it like {example}"));
        }
        let CanonicalUrl { scheme, user, host, port, path } =
            canonical(text).map_err(|error| format!("cannot be used: {}", error.reason))?;
        if user.is_some() && scheme != "ssh" {
            return Err("contains a user, which is only compared for ssh; remove it".to_owned());
        }
        if path.is_empty() {
            return Err("has no path; write /* for all of a host".to_owned());
        }
        Ok(Self { scheme, user, host: Wildcard::new(&host), port, path: Wildcard::new(&path) })
    }
}

impl SourcePattern {
    fn matches(&self, url: &CanonicalUrl) -> bool {
        self.scheme == url.scheme
            && self.port == url.port
            && (self.user.is_none() || self.user == url.user)
            && self.host.matches(&url.host)
            && self.path.matches(&url.path)
    }
}

/// `Policy.AllowedSources` as a whole.
#[derive(Debug, Clone, Default)]
pub struct SourceRule(Option<Vec<SourcePattern>>);

impl SourceRule {
    pub fn new(patterns: Option<Vec<SourcePattern>>) -> Self {
        Self(patterns)
    }

    /// Without a list, every source is allowed.
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the policy allows fetching from this URL.
    pub fn check(&self, url: &str) -> Result<(), Refusal> {
        let Some(patterns) = &self.0 else { return Ok(()) };
        let url = url.trim();
        let reason = match canonical(url) {
            Ok(url) if patterns.iter().any(|pattern| pattern.matches(&url)) => return Ok(()),
            Ok(_) => "no entry of the list matches it",
            Err(error) => error.reason,
        };
        Err(Refusal::new(RULE, format!("the source {:?}", mask_url(url)), reason))
    }
}

#[cfg(test)]
mod tests;
