//! The encodings of a secret: every text that would reveal it, as needles to search for.
//!
//! | form | as written by |
//! |---|---|
//! | plain | all programs |
//! | JSON | serde, Go (`\u003c`), Python and .NET (all but ASCII as `\u…`, in either case of hex), PHP (`\/`), and JSON within JSON |
//! | HCL | Terraform: `$${`, `%%{`, with and without the escapes of a quoted text |
//! | shell | `'\''` of sh and bash, `'"'"'` of Python, `"\$"` of `export -p`, `\ ` of `printf %q`, `$'\''` of both |
//! | URL | `encodeURIComponent`, all but the unreserved characters, forms with `+`, Go's user info and path; either case of hex |
//! | base64 | standard and URL-safe, padded or not, at the start, in the middle and at the end of a longer text |
//! | hex | either case |
//! | folded | Terraform: a message that is wrapped between words; each line starts with a ruler |
//!
//! A multi-line secret is masked as a whole and line by line, each in all forms. Whitespace around a secret, such as the
//! newline at the end of a file, is optional.
//!
//! Line breaks in texts are ignored, so needles have none. A needle has at most [`MAX_NEEDLE_BYTES`] bytes. A longer form is
//! split into overlapping needles, which bounds how far ahead a reader has to look; a part of a long secret with that length
//! is masked, too.
//!
//! An automaton needs about twenty times the bytes of its needles, so some forms are left out ([`Effort`]). A secret that is
//! longer than a needle, such as a private key or a token with claims, is masked in the common forms: plain, JSON, URL, and
//! base64 as a whole, and plain, JSON, and URL line by line. Beyond [`MAX_ENCODED_BYTES`] only the plain and the JSON form are
//! masked: a URL does not contain 16 KiB.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

use crate::base::digest::hex;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// How many bytes a reader needs at once to recognize a secret.
pub(super) const MAX_NEEDLE_BYTES: usize = 512;
/// A longer secret is masked in two forms only.
const MAX_ENCODED_BYTES: usize = 16 * 1024;
/// With the least effort, a longer secret is masked only as plain text.
const MAX_LEAST_BYTES: usize = 128;
/// The folded forms of a longer text are not masked.
const MAX_FOLDED_BYTES: usize = 128;
/// The prefix of a line in a folded message, and the columns left for its text if Terraform does not write to a terminal:
/// with `-no-color`, with the colors removed by the reader, and in errors and warnings with colors.
const RULERS: [(&str, usize); 4] =
    [("", 77), ("│ ", 75), ("\u{1b}[31m│\u{1b}[0m \u{1b}[0m", 75), ("\u{1b}[33m│\u{1b}[0m \u{1b}[0m", 75)];
/// A shorter piece of base64 could be a part of any text. A secret of six bytes has seven characters in the middle of a longer
/// text.
const SHORTEST_BASE64: usize = 7;

const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const COMPONENT: &AsciiSet = &UNRESERVED.remove(b'!').remove(b'*').remove(b'\'').remove(b'(').remove(b')');
const FORM: &AsciiSet = &UNRESERVED.remove(b'*').add(b'~');
const USER_INFO: &AsciiSet =
    &UNRESERVED.remove(b'$').remove(b'&').remove(b'+').remove(b',').remove(b';').remove(b'=');
const PATH: &AsciiSet =
    &UNRESERVED.remove(b'$').remove(b'&').remove(b'+').remove(b':').remove(b'=').remove(b'@');

/// How many forms are masked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effort {
    /// Secrets that fit into one needle in all forms, longer ones in the common forms.
    All,
    /// The same without the folded forms, which are many for a sentence.
    Unfolded,
    /// All secrets in the common forms.
    Common,
    /// Short secrets in the common forms, longer ones as plain text, line by line.
    Least,
}

impl Effort {
    /// From the most thorough to the cheapest.
    pub(super) const DOWN: [Self; 4] = [Self::All, Self::Unfolded, Self::Common, Self::Least];
}

/// The needles of several secrets.
#[derive(Debug)]
pub(super) struct Forms {
    minimum: usize,
    effort: Effort,
    needles: BTreeSet<String>,
    bytes: usize,
}

impl Forms {
    /// No needle is shorter than `minimum` bytes.
    pub(super) fn new(minimum: usize, effort: Effort) -> Self {
        Self { minimum: minimum.max(1), effort, needles: BTreeSet::new(), bytes: 0 }
    }

    pub(super) fn needles(&self) -> &BTreeSet<String> {
        &self.needles
    }

    /// The total size of all needles.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn add(&mut self, secret: &str) {
        let trimmed = secret.trim();
        let lines = || trimmed.lines().map(str::trim);
        let several = trimmed.contains('\n');
        match self.effort {
            Effort::Least if trimmed.len() > MAX_LEAST_BYTES => {
                lines().filter(|line| !line.is_empty()).for_each(|line| self.add_needles(line));
            }
            Effort::All | Effort::Unfolded if trimmed.len() <= MAX_NEEDLE_BYTES => {
                self.add_all_forms(secret);
                self.add_all_forms(trimmed);
                lines().filter(|_| several).for_each(|line| self.add_all_forms(line));
            }
            Effort::All | Effort::Unfolded | Effort::Common | Effort::Least => {
                self.add_common_forms(trimmed, true);
                lines().filter(|_| several).for_each(|line| self.add_common_forms(line, false));
            }
        }
    }

    fn is_too_short(&self, text: &str) -> bool {
        text.len() < self.minimum || text.trim().is_empty()
    }

    fn add_all_forms(&mut self, text: &str) {
        if self.is_too_short(text) {
            return;
        }
        let mut forms = vec![text.to_owned(), text.replace('\'', r"'\''"), text.replace('\'', r#"'"'"'"#)];
        let json = json_forms(text);
        for form in [text, &json[0]] {
            forms.push(form.replace("${", "$${").replace("%{", "%%{"));
            if self.effort == Effort::All {
                forms.extend(folded_forms(form));
            }
        }
        let hex = hex(text.as_bytes());
        forms.extend([hex.to_ascii_uppercase(), hex]);
        forms.extend(json);
        forms.extend(shell_forms(text));
        forms.extend(url_forms(text));
        forms.extend(base64_forms(text.as_bytes(), true));
        forms.iter().for_each(|form| self.add_needles(form));
    }

    fn add_common_forms(&mut self, text: &str, base64: bool) {
        if self.is_too_short(text) {
            return;
        }
        let json = json(text, Json::default());
        self.add_needles(text);
        self.add_needles(&json);
        if text.len() > MAX_ENCODED_BYTES {
            return;
        }
        self.add_needles(&self::json(text, Json { html: Html::Go, ..Json::default() }));
        self.add_needles(&self::json(text, Json { ascii: true, ..Json::default() }));
        self.add_needles(&self::json(&json, Json::default()));
        let url = utf8_percent_encode(text, UNRESERVED).to_string();
        self.add_needles(&url.replace("%20", "+"));
        self.add_needles(&url);
        if base64 {
            base64_forms(text.as_bytes(), false).iter().for_each(|form| self.add_needles(form));
        }
    }

    fn add_needles(&mut self, form: &str) {
        let joined = form.replace("\r\n", "").replace('\n', "");
        if joined.len() < self.minimum {
            return;
        }
        for piece in pieces(&joined) {
            if !self.needles.contains(piece) {
                self.bytes += piece.len();
                self.needles.insert(piece.to_owned());
            }
        }
    }
}

/// Splits a long text into overlapping needles, so that together they mask it as one.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut start = Some(0);
    std::iter::from_fn(move || {
        let from = start.take()?;
        if text.len() - from <= MAX_NEEDLE_BYTES {
            // The last one is as long as the others, because the end of a long secret may be a common word.
            let from = from.min(text.ceil_char_boundary(text.len().saturating_sub(MAX_NEEDLE_BYTES)));
            return Some(&text[from..]);
        }
        let end = text.floor_char_boundary(from + MAX_NEEDLE_BYTES);
        start = Some(text.floor_char_boundary(end - 1));
        Some(&text[from..end])
    })
}

/// The JSON encodings of a text; the first has the fewest escapes.
fn json_forms(text: &str) -> Vec<String> {
    let mut forms = Vec::new();
    for upper in [false, true] {
        for ascii in [false, true] {
            for html in [Html::Plain, Html::Go, Html::DotNet] {
                for slash in [false, true] {
                    forms.push(json(text, Json { html, ascii, slash, upper }));
                }
            }
        }
    }
    let nested: Vec<String> = forms[..2].iter().map(|form| json(form, Json::default())).collect();
    forms.extend(nested);
    forms
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Html {
    #[default]
    Plain,
    /// Escapes `<`, `>`, `&`, and the line separators of Unicode as numbers.
    Go,
    /// Also escapes quotes, `+`, and the backtick.
    DotNet,
}

#[derive(Debug, Clone, Copy, Default)]
struct Json {
    html: Html,
    /// Escapes non-ASCII characters as numbers.
    ascii: bool,
    /// Escapes `/` as `\/`.
    slash: bool,
    /// Uses uppercase hex digits.
    upper: bool,
}

fn json(text: &str, how: Json) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        let number = match character {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => how.html != Html::Plain,
            '"' | '\'' | '+' | '`' => how.html == Html::DotNet,
            other => how.ascii && !other.is_ascii(),
        };
        match character {
            _ if number => number_escape(&mut out, character, how.upper),
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '/' if how.slash => out.push_str("\\/"),
            control if control < ' ' => number_escape(&mut out, control, how.upper),
            plain => out.push(plain),
        }
    }
    out
}

fn number_escape(out: &mut String, character: char, upper: bool) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        // Writing to a String cannot fail.
        let _ = if upper { write!(out, "\\u{unit:04X}") } else { write!(out, "\\u{unit:04x}") };
    }
}

/// The ways in which bash quotes a text for reuse as input.
fn shell_forms(text: &str) -> Vec<String> {
    let escaped = |is_special: &dyn Fn(char, Option<char>) -> bool| {
        let mut out = String::with_capacity(text.len() + 8);
        let mut before = None;
        for character in text.chars() {
            if is_special(character, before) {
                out.push('\\');
            }
            out.push(character);
            before = Some(character);
        }
        out
    };
    let special = |character, before| match character {
        '~' => matches!(before, Some('=' | ':')),
        _ => " !\"$&'()*,;<>?[\\]^`{|}".contains(character),
    };
    vec![
        escaped(&|character, _| "\"$\\`".contains(character)),
        escaped(&special),
        dollar_quoted(text, false),
        dollar_quoted(text, true),
    ]
}

/// The text between `$'` and `'` in bash. In a locale without UTF-8, bash escapes non-ASCII characters as numbers.
fn dollar_quoted(text: &str, ascii: bool) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\u{1b}' => out.push_str("\\E"),
            other if other.is_ascii_control() || (ascii && !other.is_ascii()) => {
                for byte in other.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\{byte:03o}");
                }
            }
            other => out.push(other),
        }
    }
    out
}

/// The ways to fold a text of several words: the first line ends after any word, and the next lines are as long as possible.
/// Text that follows may push the last word to a separate line.
fn folded_forms(text: &str) -> Vec<String> {
    if text.len() > MAX_FOLDED_BYTES || text.contains('\n') {
        return Vec::new();
    }
    let mut words: Vec<Range<usize>> = Vec::new();
    for (at, character) in text.char_indices().filter(|(_, character)| !character.is_whitespace()) {
        let end = at + character.len_utf8();
        match words.last_mut() {
            Some(word) if word.end == at => word.end = end,
            _ => words.push(at..end),
        }
    }
    // The words with the whitespace between them.
    let joined = |from: usize, to: usize| &text[words[from].start..words[to - 1].end];
    let mut forms = Vec::new();
    for (ruler, columns) in RULERS {
        let fits = |from: usize, to: usize| joined(from, to).chars().count() <= columns;
        for end in (1..words.len()).take_while(|end| fits(0, *end)) {
            let mut lines = vec![joined(0, end)];
            let mut from = end;
            while from < words.len() {
                let to = (from + 1..=words.len()).rev().find(|to| fits(from, *to)).unwrap_or(from + 1);
                if to == words.len() && to - from > 1 {
                    let separate = [joined(from, to - 1), joined(to - 1, to)];
                    forms.push([lines.as_slice(), &separate].concat().join(ruler));
                }
                lines.push(joined(from, to));
                from = to;
            }
            forms.push(lines.join(ruler));
        }
    }
    forms
}

fn url_forms(text: &str) -> Vec<String> {
    let mut forms = Vec::new();
    for set in [UNRESERVED, COMPONENT, USER_INFO, PATH, FORM] {
        let encoded = utf8_percent_encode(text, set).to_string();
        // A form encodes a space as a plus.
        let encoded = if set == FORM { encoded.replace("%20", "+") } else { encoded };
        forms.extend([lower_percent(&encoded), encoded]);
    }
    forms
}

fn lower_percent(encoded: &str) -> String {
    let mut parts = encoded.split('%');
    let mut lower = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        lower.extend(["%", &digits.to_ascii_lowercase(), rest]);
    }
    lower
}

/// The characters of base64 that depend only on the secret, at any position in the encoded text. With `all`, also those at
/// the end of an encoded text.
fn base64_forms(secret: &[u8], all: bool) -> Vec<String> {
    let mut forms = Vec::new();
    for before in 0..3 {
        let bytes = [&[0; 2][..before], secret].concat();
        let first = (before * 8).div_ceil(6);
        // The last character may contain bits of the text that follows.
        let last = bytes.len() * 8 / 6;
        for (bare, padded) in [(STANDARD_NO_PAD, STANDARD), (URL_SAFE_NO_PAD, URL_SAFE)] {
            let encoded = bare.encode(&bytes);
            forms.push(encoded[first.min(last)..last].to_owned());
            if all || before == 0 {
                forms.push(encoded[first..].to_owned());
                forms.push(padded.encode(&bytes)[first..].to_owned());
            }
        }
    }
    forms.retain(|form| form.len() >= SHORTEST_BASE64);
    forms
}
