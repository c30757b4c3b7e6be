//! The disguises of a secret: every text that would give it away, as needles to look for.
//!
//! | form | as written by |
//! |---|---|
//! | plain | everybody |
//! | JSON | serde, Go (`\u003c`), Python and .NET (all but ASCII as `\u…`, in either case of hex), PHP (`\/`), and JSON within JSON |
//! | HCL | Terraform: `$${`, `%%{`, with and without the escapes of a quoted text |
//! | shell | `'\''` of sh and bash, `'"'"'` of Python, `"\$"` of `export -p`, `\ ` of `printf %q`, `$'\''` of both |
//! | URL | `encodeURIComponent`, all but the unreserved characters, forms with `+`, Go's user info and path; either case of hex |
//! | base64 | standard and URL-safe, padded or not, at the start, in the middle and at the end of a longer text |
//! | hex | either case |
//! | folded | Terraform: the words of a message go on in the next line, behind a ruler |
//!
//! A secret of several lines is looked for as a whole and line by line, each in all forms. White space around a secret,
//! such as the newline at the end of a file, does not have to be there.
//!
//! Texts are looked at without their line breaks, so no needle has one. A needle is at most [`LONGEST_NEEDLE`] bytes
//! long: a longer form becomes several that overlap, which bounds how far ahead a reader has to look. (A part of a
//! long secret that is as long as that is masked too, then.)
//!
//! An automaton takes some twenty times the bytes of its needles, so not every form of everything is looked for
//! ([`Effort`]). A secret that is longer than a needle, such as a private key or a token with claims, is looked for in the
//! common forms only: plain, JSON, URL and base64 as a whole, and plain, JSON and URL line by line. Of one beyond
//! [`LONGEST_DISGUISED`] the plain and the JSON form are left: nobody writes 16 KiB into a URL.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The most that a reader has to have in sight at once to know a secret.
pub(super) const LONGEST_NEEDLE: usize = 512;
/// A longer secret is looked for in two forms only.
const LONGEST_DISGUISED: usize = 16 * 1024;
/// With the least effort a longer secret is looked for as it is only.
const LONGEST_WITH_LEAST: usize = 128;
/// A longer text is not looked for in the lines that an engine may fold it into.
const LONGEST_FOLDED: usize = 128;
/// What a line of a folded message begins with, and how many columns are left for its text where Terraform does not write to
/// a terminal: with `-no-color`, with its colours left out by whoever reads it, and in errors and warnings with colours.
const RULERS: [(&str, usize); 4] =
    [("", 77), ("│ ", 75), ("\u{1b}[31m│\u{1b}[0m \u{1b}[0m", 75), ("\u{1b}[33m│\u{1b}[0m \u{1b}[0m", 75)];
/// A piece of base64 this short might be a piece of anything. A secret of six bytes makes seven characters in the
/// middle of a longer text.
const SHORTEST_BASE64: usize = 7;

const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
const COMPONENT: &AsciiSet = &UNRESERVED.remove(b'!').remove(b'*').remove(b'\'').remove(b'(').remove(b')');
const FORM: &AsciiSet = &UNRESERVED.remove(b'*').add(b'~');
const USER_INFO: &AsciiSet =
    &UNRESERVED.remove(b'$').remove(b'&').remove(b'+').remove(b',').remove(b';').remove(b'=');
const PATH: &AsciiSet =
    &UNRESERVED.remove(b'$').remove(b'&').remove(b'+').remove(b':').remove(b'=').remove(b'@');

/// How much is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effort {
    /// A secret that fits into one needle in all its forms, a longer one in the common forms.
    All,
    /// The same, but not folded: there are many ways to fold a sentence.
    Unfolded,
    /// Every secret in the common forms.
    Common,
    /// Short secrets in the common forms, longer ones as they are, line by line.
    Least,
}

impl Effort {
    /// From the one that finds most to the one that takes least.
    pub(super) const DOWN: [Self; 4] = [Self::All, Self::Unfolded, Self::Common, Self::Least];
}

/// Needles of any number of secrets.
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

    /// How many bytes all needles have together.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn add(&mut self, secret: &str) {
        let trimmed = secret.trim();
        let lines = || trimmed.lines().map(str::trim);
        let several = trimmed.contains('\n');
        match self.effort {
            Effort::Least if trimmed.len() > LONGEST_WITH_LEAST => {
                lines().filter(|line| !line.is_empty()).for_each(|line| self.keep(line, 0));
            }
            Effort::All | Effort::Unfolded if trimmed.len() <= LONGEST_NEEDLE => {
                self.disguise(secret);
                self.disguise(trimmed);
                lines().filter(|_| several).for_each(|line| self.disguise(line));
            }
            Effort::All | Effort::Unfolded | Effort::Common | Effort::Least => {
                self.disguise_commonly(trimmed, true);
                lines().filter(|_| several).for_each(|line| self.disguise_commonly(line, false));
            }
        }
    }

    fn is_too_short(&self, text: &str) -> bool {
        text.len() < self.minimum || text.trim().is_empty()
    }

    fn disguise(&mut self, text: &str) {
        if self.is_too_short(text) {
            return;
        }
        self.keep(text, 0);
        let json = json_forms(text);
        json.iter().for_each(|form| self.keep(form, 0));
        for form in [text, &json[0]] {
            self.keep(&form.replace("${", "$${").replace("%{", "%%{"), 0);
        }
        self.keep(&text.replace('\'', r"'\''"), 0);
        self.keep(&text.replace('\'', r#"'"'"'"#), 0);
        shell_forms(text).iter().for_each(|form| self.keep(form, 0));
        if self.effort == Effort::All {
            for form in [text, &json[0]] {
                folded_forms(form).iter().for_each(|form| self.keep(form, 0));
            }
        }
        for form in url_forms(text) {
            self.keep(&form, 0);
        }
        for form in base64_forms(text.as_bytes()) {
            self.keep(&form, SHORTEST_BASE64);
        }
        let hex = text.bytes().fold(String::new(), |mut hex, byte| {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        self.keep(&hex.to_ascii_uppercase(), 0);
        self.keep(&hex, 0);
    }

    fn disguise_commonly(&mut self, text: &str, base64: bool) {
        if self.is_too_short(text) {
            return;
        }
        let json = json(text, Json::default());
        self.keep(text, 0);
        self.keep(&json, 0);
        if text.len() > LONGEST_DISGUISED {
            return;
        }
        self.keep(&self::json(text, Json { html: Html::Go, ..Json::default() }), 0);
        self.keep(&self::json(text, Json { ascii: true, ..Json::default() }), 0);
        self.keep(&self::json(&json, Json::default()), 0);
        let url = utf8_percent_encode(text, UNRESERVED).to_string();
        self.keep(&url.replace("%20", "+"), 0);
        self.keep(&url, 0);
        if base64 {
            for form in common_base64_forms(text.as_bytes()) {
                self.keep(&form, SHORTEST_BASE64);
            }
        }
    }

    fn keep(&mut self, form: &str, shortest: usize) {
        let joined = form.replace("\r\n", "").replace('\n', "");
        if joined.len() < self.minimum.max(shortest) {
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

/// Cuts a long text into needles that overlap, so that together they mask it as one.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut start = Some(0);
    std::iter::from_fn(move || {
        let from = start.take()?;
        if text.len() - from <= LONGEST_NEEDLE {
            // The last is as long as the others: the end of a long secret may be a common word.
            let from = from.min(text.ceil_char_boundary(text.len().saturating_sub(LONGEST_NEEDLE)));
            return Some(&text[from..]);
        }
        let end = text.floor_char_boundary(from + LONGEST_NEEDLE);
        start = Some(text.floor_char_boundary(end - 1));
        Some(&text[from..end])
    })
}

/// How a text may stand in JSON; the first is the plainest.
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
    /// `<`, `>` and `&` are written as numbers, and so are the line separators of Unicode.
    Go,
    /// Quotes, `+` and the back-tick too.
    DotNet,
}

#[derive(Debug, Clone, Copy, Default)]
struct Json {
    html: Html,
    /// What is not ASCII is written as numbers.
    ascii: bool,
    /// `/` is written as `\/`.
    slash: bool,
    /// Hex digits are capitals.
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

/// How bash writes a text that it is to read again.
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

/// What bash writes between `$'` and `'`. In a locale without UTF-8 it writes all that is not ASCII as numbers.
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

/// How a text of several words may be folded at their ends: the first line ends behind any of them, and those after it as
/// late as they can. What stands behind the text may take its last word along into a line of its own.
fn folded_forms(text: &str) -> Vec<String> {
    if text.len() > LONGEST_FOLDED || text.contains('\n') {
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
    // As they stand, with what is between them.
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
                    let alone = [joined(from, to - 1), joined(to - 1, to)];
                    forms.push([lines.as_slice(), &alone].concat().join(ruler));
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
    let mut forms: Vec<String> = [UNRESERVED, COMPONENT, USER_INFO, PATH, FORM]
        .map(|set| utf8_percent_encode(text, set).to_string())
        .into();
    // FORM is the last; a space becomes a plus there.
    if let Some(form) = forms.last_mut() {
        *form = form.replace("%20", "+");
    }
    let lower: Vec<String> = forms.iter().map(|form| lower_percent(form)).collect();
    forms.extend(lower);
    forms
}

fn lower_percent(encoded: &str) -> String {
    let mut digits = 0;
    encoded
        .chars()
        .map(|character| {
            if character == '%' {
                digits = 2;
                return character;
            }
            let digit = digits > 0;
            digits -= i32::from(digit);
            if digit { character.to_ascii_lowercase() } else { character }
        })
        .collect()
}

/// What of base64 depends on the secret alone, wherever in the encoded text it stands.
fn base64_forms(secret: &[u8]) -> Vec<String> {
    let mut forms = Vec::new();
    for before in 0..3 {
        let mut bytes = vec![0; before];
        bytes.extend_from_slice(secret);
        let first = (before * 8).div_ceil(6);
        // The last character before something else holds bits of that, too.
        let last = bytes.len() * 8 / 6;
        for (bare, padded) in [(STANDARD_NO_PAD, STANDARD), (URL_SAFE_NO_PAD, URL_SAFE)] {
            let encoded = bare.encode(&bytes);
            forms.push(encoded[first.min(last)..last].to_owned());
            forms.push(encoded[first..].to_owned());
            forms.push(padded.encode(&bytes)[first..].to_owned());
        }
    }
    forms
}

/// The same without what one or two characters at the end may be.
fn common_base64_forms(secret: &[u8]) -> Vec<String> {
    let mut forms = vec![STANDARD.encode(secret), URL_SAFE_NO_PAD.encode(secret)];
    for before in 0..3 {
        let mut bytes = vec![0; before];
        bytes.extend_from_slice(secret);
        let first = (before * 8).div_ceil(6);
        let last = bytes.len() * 8 / 6;
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            forms.push(engine.encode(&bytes)[first.min(last)..last].to_owned());
        }
    }
    forms
}
