//! One value: from the text that every layer has in common to what its setting holds, by .NET's rules.
//!
//! .NET keeps each value as text and converts it when it is bound, so `5`, `"5"` and `X__Y=5` are the same.
//! So do we: white space around a value does not matter (except in free text), `True` is `true`, and a GUID may
//! come in braces.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use thiserror::Error;
use url::Url;
use uuid::Uuid;

use super::diagnostics::did_you_mean;
use super::schema_tree::ValueKind;
use crate::base::tls::AuthoritiesError;

/// What is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("required, and not set. {how}")]
    Missing { how: String },
    #[error("is empty; give it a value or leave it out")]
    Empty,
    #[error("is not a GUID; write it like 3fa85f64-5717-4562-b3fc-2c963f66afa6")]
    NotGuid,
    #[error("is not a regular expression: {0}")]
    NotRegex(String),
    #[error("is neither true nor false")]
    NotBoolean,
    #[error("is not a whole number from {min} to {max}")]
    NotInteger { min: u64, max: u64 },
    #[error("is none of {}", names.join(", "))]
    NotOneOf { names: Vec<String> },
    #[error("is not a URL ({}); write it like https://snapcd.example.com:20001", not_url(*.0))]
    NotUrl(url::ParseError),
    #[error("is not an http or https URL; write it like https://snapcd.example.com:20001")]
    NotHttp,
    #[error("must be a plain base URL, without credentials, query or fragment")]
    NotBaseUrl,
    #[error("begins with ~, and there is no home directory; write the whole path or set HOME")]
    NoHome,
    #[error("only ~ and ~/… expand to a home directory; write the whole path")]
    OtherHome,
    #[error("holds a null character, which no path can")]
    NullInPath,
    #[error("is a section with keys of its own, not a value or a list; its keys: {}", keys.join(", "))]
    IsSection { keys: Vec<String> },
    #[error("is a list, not one value; {how}")]
    IsList { how: String },
    #[error("maps names to values, it is not a value itself; {how}")]
    IsMap { how: String },
    #[error(
        "is not a rule of Policy and would refuse nothing (`hawser schema` lists the rules){}",
        did_you_mean(nearest.as_deref())
    )]
    NotRule { nearest: Option<String> },
    #[error("is one value, not an object or a list")]
    IsValue,
    #[error("is text that looks like a number, and would lose digits as one; put it in quotes")]
    NotQuoted,
    #[error("list items are numbered from 0: {how}")]
    NotIndex { how: String },
    #[error("is not valid UTF-8")]
    NotUnicode,
    #[error("an option without a value; write --{option}=…")]
    NoValue { option: String },
    #[error("argument {position} is no setting; settings are written --Section:Key=value")]
    StrayArgument { position: usize },
    #[error(transparent)]
    NotAuthorities(AuthoritiesError),
    #[error("cannot read it: {0}")]
    Unreadable(String),
    #[error("is not valid JSON: {0}")]
    NotJson(String),
    #[error("is empty; write {{}} into it, or remove it")]
    NothingInFile,
    #[error("must hold a JSON object")]
    NotObject,
    #[error("is no environment name: it becomes a part of the file name appsettings.{{Environment}}.json")]
    NotEnvironment,
    #[error("{0}")]
    NotPattern(String),
    #[error("was refused: {0}")]
    Refused(String),
}

/// The crate calls a URL without a scheme a relative one.
fn not_url(error: url::ParseError) -> String {
    match error {
        url::ParseError::RelativeUrlWithoutBase => "it does not begin with https:// or http://".to_owned(),
        error => error.to_string(),
    }
}

/// What a path is made absolute with.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathRoots<'a> {
    pub(super) working_dir: &'a Path,
    pub(super) home: Option<&'a Path>,
}

/// The value of a leaf of this kind.
pub(super) fn read(kind: &ValueKind, text: &str, places: PathRoots<'_>) -> Result<Value, Fault> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(Fault::Empty);
    }
    match kind {
        // Only free text keeps its white space: it may be a part of a secret.
        ValueKind::Text => Ok(Value::from(text)),
        ValueKind::Guid => guid(trimmed).map(|guid| Value::from(guid.to_string())).ok_or(Fault::NotGuid),
        ValueKind::Boolean if trimmed.eq_ignore_ascii_case("true") => Ok(Value::from(true)),
        ValueKind::Boolean if trimmed.eq_ignore_ascii_case("false") => Ok(Value::from(false)),
        ValueKind::Boolean => Err(Fault::NotBoolean),
        ValueKind::Integer { min, max } => match trimmed.parse::<u64>() {
            Ok(number) if (*min..=*max).contains(&number) => Ok(Value::from(number)),
            _ => Err(Fault::NotInteger { min: *min, max: *max }),
        },
        ValueKind::OneOf(names) => one_of(names, trimmed)
            .map(|name| Value::from(name.as_str()))
            .ok_or_else(|| Fault::NotOneOf { names: names.clone() }),
        ValueKind::Url => base_url(trimmed).map(|url| Value::from(url.as_str())),
        ValueKind::Path => path(trimmed, places),
        // White space may be what it looks for.
        ValueKind::Regex => match regex::Regex::new(text) {
            Ok(_) => Ok(Value::from(text)),
            Err(error) => Err(Fault::NotRegex(in_short(&error))),
        },
    }
}

/// The crate's message draws the expression over several lines and says what is wrong in the last.
fn in_short(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().next_back().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

/// How a value is shown: short, and without what may be a password in a URL.
pub(super) fn shown(kind: &ValueKind, text: &str) -> String {
    const LONGEST: usize = 120;
    let text = match (kind, text.rfind('@')) {
        (ValueKind::Url, Some(at)) => format!("***{}", &text[at..]),
        _ => text.to_owned(),
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// .NET's spellings: hyphenated or not, in braces or parentheses, in any case.
fn guid(text: &str) -> Option<Uuid> {
    let bare = text
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .or_else(|| text.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')))
        .unwrap_or(text);
    // The crate reads braces and `urn:uuid:` too, and would take them inside ours.
    let plain = bare.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if plain { Uuid::try_parse(bare).ok() } else { None }
}

/// By name in any case, or by number, as .NET reads an enum.
fn one_of<'a>(names: &'a [String], text: &str) -> Option<&'a String> {
    names
        .iter()
        .find(|name| name.eq_ignore_ascii_case(text))
        .or_else(|| text.parse::<usize>().ok().and_then(|number| names.get(number)))
}

fn base_url(text: &str) -> Result<Url, Fault> {
    let url = Url::parse(text).map_err(Fault::NotUrl)?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(Fault::NotHttp);
    }
    let has_more = !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some();
    if has_more { Err(Fault::NotBaseUrl) } else { Ok(url) }
}

fn path(text: &str, places: PathRoots<'_>) -> Result<Value, Fault> {
    if text.contains('\0') {
        return Err(Fault::NullInPath);
    }
    let expanded = match text.strip_prefix('~') {
        None => PathBuf::from(text),
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            // Without the slashes, or the rest would be absolute and replace the home directory.
            places.home.ok_or(Fault::NoHome)?.join(rest.trim_start_matches('/'))
        }
        Some(_) => return Err(Fault::OtherHome),
    };
    // `a/./b` and `a//b` become `a/b`; `..` stays, since it means something else behind a symlink.
    let absolute: PathBuf = places
        .working_dir
        .join(expanded)
        .components()
        .filter(|component| !matches!(component, Component::CurDir))
        .collect();
    absolute.to_str().map(Value::from).ok_or(Fault::NotUnicode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(kind: &ValueKind, text: &str) -> Result<Value, Fault> {
        read(kind, text, PathRoots { working_dir: Path::new("/cwd"), home: Some(Path::new("/home/me")) })
    }

    #[test]
    fn guids_are_read_in_every_usual_dotnet_spelling() {
        let plain = "3fa85f64-5717-4562-b3fc-2c963f66afa6";
        for spelling in [
            plain.to_owned(),
            plain.to_uppercase(),
            plain.replace('-', ""),
            format!("{{{plain}}}"),
            format!("({plain})"),
            format!("  {plain} "),
        ] {
            assert_eq!(read_one(&ValueKind::Guid, &spelling), Ok(Value::from(plain)), "{spelling}");
        }
        for wrong in ["x", "{}", "{{}}", &format!("{{{plain}"), &format!("urn:uuid:{plain}"), "3fa85f64"] {
            assert_eq!(read_one(&ValueKind::Guid, wrong), Err(Fault::NotGuid), "{wrong}");
        }
    }

    #[test]
    fn booleans_and_numbers_are_read_from_text_as_dotnet_does() {
        for (text, value) in [("true", true), ("True", true), (" FALSE ", false)] {
            assert_eq!(read_one(&ValueKind::Boolean, text), Ok(Value::from(value)));
        }
        for text in ["1", "yes", "on", "0"] {
            assert_eq!(read_one(&ValueKind::Boolean, text), Err(Fault::NotBoolean));
        }
        let kind = ValueKind::Integer { min: 1, max: 9 };
        for (text, value) in [("5", 5), (" 5 ", 5), ("+5", 5), ("05", 5)] {
            assert_eq!(read_one(&kind, text), Ok(Value::from(value)));
        }
        for text in ["0", "10", "-1", "5.5", "five", "99999999999999999999999"] {
            assert_eq!(read_one(&kind, text), Err(Fault::NotInteger { min: 1, max: 9 }), "{text}");
        }
    }

    #[test]
    fn enums_are_read_by_name_in_any_case_and_by_number() {
        let kind = ValueKind::OneOf(vec!["Trace".into(), "Debug".into()]);
        assert_eq!(read_one(&kind, "debug"), Ok(Value::from("Debug")));
        assert_eq!(read_one(&kind, "0"), Ok(Value::from("Trace")));
        assert!(read_one(&kind, "2").is_err());
        assert!(read_one(&kind, "Debugging").is_err());
    }

    #[test]
    fn a_server_url_is_plain_http_or_https_with_any_path() {
        for good in ["http://localhost:5000", "https://example.com/prefix/", "HTTPS://Example.com"] {
            assert!(read_one(&ValueKind::Url, good).is_ok(), "{good}");
        }
        for (bad, fault) in [
            ("ftp://example.com", Fault::NotHttp),
            ("localhost:5000", Fault::NotHttp),
            ("wss://example.com", Fault::NotHttp),
            ("https://me:pw@example.com", Fault::NotBaseUrl),
            ("https://example.com/?a=b", Fault::NotBaseUrl),
            ("https://example.com/#a", Fault::NotBaseUrl),
        ] {
            assert_eq!(read_one(&ValueKind::Url, bad), Err(fault), "{bad}");
        }
        assert!(matches!(read_one(&ValueKind::Url, "example.com"), Err(Fault::NotUrl(_))));
        assert!(matches!(read_one(&ValueKind::Url, "https://"), Err(Fault::NotUrl(_))));
    }

    #[test]
    fn paths_become_absolute_and_a_leading_tilde_expands() {
        for (text, path) in [
            ("~", "/home/me"),
            ("~/a", "/home/me/a"),
            ("~//a", "/home/me/a"),
            ("/a", "/a"),
            ("./a//b", "/cwd/a/b"),
            ("../a", "/cwd/../a"),
            ("a~", "/cwd/a~"),
        ] {
            assert_eq!(read_one(&ValueKind::Path, text), Ok(Value::from(path)), "{text}");
        }
        assert_eq!(read_one(&ValueKind::Path, "~you/a"), Err(Fault::OtherHome));
        assert_eq!(read_one(&ValueKind::Path, "a\0b"), Err(Fault::NullInPath));
        let homeless = PathRoots { working_dir: Path::new("/cwd"), home: None };
        assert_eq!(read(&ValueKind::Path, "~/a", homeless), Err(Fault::NoHome));
    }

    #[test]
    fn a_regular_expression_is_taken_as_it_is_or_says_what_is_wrong() {
        assert_eq!(read_one(&ValueKind::Regex, " a+ "), Ok(Value::from(" a+ ")));
        assert_eq!(read_one(&ValueKind::Regex, "("), Err(Fault::NotRegex("unclosed group".to_owned())));
    }

    #[test]
    fn only_free_text_keeps_the_white_space_around_it() {
        assert_eq!(read_one(&ValueKind::Text, " a "), Ok(Value::from(" a ")));
        assert_eq!(read_one(&ValueKind::Text, "  "), Err(Fault::Empty));
    }

    #[test]
    fn a_value_is_shown_short_and_without_the_password_of_a_url() {
        assert_eq!(shown(&ValueKind::Url, "htp:/me:p@ss@host"), "***@host");
        assert_eq!(shown(&ValueKind::Text, "me@host"), "me@host");
        assert_eq!(shown(&ValueKind::Text, &"ä".repeat(200)), format!("{}…", "ä".repeat(120)));
    }
}
