//! A settings file: JSON with comments and trailing commas (read as JSON5, which allows both).

use std::fmt;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::findings::{Findings, Origin};
use super::given::{Content, Given};
use super::values::Fault;

/// Deeper than any sensible file, and shallow enough for the stack.
const DEEPEST: usize = 64;

/// What the file gives; nothing when there is no such file. False when it is there and cannot be read.
pub(super) fn read(dir: &Path, name: &str, findings: &mut Findings, given: &mut Vec<Given>) -> bool {
    let fault = match std::fs::read(dir.join(name)) {
        Ok(bytes) => match parse(&bytes) {
            Ok(node) => {
                flatten(node, &mut Vec::new(), &Origin::file(name), given);
                return true;
            }
            Err(fault) => fault,
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
        Err(error) => Fault::Unreadable(error.to_string()),
    };
    findings.layer_problem(Origin::file(name), fault);
    false
}

fn parse(bytes: &[u8]) -> Result<Node, Fault> {
    let text = std::str::from_utf8(bytes).map_err(|_| Fault::NotUnicode)?;
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(Fault::NothingInFile);
    }
    match json5::from_str(text).map_err(|error| not_json(&error))? {
        node @ Node::Object(_) => Ok(node),
        Node::Null | Node::Text(_) | Node::Rounded(_) | Node::List(_) => Err(Fault::NotObject),
    }
}

fn not_json(error: &json5::Error) -> Fault {
    let (line, column) = error.position().map_or((1, 1), |at| (at.line + 1, at.column + 1));
    Fault::NotJson { what: what_is_wrong(error), line, column }
}

/// The crate's words are those of a parser, which has only looked at the first letter of what it cannot read.
fn what_is_wrong(error: &json5::Error) -> String {
    use json5::ErrorCode as Code;
    let ends_inside = |what: &str| format!("the file ends inside {what}, in what begins");
    match error.code() {
        Some(Code::EofParsingArray) => ends_inside("a list"),
        Some(Code::EofParsingComment) => ends_inside("a comment"),
        Some(Code::EofParsingObject) => ends_inside("an object"),
        Some(Code::EofParsingString | Code::EofParsingEscapeSequence) => ends_inside("a text in quotes"),
        Some(
            Code::EofParsingValue
            | Code::EofParsingBool
            | Code::EofParsingNull
            | Code::EofParsingNumber
            | Code::EofParsingIdentifier,
        ) => ends_inside("a value"),
        Some(Code::ExpectedBool | Code::ExpectedNull | Code::ExpectedNumber | Code::ExpectedValue) => {
            "expected a value (a text stands in quotes)".to_owned()
        }
        Some(Code::LineTerminatorInString) => "a text in quotes does not end before its line".to_owned(),
        Some(Code::TrailingCharacters) => "there is more after the end of the object".to_owned(),
        _ => {
            let whole = error.to_string();
            whole.rsplit_once(" at line ").map_or(whole.as_str(), |(what, _)| what).to_owned()
        }
    }
}

/// JSON as the layers need it: scalars as text, and every member of an object, duplicates included.
enum Node {
    Null,
    Text(String),
    Rounded(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

fn flatten(node: Node, path: &mut Vec<String>, origin: &Origin, given: &mut Vec<Given>) {
    let mut leaf = |content| given.push(Given { path: path.clone(), content, origin: origin.clone() });
    match node {
        Node::Null => leaf(Content::Null),
        Node::Text(text) => leaf(Content::Text(text)),
        Node::Rounded(text) => leaf(Content::Rounded(text)),
        Node::List(items) if items.is_empty() => leaf(Content::EmptyList),
        Node::Object(members) if members.is_empty() => leaf(Content::EmptyObject),
        Node::List(items) => {
            for (index, item) in items.into_iter().enumerate() {
                path.push(index.to_string());
                flatten(item, path, origin, given);
                path.pop();
            }
        }
        Node::Object(members) => {
            for (name, member) in members {
                let depth = path.len();
                // .NET takes `"Runner:Id"` as a path. `hawser::hub` is a log category and stays whole.
                if name.contains("::") {
                    path.push(name);
                } else {
                    path.extend(name.split(':').map(str::to_owned));
                }
                flatten(member, path, origin, given);
                path.truncate(depth);
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        NodeSeed { depth: 0 }.deserialize(deserializer)
    }
}

struct NodeSeed {
    depth: usize,
}

impl NodeSeed {
    fn below<E: serde::de::Error>(&self) -> Result<Self, E> {
        if self.depth == DEEPEST {
            return Err(E::custom(format!("nested deeper than {DEEPEST} levels")));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for NodeSeed {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Text(value.to_string()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Text(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Text(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Rounded(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.below()?)? {
            list.push(item);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Node, A::Error> {
        let mut object = Vec::new();
        while let Some(name) = members.next_key::<String>()? {
            object.push((name, members.next_value_seed(self.below()?)?));
        }
        Ok(Node::Object(object))
    }
}
