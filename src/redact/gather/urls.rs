//! Credentials that stand inside of a text: in URLs, and in connection strings.

use percent_encoding::percent_decode_str;

use super::super::Rules;

/// A user name without a password is a token when it is as long as one; shorter names are those of people and
/// organizations (`https://acme@dev.azure.com/acme/…`).
const TOKEN_LENGTH: usize = 20;

/// What stands in the place of a user name or a password and is the same for everybody.
const PLACEHOLDERS: [&str; 4] = ["x-oauth-basic", "x-access-token", "x-token-auth", "oauth2"];

/// Parameters of URLs, and parts of connection strings, that hold a secret and whose names do not say so.
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

/// All credentials in a text. Those of URLs come as they stand there and decoded.
pub(super) fn credentials(text: &str, rules: &Rules) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let url = &rest[at + 3..];
        let end = url.find(|char: char| char.is_whitespace() || "'\"<>`".contains(char)).unwrap_or(url.len());
        of_url(&url[..end], rules, &mut found);
        rest = &url[end..];
    }
    for part in text.split(|char: char| char == ';' || char.is_whitespace()) {
        if let Some((name, value)) = part.split_once('=')
            && !name.contains("://")
            && is_secret(name.trim_start_matches(['-', '"', '\'']), rules)
        {
            found.push(value.trim_matches(['"', '\'']).to_owned());
        }
    }
    found
}

/// `url` is without its scheme.
fn of_url(url: &str, rules: &Rules, found: &mut Vec<String>) {
    let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
    let host_and_port = |text: &str| {
        text.rsplit_once(':')
            .is_none_or(|(_, port)| port.ends_with(']') || port.chars().all(|char| char.is_ascii_digit()))
    };
    // A password with an unescaped slash makes the authority look like a host with a wrong port.
    let end = match authority.rfind('@') {
        None if !host_and_port(authority) => url.rfind('@'),
        end => end,
    };
    if let Some(end) = end {
        let (user, password) = url[..end].split_once(':').unwrap_or((&url[..end], ""));
        if !password.is_empty() && !PLACEHOLDERS.contains(&password) {
            both(password, found);
        } else if user.len() >= TOKEN_LENGTH {
            both(user, found);
        }
    }
    let query = url.split_once('?').map_or("", |(_, query)| query);
    for (name, value) in query.split(['&', '#']).filter_map(|parameter| parameter.split_once('=')) {
        if is_secret(name, rules) {
            both(value, found);
        }
    }
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
    fn credentials_are_found_wherever_they_stand_and_names_are_not() {
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
            ("", &[]),
        ] {
            assert_eq!(credentials(text, &rules), expected, "{text}");
        }
    }
}
