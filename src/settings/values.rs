//! Converts the text of one value to the type of its setting, by .NET's rules.
//!
//! Every layer provides text, as in .NET, so `5`, `"5"`, and `X__Y=5` are the same. White space around a value is ignored,
//! except in free text. `True` is `true`, and a GUID may be in braces.

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
pub enum SettingFault {
    #[error("is required and not set. {how}")]
    Missing { how: String },
    #[error("is empty; give it a value or remove it")]
    Empty,
    #[error("is not a GUID; write it like 3fa85f64-5717-4562-b3fc-2c963f66afa6")]
    NotGuid,
    #[error("is not a regular expression: {0}")]
    NotRegex(String),
    #[error("is neither true nor false")]
    NotBoolean,
    #[error("is not a whole number from {min} to {max}")]
    NotInteger { min: u64, max: u64 },
    #[error("is not one of {}", names.join(", "))]
    NotOneOf { names: Vec<String> },
    #[error("is not a URL ({0}); write it like https://snapcd.example.com:20001")]
    NotUrl(url::ParseError),
    #[error("is not an http or https URL; write it like https://snapcd.example.com:20001")]
    NotHttp,
    #[error("must be a plain base URL, without credentials, query or fragment")]
    NotBaseUrl,
    #[error("starts with ~, but the home directory is unknown; write the full path or set HOME")]
    NoHome,
    #[error("has an unsupported ~; only ~ and ~/… expand to a home directory; write the full path")]
    OtherHome,
    #[error("contains a null character")]
    NullInPath,
    #[error("is a section, not a value or a list; its keys: {}", keys.join(", "))]
    IsSection { keys: Vec<String> },
    #[error("is a list, not a single value; {how}")]
    IsList { how: String },
    #[error("is a map of names to values, not a single value; {how}")]
    IsMap { how: String },
    #[error(
        "is not a rule of Policy and would have no effect (`hawser schema` lists the rules){}",
        did_you_mean(nearest.as_deref())
    )]
    NotRule { nearest: Option<String> },
    #[error("is a single value, not an object or a list")]
    IsValue,
    #[error("is a text setting, but its value is a number that would lose digits; quote it")]
    NotQuoted,
    #[error("has an invalid index; list items are numbered from 0: {how}")]
    NotIndex { how: String },
    #[error("is not valid UTF-8")]
    NotUnicode,
    #[error("has no value; write --{option}=…")]
    NoValue { option: String },
    #[error("argument {position} is not a setting; write settings as --Section:Key=value")]
    StrayArgument { position: usize },
    #[error(transparent)]
    NotAuthorities(AuthoritiesError),
    #[error("cannot be read: {0}")]
    Unreadable(String),
    #[error("is not valid JSON: {0}")]
    NotJson(String),
    #[error("is empty; write {{}} to the file, or remove it")]
    NothingInFile,
    #[error("must contain a JSON object")]
    NotObject,
    #[error(
        "is not an environment name; it must be usable in the file name appsettings.{{Environment}}.json"
    )]
    NotEnvironment,
    #[error("{0}")]
    NotPattern(String),
}

/// The directories that make a path absolute.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathRoots<'a> {
    pub(super) working_dir: &'a Path,
    pub(super) home: Option<&'a Path>,
}

/// Converts the text of a leaf of this kind.
pub(super) fn read(kind: &ValueKind, text: &str, roots: PathRoots<'_>) -> Result<Value, SettingFault> {
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(SettingFault::Empty);
    }
    match kind {
        // White space may be a part of a secret.
        ValueKind::Text => Ok(Value::from(text)),
        // .NET writes a GUID with or without hyphens, braces, or parentheses.
        ValueKind::Guid => match Uuid::try_parse(trimmed.trim_matches(['{', '}', '(', ')'])) {
            Ok(guid) => Ok(Value::from(guid.to_string())),
            Err(_) => Err(SettingFault::NotGuid),
        },
        ValueKind::Boolean if trimmed.eq_ignore_ascii_case("true") => Ok(Value::from(true)),
        ValueKind::Boolean if trimmed.eq_ignore_ascii_case("false") => Ok(Value::from(false)),
        ValueKind::Boolean => Err(SettingFault::NotBoolean),
        ValueKind::Integer { min, max } => match trimmed.parse::<u64>() {
            Ok(number) if (*min..=*max).contains(&number) => Ok(Value::from(number)),
            _ => Err(SettingFault::NotInteger { min: *min, max: *max }),
        },
        ValueKind::OneOf(names) => one_of(names, trimmed)
            .map(|name| Value::from(name.as_str()))
            .ok_or_else(|| SettingFault::NotOneOf { names: names.clone() }),
        ValueKind::Url => base_url(trimmed).map(|url| Value::from(url.as_str())),
        ValueKind::Path => path(trimmed, roots),
        // White space may be a part of the expression.
        ValueKind::Regex => match regex::Regex::new(text) {
            Ok(_) => Ok(Value::from(text)),
            Err(error) => Err(SettingFault::NotRegex(last_line(&error))),
        },
    }
}

/// The message of the crate spans several lines; the last one has the reason.
fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().next_back().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

/// Shortens a value for messages, and removes a possible password from a URL.
pub(super) fn for_message(kind: &ValueKind, text: &str) -> String {
    const MAX_CHARS: usize = 120;
    let text = match (kind, text.rfind('@')) {
        (ValueKind::Url, Some(at)) => format!("***{}", &text[at..]),
        _ => text.to_owned(),
    };
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Finds a name, case-insensitive, or by number, as .NET reads an enum.
fn one_of<'a>(names: &'a [String], text: &str) -> Option<&'a String> {
    names
        .iter()
        .find(|name| name.eq_ignore_ascii_case(text))
        .or_else(|| text.parse::<usize>().ok().and_then(|number| names.get(number)))
}

fn base_url(text: &str) -> Result<Url, SettingFault> {
    let url = Url::parse(text).map_err(|error| match error {
        url::ParseError::RelativeUrlWithoutBase => SettingFault::NotHttp,
        error => SettingFault::NotUrl(error),
    })?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(SettingFault::NotHttp);
    }
    let has_more = !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some();
    if has_more { Err(SettingFault::NotBaseUrl) } else { Ok(url) }
}

fn path(text: &str, roots: PathRoots<'_>) -> Result<Value, SettingFault> {
    if text.contains('\0') {
        return Err(SettingFault::NullInPath);
    }
    let expanded = match text.strip_prefix('~') {
        None => PathBuf::from(text),
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            // An absolute rest would replace the home directory.
            roots.home.ok_or(SettingFault::NoHome)?.join(rest.trim_start_matches('/'))
        }
        Some(_) => return Err(SettingFault::OtherHome),
    };
    // `a/./b` and `a//b` become `a/b`. `..` stays, because it may follow a symlink.
    let absolute: PathBuf = roots
        .working_dir
        .join(expanded)
        .components()
        .filter(|component| !matches!(component, Component::CurDir))
        .collect();
    absolute.to_str().map(Value::from).ok_or(SettingFault::NotUnicode)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(kind: &ValueKind, text: &str) -> Result<Value, SettingFault> {
        read(kind, text, PathRoots { working_dir: Path::new("/cwd"), home: Some(Path::new("/home/me")) })
    }

    #[test]
    fn guids_are_read_in_every_common_dotnet_format() {
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
        for wrong in ["x", "{}", &format!("{{{plain}}}x"), "3fa85f64"] {
            assert_eq!(read_one(&ValueKind::Guid, wrong), Err(SettingFault::NotGuid), "{wrong}");
        }
    }

    #[test]
    fn booleans_and_numbers_are_read_from_text_as_dotnet_does() {
        for (text, value) in [("true", true), ("True", true), (" FALSE ", false)] {
            assert_eq!(read_one(&ValueKind::Boolean, text), Ok(Value::from(value)));
        }
        for text in ["1", "yes", "on", "0"] {
            assert_eq!(read_one(&ValueKind::Boolean, text), Err(SettingFault::NotBoolean));
        }
        let kind = ValueKind::Integer { min: 1, max: 9 };
        for (text, value) in [("5", 5), (" 5 ", 5), ("+5", 5), ("05", 5)] {
            assert_eq!(read_one(&kind, text), Ok(Value::from(value)));
        }
        for text in ["0", "10", "-1", "5.5", "five", "99999999999999999999999"] {
            assert_eq!(read_one(&kind, text), Err(SettingFault::NotInteger { min: 1, max: 9 }), "{text}");
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
            ("ftp://example.com", SettingFault::NotHttp),
            ("localhost:5000", SettingFault::NotHttp),
            ("wss://example.com", SettingFault::NotHttp),
            ("example.com", SettingFault::NotHttp),
            ("https://me:pw@example.com", SettingFault::NotBaseUrl),
            ("https://example.com/?a=b", SettingFault::NotBaseUrl),
            ("https://example.com/#a", SettingFault::NotBaseUrl),
        ] {
            assert_eq!(read_one(&ValueKind::Url, bad), Err(fault), "{bad}");
        }
        assert!(matches!(read_one(&ValueKind::Url, "https://"), Err(SettingFault::NotUrl(_))));
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
        assert_eq!(read_one(&ValueKind::Path, "~you/a"), Err(SettingFault::OtherHome));
        assert_eq!(read_one(&ValueKind::Path, "a\0b"), Err(SettingFault::NullInPath));
        let homeless = PathRoots { working_dir: Path::new("/cwd"), home: None };
        assert_eq!(read(&ValueKind::Path, "~/a", homeless), Err(SettingFault::NoHome));
    }

    #[test]
    fn a_regular_expression_is_unchanged_or_an_error_with_the_reason() {
        assert_eq!(read_one(&ValueKind::Regex, " a+ "), Ok(Value::from(" a+ ")));
        assert_eq!(
            read_one(&ValueKind::Regex, "("),
            Err(SettingFault::NotRegex("unclosed group".to_owned()))
        );
    }

    #[test]
    fn only_free_text_keeps_the_white_space_around_it() {
        assert_eq!(read_one(&ValueKind::Text, " a "), Ok(Value::from(" a ")));
        assert_eq!(read_one(&ValueKind::Text, "  "), Err(SettingFault::Empty));
    }

    #[test]
    fn a_value_in_a_message_is_short_and_has_no_password() {
        assert_eq!(for_message(&ValueKind::Url, "htp:/me:p@ss@host"), "***@host");
        assert_eq!(for_message(&ValueKind::Text, "me@host"), "me@host");
        assert_eq!(for_message(&ValueKind::Text, &"ä".repeat(200)), format!("{}…", "ä".repeat(120)));
    }
}
