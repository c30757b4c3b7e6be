//! Source URLs, as a request, a registry or `.gitmodules` writes them.
//!
//! [`GitUrl`] is the only parser. It takes `https`, `http`, `ssh`, `git` and `file` URLs, `user@host:path` and absolute paths,
//! and refuses everything that git would read as an option, as a program to run, or differently than this parser does.
//! [`GitUrl::canonical`] is stricter still: it gives each repository one spelling, for comparison with the policy.
//! [`mask_url`] and its siblings hide credentials in texts that may not be URLs at all.

mod canonical;
mod mask;

use std::fmt;

pub use canonical::CanonicalUrl;
pub use mask::mask_url;
pub(crate) use mask::{bare_login_end, has_login, login_end, mask_urls};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the source URL {url:?} cannot be used: {reason}")]
pub struct UrlError {
    /// Masked.
    pub url: String,
    pub reason: &'static str,
}

impl UrlError {
    pub(crate) fn new(url: &str, reason: &'static str) -> Self {
        Self { url: mask_url(url), reason }
    }
}

/// The schemes that git may use, with their default ports.
const SCHEMES: [(&str, u16); 5] = [("https", 443), ("http", 80), ("ssh", 22), ("git", 9418), ("file", 0)];

/// The same schemes in the format of `GIT_ALLOW_PROTOCOL`.
pub(crate) const ALLOWED_PROTOCOLS: &str = "file:git:http:https:ssh";

fn scheme(text: &str) -> Option<(&'static str, u16)> {
    SCHEMES.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text))
}

/// A URL that git may fetch from. `Display` and `Debug` mask its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct GitUrl {
    notation: Notation,
    scheme: &'static str,
    /// `user` or `user:password`, still percent-encoded.
    user_info: Option<String>,
    /// The host and perhaps a port.
    server: String,
    /// Includes the query and the fragment.
    path: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Notation {
    /// `scheme://server/path`
    Url,
    /// `user@host:path`; its scheme is ssh.
    Scp,
    /// Its scheme is file.
    AbsolutePath,
}

/// The user and password of an http URL, decoded. There is no `Debug`, because it would print the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    /// A name, or a token in its place.
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    /// Scheme, host and port, as in git's configuration.
    pub(crate) server: String,
}

impl GitUrl {
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        Self::split(url).map_err(|reason| UrlError::new(url, reason))
    }

    fn split(url: &str) -> Result<Self, &'static str> {
        if url.is_empty() {
            return Err("it is empty");
        }
        if url.starts_with('-') {
            return Err("it starts with a dash");
        }
        if url.contains(char::is_control) {
            return Err("it contains control characters");
        }
        let is_word = |text: &str| {
            !text.is_empty() && text.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char))
        };
        if url.split_once("::").is_some_and(|(helper, _)| is_word(helper)) {
            return Err("remote helpers (name::…) are not allowed");
        }
        if let Some((name, rest)) = url.split_once("://") {
            let (scheme, _) = scheme(name).ok_or("its scheme must be https, http, ssh, git or file")?;
            return Self::split_url(scheme, rest);
        }
        if url.starts_with('/') {
            return Ok(Self::new(Notation::AbsolutePath, "file", (None, ""), url));
        }
        Self::split_scp(url)
    }

    fn split_url(scheme: &'static str, rest: &str) -> Result<Self, &'static str> {
        // ssh refuses such a host too, but not every version of git does.
        if rest.starts_with('-') || rest.contains("@-") {
            return Err("its host starts with a dash");
        }
        let (authority, path) = rest.split_at(mask::authority(rest).len());
        // git would get the password as an argument, and take a part of it for the host.
        if login_end(rest).is_some_and(|end| end > authority.len()) {
            return Err(
                "its password contains a slash, a question mark or a number sign: write them as %2F, %3F \
                        and %23 (and an at sign in a path as %40)",
            );
        }
        let (user_info, server) = split_user_info(authority);
        if let Some(user_info) = user_info {
            // git's credential protocol has one value per line, and its settings are `name=value`.
            if decode(user_info).contains(char::is_control) || server.contains('=') {
                return Err("its user or password contains control characters, or its host an equals sign");
            }
            if user_info.contains(':') && matches!(scheme, "ssh" | "git") {
                return Err("it contains a password, which ssh and git do not take from a URL: use a key");
            }
        }
        Ok(Self::new(Notation::Url, scheme, (user_info, server), path))
    }

    fn split_scp(url: &str) -> Result<Self, &'static str> {
        let start = url.split('/').next().unwrap_or_default();
        let colon = start.find("]:").map(|at| at + 1).or_else(|| start.find(':'));
        let Some(colon) = colon else { return Err("it is a relative path") };
        if start.contains("@-") {
            return Err("its host starts with a dash");
        }
        // The password would be on the command line of ssh.
        if bare_login_end(url).is_some() {
            return Err(
                "it looks like user:password@host without https:// in front (for host:path with an at sign, \
                        write ssh://host/path)",
            );
        }
        if scheme(&url[..colon]).is_some() {
            return Err("it looks like a URL without the slashes after its scheme");
        }
        Ok(Self::new(Notation::Scp, "ssh", split_user_info(&url[..colon]), &url[colon + 1..]))
    }

    fn new(notation: Notation, scheme: &'static str, authority: (Option<&str>, &str), path: &str) -> Self {
        let (user_info, server) = (authority.0.map(str::to_owned), authority.1.to_owned());
        Self { notation, scheme, user_info, server, path: path.to_owned() }
    }

    /// Whether the repository is on this machine's disk.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.scheme == "file"
    }

    pub(crate) fn is_scp(&self) -> bool {
        self.notation == Notation::Scp
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Another repository on the same server, with the same login.
    pub(crate) fn with_path(&self, path: String) -> Result<Self, UrlError> {
        Self::parse(&Self { path, ..self.clone() }.with_credentials())
    }

    /// The URL for git's command line. Every user of the machine can read that, so the login of an http URL is left out.
    pub(crate) fn argument(&self) -> String {
        match self.login() {
            Some(_) => Self { user_info: None, ..self.clone() }.with_credentials(),
            None => self.with_credentials(),
        }
    }

    /// Only http URLs have one: the user of ssh stays in [`argument`](Self::argument).
    pub(crate) fn login(&self) -> Option<Login> {
        let user_info = self.user_info.as_deref().filter(|_| self.scheme.starts_with("http"))?;
        let (user, password) = split_password(user_info);
        let server = format!("{}://{}", self.scheme, self.server);
        Some(Login { user: decode(user), password: password.map(decode), server })
    }

    /// The whole URL, with its credentials.
    pub(crate) fn with_credentials(&self) -> String {
        let Self { scheme, user_info, server, path, .. } = self;
        let user_info = user_info.as_ref().map(|it| format!("{it}@")).unwrap_or_default();
        match self.notation {
            Notation::Url => format!("{scheme}://{user_info}{server}{path}"),
            Notation::Scp => format!("{user_info}{server}:{path}"),
            Notation::AbsolutePath => path.clone(),
        }
    }
}

impl fmt::Display for GitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask_url(&self.with_credentials()))
    }
}

impl fmt::Debug for GitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

fn split_user_info(authority: &str) -> (Option<&str>, &str) {
    match authority.rsplit_once('@') {
        Some((user_info, server)) => (Some(user_info), server),
        None => (None, authority),
    }
}

fn split_password(user_info: &str) -> (&str, Option<&str>) {
    match user_info.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (user_info, None),
    }
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests;
