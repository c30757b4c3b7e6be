use super::*;

#[test]
fn credentials_in_a_url_are_masked_with_any_characters() {
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
fn credentials_are_masked_in_every_url_of_a_text() {
    assert_eq!(
        mask_urls("fatal: unable to access 'https://u:p@host/r/': no, https://t@h?a=b too"),
        "fatal: unable to access 'https://***@host/r/': no, https://***@h?a=*** too"
    );
}

#[test]
fn the_login_of_an_http_url_is_not_in_the_argument() {
    let split = |url| {
        let url = GitUrl::parse(url).unwrap();
        let login = url.login().map(|it| (it.user, it.password.unwrap_or("(none)".into()), it.server));
        (url.argument(), login)
    };
    assert_eq!(
        split("https://u%40x:p%2Fw@host:8443/org/repo.git?a=b@c"),
        (
            "https://host:8443/org/repo.git?a=b@c".into(),
            Some(("u@x".into(), "p/w".into(), "https://host:8443".into()))
        )
    );
    assert_eq!(
        split("https://t%40ken@host/r"),
        ("https://host/r".into(), Some(("t@ken".into(), "(none)".into(), "https://host".into())))
    );
    for url in ["https://host/r", "ssh://git@host/r", "git@host:r", "/srv/a:b@c", "https://h/a:b@c"] {
        assert_eq!(split(url), (url.to_owned(), None));
    }
}

#[test]
fn urls_that_are_options_programs_relative_or_ambiguous_are_refused() {
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
        let parsed = GitUrl::parse(url);
        assert_eq!(parsed.map(|it| it.with_credentials()).as_deref(), Ok(url));
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
        "https:host/r",
        " https://host/r",
        "git@host:a://b",
    ] {
        assert!(GitUrl::parse(url).is_err(), "{url:?}");
    }
}

#[test]
fn a_git_url_is_printed_without_its_credentials() {
    let url = GitUrl::parse("HTTPS://u:hunter2@host/r?token=hunter2").unwrap();
    assert_eq!(format!("{url} {url:?}"), "https://***@host/r?token=*** \"https://***@host/r?token=***\"");
}

#[test]
fn a_login_is_distinguished_from_an_ssh_user() {
    for (address, expected) in [
        ("git::https://me:pw@host/r.git", true),
        ("https://token@host/r", true),
        ("git::ssh://git:pw@host/r", true),
        ("git::ssh://git@host/r", false),
        ("git@github.com:org/r.git", false),
        ("git::https://host/r@x?ref=a@b", false),
        ("./modules/x", false),
    ] {
        assert_eq!(has_login(address), expected, "{address}");
    }
}
