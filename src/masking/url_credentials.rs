//! Finds credentials in URLs and connection strings.

use std::collections::BTreeSet;

use percent_encoding::percent_decode_str;

use super::Rules;
use crate::base::git_url::{bare_login_end, login_end};

/// The minimum length of a user name without a password that counts as a token. Shorter names belong to people and
/// organizations (`https://acme@dev.azure.com/acme/…`).
const TOKEN_LENGTH: usize = 20;

/// Fixed texts that are used instead of a user name or a password.
const PLACEHOLDERS: [&str; 4] = ["x-oauth-basic", "x-access-token", "x-token-auth", "oauth2"];

/// Secret parameters of URLs and connection strings that [`Rules`] does not recognize by name.
const PARTS: [&str; 9] = [
    "sig",
    "signature",
    "x-amz-signature",
    "x-goog-signature",
    "sshkey",
    "pwd",
    "accountkey",
    "sharedaccesskey",
    "sharedaccesssignature",
];

/// Finds all credentials in a text. Those in URLs are returned both as written and decoded.
pub(crate) fn credentials(text: &str, rules: &Rules) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(url) = whole_url(text) {
        of_url(url, rules, &mut found);
    }
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let url = &rest[at + 3..];
        let end = url.find(|char: char| char.is_whitespace() || "'\"<>`".contains(char)).unwrap_or(url.len());
        of_url(&url[..end], rules, &mut found);
        // Other URLs may follow, after a comma or within this one.
        url[..end].split("://").skip(1).for_each(|url| of_url(url, rules, &mut found));
        rest = &url[end..];
    }
    for (name, value) in pairs(text) {
        if !name.contains("://") && is_secret(name.trim_start_matches(['-', '"', '\'']), rules) {
            found.push(value);
        }
    }
    let mut known = BTreeSet::new();
    found.retain(|secret| known.insert(secret.clone()));
    found
}

/// Finds the credentials in the URL of a source, which may lack a scheme.
pub(crate) fn of_source(url: &str, rules: &Rules) -> Vec<String> {
    let mut found = credentials(url, rules);
    let url = url.trim();
    match url.split_once("://") {
        Some((_, url)) => of_url(url, rules, &mut found),
        None => {
            if let Some(end) = bare_login_end(url) {
                login(&url[..end], rules, &mut found);
            }
        }
    }
    found
}

/// If the whole text is one URL, returns it without its scheme. The password may contain any character, but a sentence that
/// starts with a URL does not count.
fn whole_url(text: &str) -> Option<&str> {
    let (scheme, url) = text.trim().split_once("://")?;
    let is_scheme = |char: char| char.is_ascii_alphanumeric() || "+-.:".contains(char);
    let behind = &url[url.rfind('@').unwrap_or(0)..];
    (scheme.chars().all(is_scheme) && !behind.contains(char::is_whitespace)).then_some(url)
}

/// `url` has no scheme.
fn of_url(url: &str, rules: &Rules, found: &mut Vec<String>) {
    if let Some(end) = login_end(url) {
        login(&url[..end], rules, found);
    }
    let parameters = url.find(['?', '#']).map_or("", |start| &url[start + 1..]);
    for (name, value) in parameters.split(['?', '&', '#']).filter_map(|it| it.split_once('=')) {
        if is_secret(name, rules) {
            both(value, found);
        }
    }
}

/// `user:password`, or one of them.
fn login(text: &str, rules: &Rules, found: &mut Vec<String>) {
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    let is_placeholder = PLACEHOLDERS.contains(&password);
    if !password.is_empty() && !is_placeholder {
        both(password, found);
    }
    // With a dummy password such as `x`, the name may be the token.
    if user.len() >= TOKEN_LENGTH && (is_placeholder || password.len() < rules.minimum_length) {
        both(user, found);
    }
}

/// The `name=value` pairs of a text, separated by semicolons or whitespace. A value may be in quotes; a quote within it is
/// doubled.
fn pairs(text: &str) -> Vec<(&str, String)> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let next = end + rest[end..].chars().next().map_or(0, char::len_utf8);
        if let Some((name, value)) = rest[..end].split_once('=') {
            let bare = || value.trim_matches(['"', '\'']).to_owned();
            pairs.push((name, quoted(&rest[name.len() + 1..]).unwrap_or_else(bare)));
        }
        rest = &rest[next..];
    }
    pairs
}

fn is_end(char: char) -> bool {
    char == ';' || char.is_whitespace()
}

/// The quoted text at the start, if a separator or the end of the text follows it.
fn quoted(text: &str) -> Option<String> {
    let quote = text.chars().next().filter(|char| ['"', '\''].contains(char))?;
    let mut inner = String::new();
    let mut chars = text[1..].chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            char if char != quote => inner.push(char),
            _ if chars.next_if_eq(&quote).is_some() => inner.push(quote),
            _ => return chars.peek().is_none_or(|char| is_end(*char)).then_some(inner),
        }
    }
    None
}

fn is_secret(name: &str, rules: &Rules) -> bool {
    rules.is_secret_name(name) || PARTS.iter().any(|part| part.eq_ignore_ascii_case(name))
}

fn both(text: &str, found: &mut Vec<String>) {
    found.push(text.to_owned());
    let decoded = percent_decode_str(text).decode_utf8_lossy();
    if decoded != text {
        found.push(decoded.into_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::model::JobLogStreamSettings;

    #[test]
    fn credentials_are_found_in_any_position_and_names_are_not() {
        let rules = Rules::new(&JobLogStreamSettings::default()).unwrap();
        for (text, expected) in [
            ("https://host/repo", &[][..]),
            ("https://user:p%40ss-word@host/repo", &["p%40ss-word", "p@ss-word"]),
            ("http://u:pa/ss@host:8080", &["pa/ss"]),
            ("https://ghp_0123456789abcdefghij@github.com/a/b", &["ghp_0123456789abcdefghij"]),
            ("https://ghp_0123456789abcdefghij:x-oauth-basic@github.com", &["ghp_0123456789abcdefghij"]),
            ("https://x-access-token:ghs_abc@github.com", &["ghs_abc"]),
            ("https://acme@dev.azure.com/acme/x", &[]),
            ("ssh://git@host/repo", &[]),
            ("https://[::1]:80/x@y", &[]),
            ("git::https://h/r?ref=v1&sshkey=QUJD#x", &["QUJD"]),
            ("https://acc.blob.core.windows.net/c?sv=1&sig=a%2Bb%3D", &["a%2Bb%3D", "a+b="]),
            ("two http://a:first1@h 'http://b:second@h'", &["first1", "second"]),
            ("Server=db;User Id=me;Password=hunter22;", &["hunter22"]),
            ("AccountName=x;AccountKey=QUJD==;EndpointSuffix=core", &["QUJD=="]),
            ("host=db user=me password='hunter22'", &["hunter22"]),
            ("-var db_password=hunter22 -var region=eu", &["hunter22"]),
            ("Server=db;Password=\"semi;colon-pw\";User Id=me", &["semi;colon-pw"]),
            ("host=db password='with space' user=me", &["with space"]),
            ("Pwd='it''s;quoted'", &["it's;quoted"]),
            ("Password='it's", &["it's"]),
            ("postgres://me:pa'ss-w0rd@db/x", &["pa'ss-w0rd"]),
            (" http://me:pa\"s<s>`w0rd@db/x\n", &["pa\"s<s>`w0rd"]),
            ("http://me:pa ss-w0rd@db/x", &["pa ss-w0rd"]),
            ("http://me:1234/rest@db.corp/x", &["1234/rest"]),
            ("http://h/r#access_token=t0ken&x=y", &["t0ken"]),
            ("http://h/r?a=b#access_token=t0ken", &["t0ken"]),
            ("https://a:first1@h,https://b:second@h", &["first1", "second"]),
            ("https://ghp_0123456789abcdefghij:x@github.com", &["x", "ghp_0123456789abcdefghij"]),
            ("http://registry:4873/@scope/pkg", &[]),
            ("http://nexus:8081/repository/pkg@1.2.3", &[]),
            ("http://git.corp:3000/me@corp.org/x", &[]),
            ("https://wiki.corp: ask me@corp.org and others", &[]),
            ("nginx:latest-1.25@sha256:0123456789", &[]),
            ("", &[]),
        ] {
            assert_eq!(credentials(text, &rules), expected, "{text}");
        }
    }

    #[test]
    fn a_source_may_lack_a_scheme() {
        let rules = Rules::new(&JobLogStreamSettings::default()).unwrap();
        for (text, expected) in [
            ("user:pass-word@host/path", &["pass-word"][..]),
            ("user:pass/word@host.org/path", &["pass/word"]),
            ("git@host:org/repo", &[]),
            ("host:org/repo@v1", &[]),
            ("/srv/a:b@c", &[]),
            ("http://u:two words@h/a b", &["two words"]),
        ] {
            assert_eq!(of_source(text, &rules), expected, "{text}");
        }
    }
}
