//! The compiled form of a set of secrets.

use std::borrow::Cow;

use aho_corasick::{AhoCorasick, MatchKind};

use super::Rules;

/// Stands for a secret, whatever its length.
pub const MASK: &str = "***";

/// Masks a set of secrets in texts.
#[derive(Debug)]
pub struct Redactor {
    /// None when there is nothing to look for.
    automaton: Option<AhoCorasick>,
    patterns: Vec<regex::Regex>,
}

impl Redactor {
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>, rules: &Rules) -> Self {
        let needles: Vec<&str> =
            secrets.into_iter().filter(|secret| secret.len() >= rules.minimum_length).collect();
        let automaton = if needles.is_empty() {
            None
        } else {
            AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(needles).ok()
        };
        Self { automaton, patterns: rules.patterns.clone() }
    }

    /// The text without the secrets in it.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut masked = Cow::Borrowed(text);
        if let Some(automaton) = &self.automaton
            && automaton.is_match(text)
        {
            let mut out = String::with_capacity(text.len());
            automaton.replace_all_with(text, &mut out, |_, _, out| {
                out.push_str(MASK);
                true
            });
            masked = Cow::Owned(out);
        }
        for pattern in &self.patterns {
            if let Cow::Owned(out) = pattern.replace_all(&masked, regex::NoExpand(MASK)) {
                masked = Cow::Owned(out);
            }
        }
        masked
    }
}
