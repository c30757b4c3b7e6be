//! Patterns as the settings have them: `*` stands for any text, everything else for itself.

use wildmatch::WildMatchPattern;

/// One pattern. NUL stands in no name and no URL, so there is no mark for a single character.
#[derive(Debug, Clone, PartialEq)]
pub struct Wildcard(WildMatchPattern<'*', '\0'>);

impl Wildcard {
    pub fn new(pattern: &str) -> Self {
        Self(WildMatchPattern::new(pattern))
    }

    pub fn in_any_case(pattern: &str) -> Self {
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
        assert!(Wildcard::in_any_case("*TOKEN*").matches("my_token_2"));
    }
}
