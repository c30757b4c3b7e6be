//! Which module a source is, unless the command line says so: two jobs share a working copy and a local state only if they
//! are about the same directory of the same source.
//!
//! The name of the repository and the directory below it are there to be read; what tells sources apart is the hash behind each. It
//! is in both names, so that one of them can be given by hand and the other still differs.

use std::path::{Component, Path};

use sha2::{Digest, Sha256};
use url::Url;

/// All sources are in this stack.
const STACK: &str = "local";

/// The module at the root of its source.
const ROOT: &str = "root";

/// Longer names say no more, and a folder's name has an end.
const LONGEST: usize = 40;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) stack: String,
    pub(super) namespace: String,
    pub(super) module: String,
}

/// The names of the module in `subdirectory` of the source: the same for every job and revision of it.
pub(super) fn derived(source: &str, registry: bool, subdirectory: Option<&str>) -> Names {
    let source = if registry { Same::registry(source) } else { Same::git(source) };
    // `./a//b/` is the directory `a/b`.
    let below: Vec<_> = Path::new(subdirectory.unwrap_or_default())
        .components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| part.as_os_str().to_string_lossy())
        .collect();
    let below = below.join("/");
    Names {
        stack: STACK.to_owned(),
        namespace: named(&source.name, "source", &[&source.identity]),
        module: named(&below, ROOT, &[&source.identity, &below]),
    }
}

/// A source as far as it is the same one in several spellings.
struct Same {
    identity: String,
    name: String,
}

impl Same {
    fn registry(address: &str) -> Self {
        Self { identity: format!("registry {address}"), name: address.to_owned() }
    }

    fn git(url: &str) -> Self {
        let last = |path: &str| path.rsplit(['/', ':']).next().unwrap_or_default().to_owned();
        let trimmed = |text: &str| {
            let text = text.trim_end_matches('/');
            text.strip_suffix(".git").unwrap_or(text).to_owned()
        };
        match Url::parse(url) {
            Ok(mut parsed) if parsed.has_host() => {
                // A token in the URL may be another one tomorrow, and is nobody's business in a name.
                let _ = parsed.set_username("");
                let _ = parsed.set_password(None);
                let path = trimmed(parsed.path());
                parsed.set_path(&path);
                Self { name: last(&path), identity: parsed.into() }
            }
            // Of two directories `a` and `a.git` both may exist.
            _ if url.starts_with('/') || url.starts_with("file:") => {
                let identity = url.trim_end_matches('/').to_owned();
                Self { name: last(&trimmed(&identity)), identity }
            }
            // `git@host:a/b.git`
            _ => Self { name: last(&trimmed(url)), identity: trimmed(url) },
        }
    }
}

/// A name that is legal whatever it is made of: readable in front, unmistakable behind.
fn named(readable: &str, otherwise: &str, identity: &[&str]) -> String {
    let kept = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let text: String = readable.chars().map(|letter| if kept(letter) { letter } else { '-' }).collect();
    let text: String = text.trim_matches(['-', '.']).chars().take(LONGEST).collect();
    let mut hash = Sha256::new();
    for part in identity {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let hash: String = hash.finalize()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", if text.is_empty() { otherwise } else { &text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(url: &str, below: &str) -> Names {
        derived(url, false, Some(below).filter(|below| !below.is_empty()))
    }

    #[test]
    fn sources_are_told_apart_also_when_their_last_folder_has_the_same_name() {
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
            derived("a/infra/aws", true, None),
        ];
        for (index, one) in all.iter().enumerate() {
            for other in &all[..index] {
                // Each by itself too, for a job that is given a namespace and no module.
                assert_ne!(one.module, other.module);
            }
        }
        assert_ne!(all[0].namespace, all[1].namespace, "for a job that is given a module and no namespace");
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
    fn whatever_a_source_is_called_its_names_are_legal_and_show_no_login() {
        for url in ["/", "/.git", "/a/..", "https://example.org", "/a/ü ñ\n", &"/x".repeat(999), "x:"] {
            for below in ["", "..", "/", "a/\u{7}", &"long/".repeat(999)] {
                let Names { stack, namespace, module } = git(url, below);
                for name in [stack, namespace, module] {
                    crate::workspace::check_file_name("name", &name).unwrap();
                    assert!(name.len() <= 60 && !name.starts_with('.'), "{name}");
                }
            }
        }
        let shown = format!("{:?}", git("https://me:hush@example.org/a.git?key=hush", ""));
        assert!(shown.contains("a-") && !shown.contains("hush"), "{shown}");
    }
}
