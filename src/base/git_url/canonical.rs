//! One spelling per repository, so that URLs can be compared.

use percent_encoding::percent_decode_str;

use super::{GitUrl, Notation, UrlError, split_password};

/// The parts of a URL in their canonical spelling. `user@host:path` becomes ssh and an absolute path becomes `file`; the host
/// is in lower case; the path is decoded, without empty segments and without `.git` at its end.
#[derive(Debug, PartialEq, Eq)]
pub struct CanonicalUrl {
    pub scheme: &'static str,
    pub user: Option<String>,
    pub host: String,
    pub port: u16,
    /// Without the leading slash.
    pub path: String,
}

impl GitUrl {
    /// Refuses a URL that git and servers could read differently.
    pub fn canonical(&self) -> Result<CanonicalUrl, UrlError> {
        self.canonical_parts().map_err(|reason| UrlError::new(&self.with_credentials(), reason))
    }

    fn canonical_parts(&self) -> Result<CanonicalUrl, &'static str> {
        if self.with_credentials().contains('\\') {
            return Err("it contains a backslash");
        }
        let Self { scheme, server, .. } = self;
        let is_url = self.notation == Notation::Url;
        let user_info = self.user_info.as_deref();
        if user_info.is_some_and(|it| it.contains('@')) {
            return Err("it contains more than one @ before its path");
        }
        let user = user_info.map(|it| split_password(it).0.to_owned());
        if is_url && self.path.contains(['?', '#']) {
            return Err("it has a query or a fragment");
        }
        let path = canonical_path(&self.path, is_url)?;
        if self.is_on_disk() {
            return match server.is_empty() && user.is_none() {
                true => Ok(CanonicalUrl { scheme, user, host: String::new(), port: 0, path }),
                false => Err("a file URL with a host is not supported; write file:///…"),
            };
        }
        // git decodes all of an ssh URL before it looks for the host.
        let is_encoded = |text: &str| text.contains('%');
        if is_url && !scheme.starts_with("http") && (is_encoded(server) || user_info.is_some_and(is_encoded))
        {
            return Err("its user or host is percent-encoded");
        }
        let (host, port) = if is_url { host_and_port(server)? } else { (host_name(server)?, "") };
        let port = match port {
            "" => super::scheme(scheme).map_or(0, |(_, default_port)| default_port),
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().map_err(|_| "its port is too large")?
            }
            _ => return Err("its port is not a number"),
        };
        Ok(CanonicalUrl { scheme, user, host, port, path })
    }
}

fn host_and_port(server: &str) -> Result<(String, &str), &'static str> {
    if let Some((address, port)) = server.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && address.parse::<std::net::Ipv6Addr>().is_ok()
    {
        let port =
            if port.is_empty() { "" } else { port.strip_prefix(':').ok_or("its port is not a number")? };
        return Ok((format!("[{}]", address.to_ascii_lowercase()), port));
    }
    let (host, port) = server.split_once(':').unwrap_or((server, ""));
    Ok((host_name(host)?, port))
}

/// Allows `*` for patterns; no host name resolves with one.
fn host_name(host: &str) -> Result<String, &'static str> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.*".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_plain) {
        return Err("its host is missing or not plain ASCII");
    }
    Ok(host.to_ascii_lowercase())
}

/// git takes absolute paths and `host:path` as they are written: only URLs are percent-encoded.
fn canonical_path(path: &str, is_encoded: bool) -> Result<String, &'static str> {
    let mut segments = Vec::new();
    for raw in path.split('/').filter(|segment| !segment.is_empty()) {
        let segment = match is_encoded && raw.contains('%') {
            false => raw.to_owned(),
            true => match percent_decode_str(raw).decode_utf8() {
                // A server that decodes twice would read a remaining percent sign differently.
                Ok(text) if !text.contains(|char: char| char.is_control() || "/\\%".contains(char)) => {
                    text.into_owned()
                }
                _ => return Err("its path contains an encoded slash, percent sign or invalid UTF-8"),
            },
        };
        if matches!(segment.as_str(), "." | "..") {
            return Err("its path contains . or ..");
        }
        segments.push(segment);
    }
    let path = segments.join("/");
    let bare = path.strip_suffix(".git").filter(|bare| !bare.is_empty() && !bare.ends_with('/'));
    Ok(bare.unwrap_or(&path).to_owned())
}
