//! Patterns in the settings: `*` matches any text, everything else matches itself.

use wildmatch::WildMatchPattern;

/// One pattern. The wildcard for a single character is NUL, which occurs in no name and no URL.
#[derive(Debug, Clone, PartialEq)]
pub struct Wildcard(WildMatchPattern<'*', '\0'>);

impl Wildcard {
    pub fn new(pattern: &str) -> Self {
        Self(WildMatchPattern::new(pattern))
    }

    pub fn case_insensitive(pattern: &str) -> Self {
        Self(WildMatchPattern::new_case_insensitive(pattern))
    }

    pub fn matches(&self, text: &str) -> bool {
        self.0.matches(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_star_is_special() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("a?c", "abc", false),
            ("a?c", "a?c", true),
            ("https://host/*", "https://host.evil/x", false),
            ("[ab]", "a", false),
            ("A*", "ab", false),
        ] {
            assert_eq!(Wildcard::new(pattern).matches(text), expected, "{pattern} {text}");
        }
        assert!(Wildcard::case_insensitive("*TOKEN*").matches("my_token_2"));
    }
}
