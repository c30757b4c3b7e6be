//! Where sources may come from: `Policy.AllowedSources`.
//!
//! A URL and a pattern are compared part by part, in a form in which one place has one spelling:
//! - The scheme is one of `https`, `http`, `ssh`, `git` and `file` and must be the same. `user@host:path` counts as
//!   `ssh://user@host/path`, an absolute path as `file:///path`.
//! - User and password do not count, but for a user in an `ssh` pattern: then it must be that one.
//! - The host counts in lower case, without a dot at its end; `*` in it never reaches beyond the host.
//! - The port of the scheme is the same as none; any other must be in the pattern.
//! - The path counts with its capitals, with percent-encoding undone, without slashes that are doubled or at its end and
//!   without a `.git` at its end. `*` in it stands for any text, slashes included.
//!
//! What could be read in more than one way is refused and not guessed at: `.` and `..` in a path, encoded slashes, a second
//! `@`, a query, a backslash, a host that is not plain ASCII. Servers and git differ in what they make of these.

use std::str::FromStr;

use percent_encoding::percent_decode_str;

use crate::base::git_url::mask_url;
use crate::base::wildcard::Wildcard;
use crate::settings::Refusal;

const RULE: &str = "Policy.AllowedSources";

/// Why a URL, or a pattern, has no form to be compared in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SourcePatternError {
    #[error("has no scheme; write it like https://github.com/my-org/* (ssh://host/… for user@host:path too)")]
    NoScheme,
    #[error("has a scheme other than https, http, ssh, git and file")]
    Scheme,
    #[error("has a password or, without being ssh, a user; they do not count, so leave them out")]
    Credentials,
    #[error("names no path; write /* for all of a host")]
    NoPath,
    #[error("cannot be compared: {0}")]
    Ambiguous(&'static str),
}

type Parts = Result<SourceLocation, SourcePatternError>;

/// A URL taken apart, in its one spelling.
#[derive(Debug, PartialEq, Eq)]
struct SourceLocation {
    scheme: &'static str,
    user: Option<String>,
    has_password: bool,
    host: String,
    port: u16,
    /// Without the first slash.
    path: String,
}

fn ambiguous<T>(reason: &'static str) -> Result<T, SourcePatternError> {
    Err(SourcePatternError::Ambiguous(reason))
}

/// The schemes and their ports. Nothing is fetched through others.
const SCHEMES: [(&str, u16); 5] = [("https", 443), ("http", 80), ("ssh", 22), ("git", 9418), ("file", 0)];

fn scheme_of(text: &str) -> Option<(&'static str, u16)> {
    SCHEMES.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text))
}

impl SourceLocation {
    /// `url` is what git, or the registry's client, gets.
    fn of_url(url: &str) -> Parts {
        if url.contains(|char: char| char.is_control() || char == '\\') {
            return ambiguous("it has a backslash or a control character");
        }
        if let Some((scheme, rest)) = url.split_once("://") {
            let (scheme, port) = scheme_of(scheme).ok_or(SourcePatternError::Scheme)?;
            return Self::of_parts(scheme, port, rest);
        }
        if url.starts_with('/') {
            // git takes a plain path as it is written.
            return Self::new("file", None, String::new(), 0, &segments(url, false)?);
        }
        // As git has it: a colon before the first slash makes it `user@host:path`.
        let Some((server, path)) = url.split_once(':').filter(|(server, _)| !server.contains('/')) else {
            return Err(SourcePatternError::NoScheme);
        };
        if scheme_of(server).is_some() {
            return ambiguous("it looks like a URL without its slashes");
        }
        let (user, host) = split_user(server)?;
        let path = segments(path, false)?;
        Self::new("ssh", user.map(str::to_owned), host_name(host)?, 22, &path)
    }

    fn of_parts(scheme: &'static str, default_port: u16, rest: &str) -> Parts {
        if rest.contains(['?', '#']) {
            return ambiguous("it has a query or a fragment");
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let path = segments(path, true)?;
        if scheme == "file" {
            if !authority.is_empty() {
                return ambiguous("a file URL has a host; write file:///…");
            }
            return Self::new(scheme, None, String::new(), 0, &path);
        }
        let (user_info, server) = split_user(authority)?;
        // git decodes all of an ssh URL before it looks for the host.
        if !scheme.starts_with("http") && authority.contains('%') {
            return ambiguous("what comes before its path is percent-encoded");
        }
        let (host, port) = match server.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
                let port = port.strip_prefix(':').or_else(|| port.is_empty().then_some(""));
                (format!("[{}]", address.to_ascii_lowercase()), port.unwrap_or("no port"))
            }
            _ => {
                let (host, port) = server.split_once(':').unwrap_or((server, ""));
                (host_name(host)?, port)
            }
        };
        let port = match port {
            "" => default_port,
            digits => match digits.parse() {
                Ok(port) if digits.bytes().all(|byte| byte.is_ascii_digit()) => port,
                _ => return ambiguous("its port is no number"),
            },
        };
        let (user, password) = match user_info.map(|it| it.split_once(':').unwrap_or((it, ""))) {
            Some((user, password)) => (Some(user.to_owned()), password),
            None => (None, ""),
        };
        let place = Self::new(scheme, user, host, port, &path)?;
        Ok(Self { has_password: !password.is_empty(), ..place })
    }

    fn new(
        scheme: &'static str,
        user: Option<String>,
        host: String,
        port: u16,
        segments: &[String],
    ) -> Parts {
        let mut path = segments.join("/");
        if let Some(bare) = path.strip_suffix(".git").filter(|bare| !bare.is_empty() && !bare.ends_with('/'))
        {
            path.truncate(bare.len());
        }
        Ok(Self { scheme, user, has_password: false, host, port, path })
    }
}

fn split_user(authority: &str) -> Result<(Option<&str>, &str), SourcePatternError> {
    match authority.split_once('@') {
        None => Ok((None, authority)),
        Some((_, host)) if host.contains('@') => ambiguous("it has more than one @ before its path"),
        Some((user, host)) => Ok((Some(user), host)),
    }
}

/// A `*` is only ever in patterns: no name resolves with one.
fn host_name(host: &str) -> Result<String, SourcePatternError> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.*".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_plain) {
        return ambiguous("its host is missing or not plain ASCII");
    }
    Ok(host.to_ascii_lowercase())
}

fn segments(path: &str, is_encoded: bool) -> Result<Vec<String>, SourcePatternError> {
    let mut segments = Vec::new();
    for raw in path.split('/').filter(|segment| !segment.is_empty()) {
        let segment = match is_encoded && raw.contains('%') {
            false => raw.to_owned(),
            true => match percent_decode_str(raw).decode_utf8() {
                // One that is still encoded would be something else to whoever decodes it again.
                Ok(text) if !text.contains(|char: char| char.is_control() || "/\\%".contains(char)) => {
                    text.into_owned()
                }
                _ => return ambiguous("its path hides a slash, a percent sign or bytes that are no text"),
            },
        };
        if matches!(segment.as_str(), "." | "..") {
            return ambiguous("its path has . or .. in it");
        }
        segments.push(segment);
    }
    Ok(segments)
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
    type Err = SourcePatternError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if !text.contains("://") {
            return Err(SourcePatternError::NoScheme);
        }
        let place = SourceLocation::of_url(text)?;
        if place.has_password || place.user.is_some() && place.scheme != "ssh" {
            return Err(SourcePatternError::Credentials);
        }
        if place.path.is_empty() {
            return Err(SourcePatternError::NoPath);
        }
        Ok(Self {
            scheme: place.scheme,
            user: place.user,
            host: Wildcard::new(&place.host),
            port: place.port,
            path: Wildcard::new(&place.path),
        })
    }
}

impl SourcePattern {
    fn covers(&self, place: &SourceLocation) -> bool {
        self.scheme == place.scheme
            && self.port == place.port
            && (self.user.is_none() || self.user == place.user)
            && self.host.matches(&place.host)
            && self.path.matches(&place.path)
    }
}

/// `Policy.AllowedSources`, ready for use.
#[derive(Debug, Clone, Default)]
pub struct SourceRule(Option<Vec<SourcePattern>>);

impl SourceRule {
    pub fn new(patterns: Option<Vec<SourcePattern>>) -> Self {
        Self(patterns)
    }

    /// Without a list everything is allowed.
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Whether anything may be fetched from there.
    pub fn judge(&self, url: &str) -> Result<(), Refusal> {
        let Some(patterns) = &self.0 else { return Ok(()) };
        let url = url.trim();
        let why = match SourceLocation::of_url(url) {
            Ok(place) if patterns.iter().any(|pattern| pattern.covers(&place)) => return Ok(()),
            Ok(_) => "no entry of the list matches it".to_owned(),
            Err(error) => format!("it {error}"),
        };
        Err(Refusal::new(RULE, format!("the source {:?}", mask_url(url)), why))
    }
}

#[cfg(test)]
mod tests;
