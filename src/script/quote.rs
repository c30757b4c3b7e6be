//! Quoting for bash: a value from the server is always exactly one word.

/// Quotes `text` as one word of a bash command line. It must not contain a NUL byte; [`super::Script`] refuses those.
pub fn quote(text: &str) -> String {
    if !text.is_empty() && text.bytes().all(is_plain) && !text.starts_with('=') {
        return text.to_owned();
    }
    // Inside single quotes only the single quote itself is special.
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Bytes that are not special to bash inside a word. A leading `=` is quoted as well.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_./:@%+,-=".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    /// Passes the words through bash.
    fn through_bash(words: &[String]) -> Vec<String> {
        let line: Vec<_> = words.iter().map(|word| quote(word)).collect();
        // The command comes first, as in our scripts, so a word that looks like an assignment stays a word.
        let script = format!("printf '%s\\0' {}", line.join(" "));
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn special_characters_pass_through_bash_unchanged() {
        let words = [
            "",
            " ",
            "'",
            "''",
            "\"",
            "`id`",
            "$HOME",
            "${HOME}",
            "$(id)",
            "a'b\"c`d$e\\f",
            "\\",
            "\\'",
            "!!",
            "new\nline",
            "\ttab",
            "*",
            "?",
            "[a]",
            "~",
            "~root",
            "{a,b}",
            "#no",
            "a;b",
            "a&&b",
            "a|b",
            "<>",
            "é漢🦀",
            "-flag=va lue",
            "A=b",
            "=",
            "\r\n",
            "\u{1b}[0m",
            "plain-Word_1.2/3:4@5%6+7,8",
        ]
        .map(str::to_owned);
        assert_eq!(through_bash(&words), words);
    }

    #[test]
    fn plain_words_stay_readable() {
        assert_eq!(quote("-out=/a/b.c"), "-out=/a/b.c");
        assert_eq!(quote("it's"), r"'it'\''s'");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_passes_through_bash_unchanged(
            words in prop::collection::vec("[^\0]{0,24}", 1..8),
        ) {
            prop_assert_eq!(through_bash(&words), words);
        }
    }
}
