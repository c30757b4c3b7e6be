//! Semantic version ranges over tags.
//!
//! ```text
//! range  = prefix core suffix
//! core   = N ".*" | N "." N ".*" | N "." N "." N
//! ```
//! The core is the numbers at the end; a dot in front of them belongs to the prefix (`release.1.*` matches `release.1.4.2`).
//! Prefix and suffix are literal text: `v1.*` matches `v1.4.2` but not `1.4.2`, `ui-v1.*` matches `ui-v1.4.2`. The text
//! after the version must equal the suffix, so a range matches a pre-release (`1.5.0-rc.1`) only if it spells it out
//! (`1.*-rc.1`). Numbers compare as numbers and have no leading zeros.

use crate::base::git_url::GitUrl;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error(
        "{0:?} is not a semantic version range: write 1.*, 1.4.* or 1.4.2, with a prefix such as v or ui-v if the tags have one"
    )]
    Unreadable(String),
    #[error("{url} has no tag in the range {range:?}{hint}")]
    NoMatch { range: String, url: String, hint: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    text: String,
    prefix: String,
    major: u64,
    minor: Option<u64>,
    patch: Option<u64>,
    suffix: String,
}

type Version = (u64, u64, u64);

impl Range {
    pub fn parse(text: &str) -> Result<Self, RangeError> {
        let text = text.trim();
        let unreadable = || RangeError::Unreadable(text.to_owned());
        let (head, wildcard, suffix) = match text.split_once(".*") {
            Some((head, suffix)) => (head, true, suffix),
            None => split_exact(text).map(|(head, suffix)| (head, false, suffix)).ok_or_else(unreadable)?,
        };
        let start = head
            .rfind(|char: char| !char.is_ascii_digit() && char != '.')
            .map_or(0, |at| at + head[at..].chars().next().map_or(1, char::len_utf8));
        let (prefix, core) = head.split_at(start + dots_in_front(&head[start..], start));
        let numbers: Vec<u64> = core.split('.').map(number).collect::<Option<_>>().ok_or_else(unreadable)?;
        let (major, minor, patch) = match (numbers.as_slice(), wildcard) {
            (&[major], true) => (major, None, None),
            (&[major, minor], true) => (major, Some(minor), None),
            (&[major, minor, patch], false) => (major, Some(minor), Some(patch)),
            _ => return Err(unreadable()),
        };
        // A suffix that starts with a digit or a dot would look like a part of the version.
        let is_versionish = |char: char| char.is_ascii_digit() || char == '.';
        if prefix.contains('*') || suffix.contains('*') || suffix.starts_with(is_versionish) {
            return Err(unreadable());
        }
        let (text, prefix, suffix) = (text.to_owned(), prefix.to_owned(), suffix.to_owned());
        Ok(Self { text, prefix, major, minor, patch, suffix })
    }

    fn version_of(&self, tag: &str) -> Option<Version> {
        let core = tag.strip_prefix(self.prefix.as_str())?.strip_suffix(self.suffix.as_str())?;
        let mut numbers = core.split('.').map(number);
        let version = (numbers.next()??, numbers.next()??, numbers.next()??);
        let fits = numbers.next().is_none()
            && version.0 == self.major
            && self.minor.is_none_or(|minor| version.1 == minor)
            && self.patch.is_none_or(|patch| version.2 == patch);
        fits.then_some(version)
    }

    /// The highest `(tag, commit)` in the range.
    pub fn highest<'a>(&self, tags: &'a [(String, String)]) -> Option<(&'a str, &'a str)> {
        tags.iter()
            .filter_map(|(tag, commit)| Some((self.version_of(tag)?, tag.as_str(), commit.as_str())))
            .max_by_key(|(version, ..)| *version)
            .map(|(_, tag, commit)| (tag, commit))
    }

    /// The error for a list without a match, with a hint if only the prefix `v` is missing or superfluous.
    pub(super) fn no_match(&self, tags: &[(String, String)], url: &GitUrl) -> RangeError {
        let prefix = match self.prefix.strip_suffix('v') {
            Some(without) => without.to_owned(),
            None => format!("{}v", self.prefix),
        };
        let text = format!("{prefix}{}", &self.text[self.prefix.len()..]);
        let other = Self { text, prefix, ..self.clone() };
        let hint = match other.highest(tags) {
            Some((tag, _)) => format!("; did you mean {:?}, which matches {tag}?", other.text),
            None => format!("; it has {} tags", tags.len()),
        };
        RangeError::NoMatch { range: self.text.clone(), url: url.to_string(), hint }
    }
}

/// Splits after the first `N.N.N`.
fn split_exact(text: &str) -> Option<(&str, &str)> {
    let versionish = |char: char| char.is_ascii_digit() || char == '.';
    let mut at = 0;
    while let Some(found) = text[at..].find(versionish) {
        let run = at + found;
        let start = run + dots_in_front(&text[run..], run);
        let end = text[start..].find(|char| !versionish(char)).map_or(text.len(), |length| start + length);
        if text[start..end].split('.').map(number).collect::<Option<Vec<_>>>().is_some_and(|it| it.len() == 3)
        {
            return Some(text.split_at(end));
        }
        at = end;
    }
    None
}

/// How many dots at the start of `rest`, which is at `position` of the text, belong to the prefix.
fn dots_in_front(rest: &str, position: usize) -> usize {
    if position == 0 { 0 } else { rest.len() - rest.trim_start_matches('.').len() }
}

fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGS: &[&str] = &[
        "0.9.0",
        "1.0.0",
        "1.4.2",
        "1.4.10",
        "1.5.0-rc.1",
        "1.5.0-rc.2",
        "2.0.0",
        "10.0.0",
        "1.04.99",
        "1.9",
        "1.9.9.9",
        "1.9.9+build",
        "v1.2.3",
        "v1.10.0",
        "v2.0.0-beta",
        "ui-v1.3.0",
        "ui-v1.20.0",
        "app2-1.1.0",
        "1.3.0-lts",
        "1.4.1-lts",
        "latest",
        "release.1.4.2",
        "release.1.10.0",
        "v.2.0.0-rc.1",
        "1.99999999999999999999.0",
    ];

    fn highest(range: &str) -> Option<String> {
        let tags: Vec<_> = TAGS.iter().map(|tag| (tag.to_string(), format!("commit of {tag}"))).collect();
        Range::parse(range).unwrap().highest(&tags).map(|(tag, _)| tag.to_owned())
    }

    #[test]
    fn the_highest_matching_tag_is_chosen() {
        for (range, tag) in [
            ("1.*", Some("1.4.10")),
            ("1.4.*", Some("1.4.10")),
            ("1.4.2", Some("1.4.2")),
            ("1.5.*", None),
            ("2.*", Some("2.0.0")),
            ("10.*", Some("10.0.0")),
            ("0.*", Some("0.9.0")),
            ("3.*", None),
            ("v1.*", Some("v1.10.0")),
            ("v1.2.*", Some("v1.2.3")),
            ("v1.2.3", Some("v1.2.3")),
            ("v2.*", None),
            ("v2.0.0-beta", Some("v2.0.0-beta")),
            ("1.5.0-rc.2", Some("1.5.0-rc.2")),
            ("1.*-rc.1", Some("1.5.0-rc.1")),
            ("1.*-lts", Some("1.4.1-lts")),
            ("ui-v1.*", Some("ui-v1.20.0")),
            ("app2-1.*", Some("app2-1.1.0")),
            ("release.1.*", Some("release.1.10.0")),
            ("release.1.4.*", Some("release.1.4.2")),
            ("release.1.4.2", Some("release.1.4.2")),
            ("v.2.0.0-rc.1", Some("v.2.0.0-rc.1")),
            (" 1.* ", Some("1.4.10")),
        ] {
            assert_eq!(highest(range).as_deref(), tag, "{range}");
        }
    }

    #[test]
    fn invalid_ranges_are_refused_with_an_example() {
        for text in [
            "",
            "*",
            "main",
            "1",
            "1.2",
            "v1",
            "1.*.*",
            "1.2.3.*",
            "1.2.3.4",
            ">=1.0",
            "01.*",
            "1.*5",
            "1.*.2",
            ".*",
            "é.*",
            ".1.*",
            ".1.2.3",
            "release.*",
            "release.1.2",
        ] {
            let error = Range::parse(text).unwrap_err();
            assert!(error.to_string().contains("1.4.*"), "{text}: {error}");
        }
    }

    #[test]
    fn the_error_suggests_a_missing_v() {
        let tags = vec![("v1.2.3".to_owned(), "c".to_owned())];
        let error = Range::parse("1.*")
            .unwrap()
            .no_match(&tags, &GitUrl::parse("https://host/repo").unwrap())
            .to_string();
        assert!(error.contains("v1.2.3") && error.contains("\"v1.*\""), "{error}");
    }
}
