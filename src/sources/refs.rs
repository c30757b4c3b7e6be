//! The output of `git ls-remote`, and which of its refs a revision means.

use std::collections::BTreeMap;

/// One line of the list: a full ref name (`HEAD`, `refs/heads/main`, `refs/tags/v1^{}`) and its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ref {
    pub(super) object: String,
    pub(super) name: String,
}

/// The suffix with which git lists the commit of an annotated tag.
const PEELED: &str = "^{}";

/// A full object id, SHA-1 or SHA-256.
pub fn is_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a text may be an abbreviated commit id. git prints at least seven digits.
pub fn is_abbreviated_commit(text: &str) -> bool {
    (7..64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The rules of `git help check-ref-format`, so that a name is never a pattern, an option or an expression.
pub(super) fn is_valid_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.ends_with(".lock")
            && !part.ends_with('.')
            && !part.contains("..")
            && !part.contains("@{")
    };
    let forbidden = |char: char| char.is_control() || " ~^:?*[\\".contains(char);
    !name.starts_with('-') && name != "@" && !name.contains(forbidden) && name.split('/').all(part)
}

/// The full ref names to ask the server for.
pub(super) fn candidates(revision: &str) -> Vec<String> {
    if revision.is_empty() || revision == "HEAD" {
        return vec!["HEAD".to_owned()];
    }
    let mut names = if revision.starts_with("refs/") {
        vec![revision.to_owned()]
    } else {
        vec![format!("refs/heads/{revision}"), format!("refs/tags/{revision}")]
    };
    let peeled: Vec<String> = names.iter().map(|name| format!("{name}{PEELED}")).collect();
    names.extend(peeled);
    names
}

/// Parses the list. The error is the first malformed line.
pub(super) fn parse(list: &str) -> Result<Vec<Ref>, String> {
    list.lines()
        .map(|line| match line.split_once('\t') {
            Some((object, name)) if is_commit(object) => {
                Ok(Ref { object: object.to_ascii_lowercase(), name: name.to_owned() })
            }
            _ => Err(line.to_owned()),
        })
        .collect()
}

/// The ref that a revision means, and its commit. Servers match names by their end, so a request for `main` may list
/// `feature/main`; here only equal names match.
pub(super) fn choose(refs: &[Ref], revision: &str) -> Option<(String, String)> {
    let object = |name: &str| refs.iter().find(|it| it.name == name).map(|it| it.object.clone());
    candidates(revision).into_iter().filter(|name| !name.ends_with(PEELED)).find_map(|name| {
        let commit = object(&format!("{name}{PEELED}")).or_else(|| object(&name))?;
        Some((name, commit))
    })
}

/// All tags with their commits.
pub(super) fn tags(refs: &[Ref]) -> Vec<(String, String)> {
    let listed = || refs.iter().filter_map(|it| Some((it.name.strip_prefix("refs/tags/")?, &it.object)));
    let mut tags: BTreeMap<&str, &String> = listed().filter(|(name, _)| !name.ends_with(PEELED)).collect();
    tags.extend(listed().filter_map(|(name, object)| Some((name.strip_suffix(PEELED)?, object))));
    tags.into_iter().map(|(name, object)| (name.to_owned(), object.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const C: &str = "cccccccccccccccccccccccccccccccccccccccc";

    fn list(lines: &[(&str, &str)]) -> Vec<Ref> {
        let text: String = lines.iter().map(|(object, name)| format!("{object}\t{name}\n")).collect();
        parse(&text).unwrap()
    }

    fn chosen(lines: &[(&str, &str)], revision: &str) -> Option<String> {
        choose(&list(lines), revision).map(|(_, commit)| commit)
    }

    #[test]
    fn only_the_exact_name_matches() {
        let lines = [(A, "refs/heads/feature/main"), (B, "refs/heads/main"), (C, "refs/remotes/x/main")];
        assert_eq!(chosen(&lines, "main").as_deref(), Some(B));
        assert_eq!(chosen(&lines[..1], "main"), None);
        assert_eq!(chosen(&lines, "feature/main").as_deref(), Some(A));
        assert_eq!(chosen(&lines, "Main"), None);
    }

    #[test]
    fn a_branch_takes_precedence_over_a_tag_and_a_full_name_is_literal() {
        let lines = [(A, "refs/heads/x"), (B, "refs/tags/x"), (C, "refs/pull/1/head")];
        assert_eq!(chosen(&lines, "x").as_deref(), Some(A));
        assert_eq!(chosen(&lines, "refs/tags/x").as_deref(), Some(B));
        assert_eq!(chosen(&lines, "refs/pull/1/head").as_deref(), Some(C));
    }

    #[test]
    fn an_annotated_tag_is_peeled() {
        let lines = [(A, "refs/tags/v1"), (B, "refs/tags/v1^{}"), (C, "refs/tags/v2")];
        assert_eq!(chosen(&lines, "v1").as_deref(), Some(B));
        assert_eq!(tags(&list(&lines)), [("v1".into(), B.into()), ("v2".into(), C.into())]);
    }

    #[test]
    fn empty_means_head() {
        let lines = [(A, "HEAD"), (B, "refs/heads/HEAD"), (C, "refs/heads/main")];
        assert_eq!(chosen(&lines, "").as_deref(), Some(A));
        assert_eq!(chosen(&lines, "HEAD").as_deref(), Some(A));
    }

    #[test]
    fn names_that_git_forbids_are_refused() {
        for name in ["main", "feature/x", "v1.2.3", "a-b_c", "ünï", "x@y", "a.b"] {
            assert!(is_valid_name(name), "{name}");
        }
        for name in [
            "-x",
            "--upload-pack=x",
            "a..b",
            "a b",
            "a\nb",
            "a\0b",
            "a:b",
            "a^{}",
            "a~1",
            "v*",
            "a?",
            "a[b",
            "a\\b",
            "/a",
            "a/",
            "a//b",
            ".a",
            "a/.b",
            "a.lock",
            "a.",
            "@",
            "a@{1}",
        ] {
            assert!(!is_valid_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_malformed_line_is_the_error() {
        assert_eq!(parse("<html>").unwrap_err(), "<html>");
        assert_eq!(parse(&format!("{A} refs/heads/main")).unwrap_err(), format!("{A} refs/heads/main"));
        assert_eq!(parse("").unwrap(), []);
    }
}
