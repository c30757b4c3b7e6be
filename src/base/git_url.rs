//! Source URLs: which are let through to git, and how they are shown.

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the source URL {url:?} cannot be used: {reason}")]
pub struct UrlError {
    /// Masked.
    pub url: String,
    pub reason: &'static str,
}

/// The transports that git may use, in the form of `GIT_ALLOW_PROTOCOL`.
pub(crate) const PROTOCOLS: &str = "file:git:http:https:ssh";

/// Refuses what git would read as an option or as the name of a program to run.
pub(crate) fn check(url: &str) -> Result<(), UrlError> {
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
            if let Some((user_info, host)) = authority(rest).rsplit_once('@')
                && (decode(user_info).contains(char::is_control) || host.contains('='))
            {
                return refuse("its user or password has control characters, or its host an equals sign");
            }
            // It would stay in the argument that git gets, and git would take a part of it for the host.
            if login_end(rest).is_some_and(|end| end > authority(rest).len()) {
                return refuse(
                    "its password has a slash, a question mark or a number sign: write them as %2F, %3F and %23 \
                     (and an at sign in a path as %40)",
                );
            }
            let has_password = login_end(rest).is_some_and(|end| rest[..end].contains(':'));
            if has_password && ["ssh", "git"].iter().any(|it| it.eq_ignore_ascii_case(scheme)) {
                return refuse("it has a password, which ssh and git do not take from a URL: use a key");
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
            // It would be taken for host:path, and stand on the command line of ssh.
            if bare_login_end(url).is_some() {
                return refuse(
                    "it looks like user:password@host without https:// in front (for host:path with an at sign, write \
                     ssh://host/path)",
                );
            }
        }
    }
    Ok(())
}

/// A URL as git gets it. Arguments can be read by every user of the machine, so a password is taken out and
/// goes another way.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) url: String,
    pub(crate) login: Option<Login>,
}

/// What stood in front of the host. Whoever derives `Debug` for this prints a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    /// A name, or a token in its place.
    pub(crate) user: String,
    pub(crate) password: Option<String>,
    /// Scheme, host and port, as git's configuration names a server.
    pub(crate) server: String,
}

impl Remote {
    /// Only http has passwords in its URLs. [`check`] has let the URL through.
    pub(crate) fn new(url: &str) -> Self {
        let as_it_is = || Self { url: url.to_owned(), login: None };
        let Some((scheme, rest)) = url.split_once("://") else { return as_it_is() };
        if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
            return as_it_is();
        }
        let Some((user_info, host)) = authority(rest).rsplit_once('@') else { return as_it_is() };
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

/// What stands before the path of a URL without its scheme.
fn authority(url: &str) -> &str {
    &url[..url.find(['/', '?', '#']).unwrap_or(url.len())]
}

/// Where the user and password in a URL without its scheme end: the place of the `@` behind them.
pub(crate) fn login_end(url: &str) -> Option<usize> {
    let authority = authority(url);
    if let Some(end) = authority.rfind('@') {
        return Some(end);
    }
    // A password with an unescaped slash makes the authority look like a host with a wrong port.
    let (name, port) = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'))?;
    let end = url.rfind('@')?;
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(end);
    }
    // Even with a right one, if what comes first is less like a host than what comes behind the `@`.
    (!looks_like_host(name) && looks_like_host(&url[end + 1..])).then_some(end)
}

/// The same for what has no scheme: `user:password@host/path`, which is neither `user@host:path` nor `host:path`.
pub(crate) fn bare_login_end(url: &str) -> Option<usize> {
    let (user, rest) = url.split_once(':')?;
    if user.contains(['/', '@']) {
        return None;
    }
    let in_first = rest.split('/').next().and_then(|first| first.rfind('@'));
    let anywhere = || rest.rfind('@').filter(|end| looks_like_host(&rest[end + 1..]));
    in_first.or_else(anywhere).map(|end| user.len() + 1 + end)
}

/// Whether a text begins with a host that is not just some word.
fn looks_like_host(text: &str) -> bool {
    let authority = authority(text);
    let host = authority.split(':').next().unwrap_or_default();
    let is_top_level = |label: &str| label.len() > 1 && label.bytes().all(|byte| byte.is_ascii_alphabetic());
    authority.starts_with('[')
        || host.eq_ignore_ascii_case("localhost")
        || host.parse::<std::net::Ipv4Addr>().is_ok()
        || host.rsplit_once('.').is_some_and(|(_, last)| is_top_level(last))
}

/// A text that is one URL, whatever characters it has, without its credentials: user and password (the user of ssh
/// stays, it is no secret), and the values of parameters other than `ref`.
pub fn mask_url(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", mask_one(rest, is_ssh(scheme))),
        None => match bare_login_end(url) {
            Some(end) => format!("***{}", mask_parameters(&url[end..])),
            None => url.to_owned(),
        },
    }
}

/// Replaces credentials in every URL of a text. A URL ends there where a quote or white space is.
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

/// `url` is without its scheme.
fn mask_one(url: &str, is_ssh: bool) -> String {
    match login_end(url) {
        Some(end) if !is_ssh || url[..end].contains(':') => format!("***{}", mask_parameters(&url[end..])),
        _ => mask_parameters(url),
    }
}

/// Of the query and of the fragment.
fn mask_parameters(url: &str) -> String {
    let Some(start) = url.find(['?', '#']) else { return url.to_owned() };
    let (path, mut rest) = url.split_at(start);
    let mut masked = path.to_owned();
    // Each begins with the mark before it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_in_a_url_are_masked_whatever_characters_they_have() {
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
            ("git::https://u:p@h//sub?ref=x", "git::https://***@h//sub?ref=x"),
            ("http://u:pa'ss@host/r", "http://***@host/r"),
            ("http://u:pa\"ss@host/r", "http://***@host/r"),
            ("http://u:pa ss@host/r", "http://***@host/r"),
            ("http://u:pa<s>s`@host/r", "http://***@host/r"),
            ("http://u:1234/rest@127.0.0.1:9/r", "http://***@127.0.0.1:9/r"),
            ("http://u:1234#rest@host.org/r", "http://***@host.org/r"),
            ("http://gitea:3000/@org/repo@v1.2", "http://gitea:3000/@org/repo@v1.2"),
            ("http://git.corp:3000/me@corp.org/x", "http://git.corp:3000/me@corp.org/x"),
            ("user:pw@host/path", "***@host/path"),
            ("user:p/w@host.org/path", "***@host.org/path"),
            ("host:path/repo@v1", "host:path/repo@v1"),
            ("/srv/a:b@c", "/srv/a:b@c"),
            ("https://host/r#token=abc", "https://host/r#token=***"),
            ("https://host/r?ref=v1#token=a'b c", "https://host/r?ref=v1#token=***"),
            ("https://host/r?a=b#readme", "https://host/r?a=***#readme"),
            ("https://host/r?ä=ö&?#", "https://host/r?ä=***&?#"),
            ("://", "://"),
            ("", ""),
        ] {
            assert_eq!(mask_url(text), masked, "{text}");
        }
    }

    #[test]
    fn credentials_are_masked_wherever_a_url_stands_in_a_text() {
        assert_eq!(
            mask_urls("fatal: unable to access 'https://u:p@host/r/': no, https://t@h?a=b too"),
            "fatal: unable to access 'https://***@host/r/': no, https://***@h?a=*** too"
        );
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
            "https://u:pa'ss w\"rd`<@host/it's r",
            "http://gitea:3000/org/repo@v1",
            "host:path/repo@v1",
            "/srv/it's r",
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
            "http://u:pa/ss@host/r",
            "http://u:12/ss@host.org/r",
            "ssh://git:pw@host/r",
            "user:pw@host/r",
            "a\0b",
        ] {
            assert!(check(url).is_err(), "{url:?}");
        }
    }
}
