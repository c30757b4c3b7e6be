//! Source URLs: which are let through to git, and how they are shown.

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the source URL {url:?} cannot be used: {reason}")]
pub struct UrlError {
    /// Masked.
    pub url: String,
    pub reason: &'static str,
}

/// The transports that git may use, in the form of `GIT_ALLOW_PROTOCOL`.
pub(super) const PROTOCOLS: &str = "file:git:http:https:ssh";

/// Refuses what git would read as an option or as the name of a program to run.
pub(super) fn check(url: &str) -> Result<(), UrlError> {
    let refuse = |reason| Err(UrlError { url: mask_url(url), reason });
    if url.is_empty() {
        return refuse("it is empty");
    }
    if url.starts_with('-') {
        return refuse("it starts with a dash");
    }
    if url.contains(char::is_control) {
        return refuse("it has control characters");
    }
    let is_word = |text: &str| {
        !text.is_empty() && text.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char))
    };
    if url.split_once("::").is_some_and(|(helper, _)| is_word(helper)) {
        return refuse("remote helpers (name::…) are not allowed");
    }
    match url.split_once("://") {
        Some((scheme, rest)) if is_word(scheme) => {
            if !PROTOCOLS.split(':').any(|allowed| allowed.eq_ignore_ascii_case(scheme)) {
                return refuse(
                    "allowed are https, http, ssh, git and file, user@host:path, and absolute paths",
                );
            }
            // ssh refuses such a host too, but not every version of git does.
            if rest.starts_with('-') || rest.contains("@-") {
                return refuse("its host starts with a dash");
            }
            // git's credential protocol is made of lines, and its settings of names before an equals sign.
            let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
            if let Some((user_info, host)) = authority.rsplit_once('@')
                && (decode(user_info).contains(char::is_control) || host.contains('='))
            {
                return refuse("its user or password has control characters, or its host an equals sign");
            }
        }
        _ => {
            let is_path = url.starts_with('/');
            let host = url.split('/').next().unwrap_or_default();
            if !is_path && !host.contains(':') {
                return refuse("it is a relative path");
            }
            if !is_path && host.contains("@-") {
                return refuse("its host starts with a dash");
            }
        }
    }
    Ok(())
}

/// A URL as git gets it. Arguments can be read by every user of the machine, so a password is taken out and
/// goes another way.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) url: String,
    pub(super) login: Option<Login>,
}

/// What stood in front of the host. Whoever derives `Debug` for this prints a password.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    /// A name, or a token in its place.
    pub(super) user: String,
    pub(super) password: Option<String>,
    /// Scheme, host and port, as git's configuration names a server.
    pub(super) server: String,
}

impl Remote {
    /// Only http has passwords in its URLs; for ssh git itself refuses them. [`check`] has let the URL through.
    pub(super) fn new(url: &str) -> Self {
        let as_it_is = || Self { url: url.to_owned(), login: None };
        let Some((scheme, rest)) = url.split_once("://") else { return as_it_is() };
        if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
            return as_it_is();
        }
        let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
        let Some((user_info, host)) = authority.rsplit_once('@') else { return as_it_is() };
        let (user, password) = match user_info.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (user_info, None),
        };
        let (user, password) = (decode(user), password.map(decode));
        let login = Login { user, password, server: format!("{scheme}://{host}") };
        Self { url: format!("{scheme}://{}", &rest[user_info.len() + 1..]), login: Some(login) }
    }
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Replaces credentials in every URL of a text: user and password (the user of ssh stays, it is no secret), and
/// the values of query parameters other than `ref`.
pub fn mask_url(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        masked.push_str(before);
        let is_ssh = before.strip_suffix("://").is_some_and(|it| it.to_ascii_lowercase().ends_with("ssh"));
        let end = url.find(|char: char| char.is_whitespace() || "'\"<>`".contains(char)).unwrap_or(url.len());
        let (url, after) = url.split_at(end);
        masked.push_str(&mask_one(url, is_ssh));
        rest = after;
    }
    masked.push_str(rest);
    masked
}

/// `url` is without its scheme.
fn mask_one(url: &str, is_ssh: bool) -> String {
    let authority_end = url.find(['/', '?', '#']).unwrap_or(url.len());
    let authority = &url[..authority_end];
    // A password with an unescaped slash makes the authority look like a host with a wrong port.
    let broken_port = authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.ends_with(']') && !port.chars().all(|char| char.is_ascii_digit()));
    let credentials_end = if authority.contains('@') {
        authority.rfind('@')
    } else if broken_port {
        url.rfind('@')
    } else {
        None
    };
    let (shown, rest) = match credentials_end {
        Some(at) if is_ssh && !url[..at].contains(':') => ("", url),
        Some(at) => ("***", &url[at..]),
        None => ("", url),
    };
    format!("{shown}{}", mask_query(rest))
}

fn mask_query(url: &str) -> String {
    let Some((path, query)) = url.split_once('?') else { return url.to_owned() };
    let parameters: Vec<String> = query
        .split('&')
        .map(|parameter| match parameter.split_once('=') {
            Some(("ref", _)) | None => parameter.to_owned(),
            Some((name, _)) => format!("{name}=***"),
        })
        .collect();
    format!("{path}?{}", parameters.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_masked_wherever_a_url_stands() {
        for (text, masked) in [
            ("https://host/repo", "https://host/repo"),
            ("https://user:pw@host/repo", "https://***@host/repo"),
            ("https://token@host:8443/repo.git", "https://***@host:8443/repo.git"),
            ("HTTPS://u:p@w@host/repo", "HTTPS://***@host/repo"),
            ("https://u:pa/ss@host/repo", "https://***@host/repo"),
            ("ssh://git@host/repo", "ssh://git@host/repo"),
            ("ssh://git:pw@host/repo", "ssh://***@host/repo"),
            ("git@host:repo.git", "git@host:repo.git"),
            ("https://host/a@b/c", "https://host/a@b/c"),
            ("https://[::1]:80/x@y", "https://[::1]:80/x@y"),
            ("https://host/r?ref=v1&token=abc", "https://host/r?ref=v1&token=***"),
            (
                "fatal: unable to access 'https://u:p@host/r/': no, https://t@h too",
                "fatal: unable to access 'https://***@host/r/': no, https://***@h too",
            ),
            ("git::https://u:p@h//sub?ref=x", "git::https://***@h//sub?ref=x"),
            ("://", "://"),
            ("", ""),
        ] {
            assert_eq!(mask_url(text), masked);
        }
    }

    #[test]
    fn a_password_is_taken_out_of_what_git_gets() {
        let taken = |url| {
            let Remote { url, login } = Remote::new(url);
            (url, login.map(|it| (it.user, it.password.unwrap_or("(none)".into()), it.server)))
        };
        assert_eq!(
            taken("https://u%40x:p%2Fw@host:8443/org/repo.git?a=b@c"),
            (
                "https://host:8443/org/repo.git?a=b@c".into(),
                Some(("u@x".into(), "p/w".into(), "https://host:8443".into()))
            )
        );
        assert_eq!(
            taken("https://t%40ken@host/r"),
            ("https://host/r".into(), Some(("t@ken".into(), "(none)".into(), "https://host".into())))
        );
        for url in ["https://host/r", "ssh://git@host/r", "git@host:r", "/srv/a:b@c", "https://h/a:b@c"] {
            assert_eq!(taken(url), (url.to_owned(), None));
        }
    }

    #[test]
    fn urls_that_are_options_programs_or_relative_are_refused() {
        for url in [
            "https://host/repo.git",
            "http://host/r",
            "ssh://git@host/r",
            "git://host/r",
            "file:///srv/r",
            "/srv/r",
            "git@host:org/repo.git",
            "host:repo",
            "https://[::1]/r",
        ] {
            assert_eq!(check(url), Ok(()), "{url}");
        }
        for url in [
            "",
            "-x",
            "--upload-pack=touch x",
            "ext::sh -c date",
            "fd::17",
            "git::https://host/r",
            "repo",
            "./repo",
            "../repo",
            "ftp://host/r",
            "https://host/\nr",
            "https://u:p%0aw@host/r",
            "https://u:p@ho=st/r",
            "ssh://-oProxyCommand=x/r",
            "ssh://git@-oProxyCommand=x/r",
            "git@-x:r",
            "a\0b",
        ] {
            assert!(check(url).is_err(), "{url:?}");
        }
    }
}
