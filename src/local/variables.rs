//! Whether a directory declares the variables that `--var` gives. How a value is meant is decided when the job has read
//! the declarations for itself.

use std::path::Path;

use uuid::Uuid;

use crate::engine::declarations::Declarations;
use hawser_contract::{Engine, Variable};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    #[error("the directory declares no variable {name:?}{}", meant.as_ref().map(|it| format!("; did you mean {it:?}?")).unwrap_or_default())]
    Undeclared { name: String, meant: Option<String> },
}

/// Refuses variables that `directory` does not declare, before anything is made for it. When it is not sure, it lets
/// the engine judge.
pub fn check(given: &[(String, String)], directory: &Path, engine: Engine) -> Result<(), VariableError> {
    // Pulumi takes any key.
    if given.is_empty() || engine == Engine::Pulumi {
        return Ok(());
    }
    let Some(Declared { variables, are_all: true }) = declared(directory, engine) else { return Ok(()) };
    match given.iter().find(|(name, _)| !variables.iter().any(|it| it.name == *name)) {
        Some((name, _)) => Err(undeclared(name, &variables)),
        None => Ok(()),
    }
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

fn undeclared(name: &str, variables: &[Variable]) -> VariableError {
    let near = |variable: &&Variable| strsim::damerau_levenshtein(&variable.name, name);
    let meant = variables.iter().min_by_key(near).filter(|it| near(it) <= 2).map(|it| it.name.clone());
    VariableError::Undeclared { name: name.to_owned(), meant }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARED: &str = "variable \"text\" { type = string }\nvariable \"list\" { type = list(string) }\n";

    fn check_one(files: &[(&str, &str)], name: &str, engine: Engine) -> Result<(), VariableError> {
        let directory = tempfile::tempdir().unwrap();
        for (file, contents) in files {
            std::fs::write(directory.path().join(file), contents).unwrap();
        }
        check(&[(name.to_owned(), "x".to_owned())], directory.path(), engine)
    }

    #[test]
    fn a_variable_that_is_not_declared_is_refused_with_the_nearest_name() {
        let error =
            |name| check_one(&[("main.tf", DECLARED)], name, Engine::Terraform).unwrap_err().to_string();
        assert!(error("txt").contains("\"txt\"") && error("txt").contains("\"text\""), "{}", error("txt"));
        assert!(!error("something_else").contains("did you mean"));
        check_one(&[("main.tf", DECLARED)], "list", Engine::Terraform).unwrap();
        check_one(&[("main.tf", DECLARED)], "any:key", Engine::Pulumi).unwrap();
    }

    /// Each of these is a declaration to terraform.
    #[test]
    fn a_variable_is_found_wherever_and_however_it_is_declared() {
        let deep = format!("variable \"x\" {{ default = {}{} }}", "[".repeat(99), "]".repeat(99));
        for (file, contents) in [
            ("a.tf", "\u{feff}variable \"x\" {}\r\n"),
            ("a.tf", "locals {\n  a = <<-E\n    variable \"y\" { \"\n  E\n}\nvariable x {}"),
            ("a.tf", "/* variable \"y\" { */ variable /* a */ \"x\" { # b\n} // c"),
            ("a.tf", "variable \"x\" {}\nlocals { a = provider::p::f(1) }\n"),
            ("a.tf.json", r#"{"//": "c", "variable": [{"x": [{}]}], "variable": {"y": {}}}"#),
            // Not to be read by us.
            ("a.tf", &deep),
            ("a.tf.json", r#"{"variable": {"x": {"default": 1e400}}}"#),
            ("a.tf", "variable \"x\" {}\nresource {"),
        ] {
            check_one(&[("main.tf", DECLARED), (file, contents)], "x", Engine::Terraform)
                .unwrap_or_else(|error| panic!("{contents}: {error}"));
        }
        let overridden = [("a.tf", "variable \"x\" {}"), ("a_override.tf", "variable \"x\" { default = 1 }")];
        check_one(&overridden, "x", Engine::Tofu).unwrap();
        check_one(&[("a.tofu", "variable \"x\" {}")], "x", Engine::Tofu).unwrap();
    }
}
