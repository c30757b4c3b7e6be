//! `--var name=value` as HCL, by the rule that terraform has for its own `-var`: the value of a variable that is
//! declared as a string, number or bool, or without a type, is the text as it was typed; the value of any other
//! is an expression.

use std::collections::BTreeMap;
use std::path::Path;

use uuid::Uuid;

use crate::contract::{Engine, Variable};
use crate::embedded_hub::{hcl_string, hcl_value};
use crate::engine::declarations::Declarations;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    #[error("the directory declares no variable {name:?}{}", meant.as_ref().map(|it| format!("; did you mean {it:?}?")).unwrap_or_default())]
    Undeclared { name: String, meant: Option<String> },
}

/// The parameters of a job for the module in `directory`.
pub fn encode(
    given: &[(String, String)],
    directory: &Path,
    engine: Engine,
) -> Result<BTreeMap<String, String>, VariableError> {
    let declared = match engine {
        Engine::Terraform | Engine::Tofu if !given.is_empty() => declared(directory, engine),
        // Pulumi takes any key.
        _ => None,
    };
    let mut parameters = BTreeMap::new();
    for (name, value) in given {
        let value = match &declared {
            None => hcl_value(value),
            Some(Declared { variables, are_all }) => match variables.iter().find(|it| it.name == *name) {
                None if !are_all => hcl_value(value),
                None => return Err(undeclared(name, variables)),
                Some(variable) if is_plain(variable.kind.as_deref()) => hcl_string(value),
                Some(_) => value.clone(),
            },
        };
        parameters.insert(name.clone(), value);
    }
    Ok(parameters)
}

struct Declared {
    variables: Vec<Variable>,
    /// False when a file could not be parsed: there may be more in it, and the engine has more to say about it than we do.
    are_all: bool,
}

/// None when the files cannot be read at all.
fn declared(directory: &Path, engine: Engine) -> Option<Declared> {
    let declarations = Declarations::read(directory, engine).ok()?;
    let set = declarations.variable_set(Uuid::nil(), &[], 0);
    let variables = set.map(|set| set.variables).unwrap_or_default();
    Some(Declared { variables, are_all: declarations.warnings.is_empty() })
}

fn is_plain(kind: Option<&str>) -> bool {
    // Old configurations write the type in quotes.
    let kind = kind.map(|kind| kind.trim().trim_matches('"'));
    matches!(kind, None | Some("string" | "number" | "bool"))
}

fn undeclared(name: &str, variables: &[Variable]) -> VariableError {
    let near = |variable: &&Variable| strsim::damerau_levenshtein(&variable.name, name);
    let meant = variables.iter().min_by_key(near).filter(|it| near(it) <= 2).map(|it| it.name.clone());
    VariableError::Undeclared { name: name.to_owned(), meant }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARED: &str = r#"
        variable "text" { type = string }
        variable "count_of" { type = number }
        variable "untyped" {}
        variable "old" { type = "string" }
        variable "list" { type = list(string) }
        variable "anything" { type = any }
    "#;

    fn encoded(name: &str, value: &str) -> Result<String, VariableError> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("main.tf"), DECLARED).unwrap();
        let given = [(name.to_owned(), value.to_owned())];
        encode(&given, directory.path(), Engine::Terraform).map(|all| all[name].clone())
    }

    #[test]
    fn plain_variables_get_the_text_as_it_was_typed_and_the_others_an_expression() {
        for (name, typed, hcl) in [
            ("text", "[1, 2]", r#""[1, 2]""#),
            ("text", "${x}", r#""$${x}""#),
            ("count_of", "3", r#""3""#),
            ("untyped", "{a}", r#""{a}""#),
            ("old", "\"x\"", r#""\"x\"""#),
            ("list", "[\"a\"]", "[\"a\"]"),
            ("anything", "true", "true"),
        ] {
            assert_eq!(encoded(name, typed).as_deref(), Ok(hcl), "{name}={typed}");
        }
    }

    #[test]
    fn a_variable_that_is_not_declared_is_refused_with_the_nearest_name() {
        let error = encoded("txt", "").unwrap_err().to_string();
        assert!(error.contains("\"txt\"") && error.contains("\"text\""), "{error}");
        let error = encoded("something_else", "").unwrap_err().to_string();
        assert!(!error.contains("did you mean"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_parsed_may_declare_any_variable() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("main.tf"), DECLARED).unwrap();
        std::fs::write(directory.path().join("more.tf"), "variable \"more\" {}\nresource {").unwrap();
        let given = [("more", "a"), ("text", "[1]")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let encoded = encode(&given, directory.path(), Engine::Terraform).unwrap();
        assert_eq!((encoded["more"].as_str(), encoded["text"].as_str()), ("\"a\"", "\"[1]\""));
    }

    #[test]
    fn what_cannot_be_read_and_pulumi_are_left_to_the_engine() {
        let directory = tempfile::tempdir().unwrap();
        let given = [("any:key".to_owned(), "x".to_owned())];
        let encoded = encode(&given, directory.path(), Engine::Pulumi).unwrap();
        assert_eq!(encoded["any:key"], "\"x\"");
    }
}
