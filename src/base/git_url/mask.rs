//! Credentials in URLs, wherever they are in a text. The text may be malformed, so these functions guess, and in doubt they
//! mask too much.

/// The part before the path. In this file, `url` has no scheme, except in `mask_url`.
pub(super) fn authority(url: &str) -> &str {
    &url[..url.find(['/', '?', '#']).unwrap_or(url.len())]
}

/// The position of the `@` that ends the user and password.
pub(crate) fn login_end(url: &str) -> Option<usize> {
    let authority = authority(url);
    if let Some(end) = authority.rfind('@') {
        return Some(end);
    }
    // A password with an unescaped slash makes the authority look like a host with an invalid port.
    let (name, port) = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'))?;
    let end = url.rfind('@')?;
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(end);
    }
    // The port may be valid by accident: then the text after the `@` looks more like a host than the text in front.
    (!looks_like_host(name) && looks_like_host(&url[end + 1..])).then_some(end)
}

/// The same for `user:password@host/path` without a scheme, which is neither `user@host:path` nor `host:path`.
pub(crate) fn bare_login_end(url: &str) -> Option<usize> {
    let (user, rest) = url.split_once(':')?;
    if user.contains(['/', '@']) {
        return None;
    }
    let in_first = rest.split('/').next().and_then(|first| first.rfind('@'));
    let anywhere = || rest.rfind('@').filter(|end| looks_like_host(&rest[end + 1..]));
    in_first.or_else(anywhere).map(|end| user.len() + 1 + end)
}

/// Whether a text starts with a host name that cannot be just any word.
fn looks_like_host(text: &str) -> bool {
    let authority = authority(text);
    let host = authority.split(':').next().unwrap_or_default();
    let is_top_level = |label: &str| label.len() > 1 && label.bytes().all(|byte| byte.is_ascii_alphabetic());
    authority.starts_with('[')
        || host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::Ipv4Addr>().is_ok()
        || host.rsplit_once('.').is_some_and(|(_, last)| is_top_level(last))
}

/// Masks the credentials of a text that is a single URL: user and password (but not the user of ssh, which is not secret), and
/// the values of parameters other than `ref`.
pub fn mask_url(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", mask_one(rest, is_ssh(scheme))),
        None => match bare_login_end(url) {
            Some(end) => format!("***{}", mask_parameters(&url[end..])),
            None => url.to_owned(),
        },
    }
}

/// Masks the credentials of every URL in a text. A URL ends at a quote or at whitespace.
pub(crate) fn mask_urls(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        masked.push_str(before);
        let end = url.find(|char: char| char.is_whitespace() || "'\"<>`".contains(char)).unwrap_or(url.len());
        let (url, after) = url.split_at(end);
        masked.push_str(&mask_one(url, is_ssh(&before[..at])));
        rest = after;
    }
    masked.push_str(rest);
    masked
}

fn is_ssh(scheme: &str) -> bool {
    scheme.to_ascii_lowercase().ends_with("ssh")
}

/// Whether a URL in this text contains a login, as in `git::https://user:password@host/x`. The user of ssh is not secret.
pub(crate) fn has_login(text: &str) -> bool {
    let mut schemes = text.match_indices("://");
    schemes.any(|(at, mark)| secret_login_end(&text[at + mark.len()..], is_ssh(&text[..at])).is_some())
}

fn secret_login_end(url: &str, is_ssh: bool) -> Option<usize> {
    login_end(url).filter(|end| !is_ssh || url[..*end].contains(':'))
}

fn mask_one(url: &str, is_ssh: bool) -> String {
    match secret_login_end(url, is_ssh) {
        Some(end) => format!("***{}", mask_parameters(&url[end..])),
        None => mask_parameters(url),
    }
}

/// Masks the values in the query and in the fragment.
fn mask_parameters(url: &str) -> String {
    let Some(start) = url.find(['?', '#']) else { return url.to_owned() };
    let (path, mut rest) = url.split_at(start);
    let mut masked = path.to_owned();
    // Each parameter starts with the character that separates it from the one before.
    while let Some(mark) = rest.chars().next() {
        let end = rest[1..].find(['?', '&', '#']).map_or(rest.len(), |end| end + 1);
        let parameter = &rest[1..end];
        masked.push(mark);
        match parameter.split_once('=') {
            Some(("ref", _)) | None => masked.push_str(parameter),
            Some((name, _)) => masked.extend([name, "=***"]),
        }
        rest = &rest[end..];
    }
    masked
}
