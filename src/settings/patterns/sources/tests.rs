//! Two tables: URLs that a list of sources allows, and URLs that must not get around it.

use super::*;

fn rule(patterns: &[&str]) -> SourceRule {
    SourceRule::new(Some(patterns.iter().map(|pattern| pattern.parse().unwrap()).collect()))
}

fn allows(patterns: &[&str], url: &str) -> bool {
    rule(patterns).check(url).is_ok()
}

#[test]
fn an_allowed_source_is_allowed_in_every_spelling() {
    let list = [
        "https://github.com/my-org/*",
        "ssh://github.com/my-org/*",
        "ssh://git@host.example:2222/*",
        "https://*.example.com/infra",
        "https://host:8443/x.git",
        "https://[::1]/*",
        "file:///srv/git/*",
        "https://enc.example/a%20b/*",
        "https://middle.example/*/infra",
    ];
    for url in [
        "https://github.com/my-org/x",
        "https://github.com/my-org/x.git",
        "https://github.com/my-org/x.git/",
        "https://github.com/my-org/deep/er",
        "https://github.com:443/my-org/x",
        "https://github.com:/my-org/x",
        "https://github.com:0443/my-org/x",
        "HTTPS://GitHub.COM/my-org/x",
        "https://github.com./my-org/x",
        "https://user:p%40ss@github.com/my-org/x",
        "https://token@github.com/my-org/x",
        "https://github.com//my-org//x",
        "https://github.com/%6dy-org/x",
        "  https://github.com/my-org/x\n",
        "git@github.com:my-org/x",
        "git@github.com:my-org/x.git",
        "git@github.com:/my-org/x",
        "someone@GITHUB.com:my-org/x",
        "github.com:my-org/x",
        "ssh://git@github.com/my-org/x",
        "ssh://github.com:22/my-org/x.git",
        "ssh://git@host.example:2222/anything",
        "https://a.example.com/infra",
        "https://a.b.example.com/infra.git",
        "https://host:8443/x",
        "https://[::1]/x",
        "https://[::1]:443/x",
        "/srv/git/x.git",
        "file:///srv/git/x",
        "FILE:///srv//git/x/",
        "https://enc.example/a b/x",
        "https://enc.example/a%20b/x",
        "https://middle.example/any/thing/infra",
    ] {
        assert!(allows(&list, url), "{url:?} is refused");
    }
}

#[test]
fn no_spelling_gets_around_the_list_of_sources() {
    let list = [
        "https://github.com/my-org/*",
        "ssh://git@host.example/my-org/*",
        "https://*.example.com/infra",
        "file:///srv/git/*",
        "git://old.example/x",
    ];
    for url in [
        // Plainly a different repository.
        "https://github.com/other/x",
        "https://github.com/my-org",
        "https://github.com/my-org/",
        "https://github.com/my-organisation/x",
        "https://github.com/My-Org/x",
        "https://gitlab.com/my-org/x",
        "",
        "/",
        // A different scheme or port.
        "http://github.com/my-org/x",
        "ssh://github.com/my-org/x",
        "git@github.com:my-org/x",
        "git://github.com/my-org/x",
        "https://github.com:8443/my-org/x",
        "https://github.com:80/my-org/x",
        "https://github.com:+443/my-org/x",
        "https://github.com:443:443/my-org/x",
        "git://old.example:443/x",
        // Ways out of the folder.
        "https://github.com/my-org/../other/x",
        "https://github.com/my-org/./../other/x",
        "https://github.com/my-org/%2e%2e/other/x",
        "https://github.com/my-org/.%2E/other/x",
        "https://github.com/my-org/..%2fother/x",
        "https://github.com/my-org/%252e%252e/other/x",
        "https://github.com/my-org/x%2f..%2f..%2fother",
        "https://github.com/my-org/..\\other/x",
        "https://github.com/my-org/..%5cother/x",
        "https://github.com/my-org/x%00",
        "https://github.com/my-org/%ff",
        "/srv/git/../secret",
        "file:///srv/git/%2e%2e/secret",
        // A different host that looks similar.
        "https://github.com@evil.example/my-org/x",
        "https://github.com:pw@evil.example/my-org/x",
        "https://evil.example@github.com@evil.example/my-org/x",
        "https://evil.example%40github.com/my-org/x",
        "https://github.com%2f@evil.example/my-org/x",
        "https://github.com%00.evil.example/my-org/x",
        "https://github.com.evil.example/my-org/x",
        "https://github.com\\@evil.example/my-org/x",
        "https://evil.example\\github.com/my-org/x",
        "https://evil.example/https://github.com/my-org/x",
        "https://evil.example#@github.com/my-org/x",
        "https://evil.example?@github.com/my-org/x",
        "https://evil.example;github.com/my-org/x",
        "https://gith\u{fc}b.com/my-org/x",
        "https://\u{ff47}ithub.com/my-org/x",
        "https:///github.com/my-org/x",
        "https:/github.com/my-org/x",
        "https:github.com/my-org/x",
        "https://github.com\t/my-org/x",
        // A server could answer these with a redirect.
        "https://github.com/my-org/x?to=https://evil.example/",
        "https://github.com/my-org/x#y",
        // A star in a host stays in the host.
        "https://evil.net/a.example.com/infra",
        "https://evil.net/.example.com/infra",
        "https://evil.net?.example.com/infra",
        "https://evil.net@b/a.example.com/infra",
        "https://example.com/infra",
        "https://aexample.com/infra",
        "https://a.example.com/infra/more",
        // git decodes these before it looks for the host.
        "ssh://git@host.example%40evil.example/my-org/x",
        "ssh://git%40evil.example%2f@host.example/my-org/x",
        "ssh://other@host.example/my-org/x",
        "ssh://host.example/my-org/x",
        "root@host.example:my-org/x",
        "git@host.example:my-org/../x",
        "git@[host.example]:my-org/x",
        "git@evil.example:git@host.example:my-org/x",
        "git@host.example@evil.example:my-org/x",
        // Files.
        "file://evil.example/srv/git/x",
        "file://localhost/srv/git/x",
        "/srv/gitx/x",
        "srv/git/x",
        "./srv/git/x",
        // git cannot or may not fetch from these.
        "ext::sh -c date",
        "git::https://github.com/my-org/x",
        "ftp://github.com/my-org/x",
        "-https://github.com/my-org/x",
    ] {
        let refusal = rule(&list).check(url);
        assert_eq!(refusal.map_err(|it| it.rule), Err("Policy.AllowedSources"), "{url:?} is allowed");
    }
}

#[test]
fn no_list_allows_every_source_and_an_empty_list_none() {
    assert!(SourceRule::new(None).check("ext::sh").is_ok(), "git's URL checks are elsewhere");
    assert!(!allows(&[], "https://github.com/my-org/x"));
}

#[test]
fn a_refusal_names_the_rule_and_the_value_without_its_password() {
    let refusal = rule(&[]).check("https://u:hunter2@h/x?k=hunter2");
    let refusal = refusal.unwrap_err();
    let text = refusal.to_string();
    assert!(text.contains("Policy.AllowedSources") && text.contains("https://***@h/x"), "{text}");
    assert!(!text.contains("hunter2") && !refusal.what.contains("hunter2"), "{text}");
}

#[test]
fn invalid_patterns_are_refused_with_the_reason() {
    for (pattern, reason) in [
        ("github.com/my-org/*", "has no scheme"),
        ("git@github.com:my-org/*", "has no scheme"),
        ("/srv/git/*", "has no scheme"),
        ("*", "has no scheme"),
        ("https://u:p@github.com/*", "contains a user"),
        ("https://u@github.com/*", "contains a user"),
        ("https://github.com", "has no path"),
        ("https://github.com/", "has no path"),
        ("s3://bucket/*", "scheme"),
        ("*://github.com/*", "scheme"),
        ("ssh://git:pw@github.com/*", "password"),
        ("https://github.com/../x", ".."),
        ("https://github.com:*/x", "port"),
        ("https://h/x?y", "query"),
        ("https://h/a%2fb", "encoded slash"),
    ] {
        let error = pattern.parse::<SourcePattern>().unwrap_err();
        assert!(error.contains(reason), "{pattern}: {error}");
    }
}
