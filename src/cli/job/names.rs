//! Default names of a module: two jobs share a working copy and a local state only if they use the same directory of the
//! same source.
//!
//! Each name has a readable part and a hash that makes it unique. Both names contain a hash, so that one of them can be
//! set on the command line and the other still differs between sources.

use std::path::{Component, Path};

use sha2::{Digest as _, Sha256};

use crate::base::digest::hex;
use crate::base::git_url::{CanonicalUrl, GitUrl};
use crate::local::area::safe_name;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModuleNames {
    pub(super) namespace: String,
    pub(super) module: String,
}

impl ModuleNames {
    /// The names for `subdirectory` of `source`. They are the same for every revision.
    pub(super) fn new(source: &str, registry: bool, subdirectory: Option<&str>) -> Self {
        let identity = if registry { format!("registry {source}") } else { normalized(source) };
        let name = if registry { source } else { last_segment(&identity) };
        // `./a//b/` is the directory `a/b`.
        let directory: Vec<_> = Path::new(subdirectory.unwrap_or_default())
            .components()
            .filter(|part| *part != Component::CurDir)
            .map(|part| part.as_os_str().to_string_lossy())
            .collect();
        let directory = directory.join("/");
        Self {
            namespace: unique_name(name, "source", &identity),
            module: unique_name(&directory, "root", &format!("{identity}\0{directory}")),
        }
    }
}

/// The same text for every spelling of a git URL. Credentials may change, and do not belong in a name.
fn normalized(url: &str) -> String {
    match GitUrl::parse(url).and_then(|url| url.canonical()) {
        // The directories `a` and `a.git` may both exist.
        Ok(CanonicalUrl { scheme: "file", .. }) | Err(_) => url.trim_end_matches('/').to_owned(),
        Ok(CanonicalUrl { scheme, host, port, path, .. }) => format!("{scheme}://{host}:{port}/{path}"),
    }
}

fn last_segment(url: &str) -> &str {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let last = path.rsplit(['/', ':']).next().unwrap_or_default();
    last.strip_suffix(".git").unwrap_or(last)
}

fn unique_name(readable: &str, fallback: &str, identity: &str) -> String {
    format!("{}-{}", safe_name(readable, fallback), hex(&Sha256::digest(identity)[..4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(url: &str, below: &str) -> ModuleNames {
        ModuleNames::new(url, false, Some(below).filter(|below| !below.is_empty()))
    }

    #[test]
    fn sources_with_the_same_last_segment_have_different_names() {
        let all = [
            git("/a/infra", ""),
            git("/b/infra", ""),
            git("/a/infra.git", ""),
            git("/a/infra", "net"),
            git("/a/infra", "a/net"),
            git("/a/infra", "a-net"),
            git("/a/infra", "root"),
            git("https://example.org/a/infra", ""),
            git("https://example.org/b/infra", ""),
            git("git@example.org:a/infra", ""),
            ModuleNames::new("a/infra/aws", true, None),
        ];
        for (index, one) in all.iter().enumerate() {
            for other in &all[..index] {
                // The namespace may be set on the command line.
                assert_ne!(one.module, other.module);
            }
        }
        assert_ne!(all[0].namespace, all[1].namespace, "the module may be set on the command line");
        assert!(all[0].namespace.starts_with("infra-") && all[0].module.starts_with("root-"), "{:?}", all[0]);
        assert!(all[4].module.starts_with("a-net-"), "{:?}", all[4]);
    }

    #[test]
    fn the_same_source_has_the_same_names_in_every_spelling() {
        for (one, other) in [
            ("https://example.org/a/b.git", "https://example.org/a/b"),
            ("https://example.org/a/b", "https://EXAMPLE.org/a/b/"),
            ("https://me:old-token@example.org/a/b.git", "https://new-token@example.org/a/b.git"),
            ("git@example.org:a/b.git", "git@example.org:a/b"),
            ("/a/b", "/a/b/"),
        ] {
            assert_eq!(git(one, ""), git(other, ""), "{one} {other}");
        }
        assert_eq!(git("/a", "x/y"), git("/a", "./x//y/"));
        assert_eq!(git("/a", ""), git("/a", "."));
    }

    #[test]
    fn names_are_valid_and_contain_no_credentials() {
        for url in ["/", "/.git", "/a/..", "https://example.org", "/a/ü ñ\n", &"/x".repeat(999), "x:"] {
            for below in ["", "..", "/", "a/\u{7}", &"long/".repeat(999)] {
                let ModuleNames { namespace, module } = git(url, below);
                for name in [namespace, module] {
                    crate::workspace::check_file_name("name", &name).unwrap();
                    assert!(name.len() <= 60 && !name.starts_with('.'), "{name}");
                }
            }
        }
        let shown = format!("{:?}", git("https://me:hush@example.org/a.git?key=hush", ""));
        assert!(shown.contains("a-") && !shown.contains("hush"), "{shown}");
    }
}
