//! HCL expressions that are plain values, as text and as JSON.

use hcl_edit::expr::{Expression, ObjectKey};
use hcl_edit::template::{Element, Template};
use serde_json::{Map, Value};

use super::EngineError;

/// A string that stands in the source: in quotes or as a heredoc, without anything to be evaluated.
pub fn string(expression: &Expression) -> Option<String> {
    match expression {
        Expression::String(text) => Some(text.value().clone()),
        Expression::StringTemplate(template) => literal(template),
        Expression::HeredocTemplate(heredoc) => literal(&heredoc.template),
        Expression::Parenthesis(inner) => string(inner.inner()),
        _ => None,
    }
}

fn literal(template: &Template) -> Option<String> {
    template
        .iter()
        .map(|element| match element {
            Element::Literal(text) => Some(text.value().as_str()),
            _ => None,
        })
        .collect()
}

/// Numbers keep their digits: the source text is what ends up in the JSON.
fn json(expression: &Expression) -> Option<Value> {
    if let Some(text) = string(expression) {
        return Some(Value::String(text));
    }
    match expression {
        Expression::Null(_) => Some(Value::Null),
        Expression::Bool(value) => Some(Value::Bool(*value.value())),
        Expression::Number(_) | Expression::UnaryOp(_) => {
            serde_json::from_str(expression.to_string().trim()).ok()
        }
        Expression::Array(items) => items.iter().map(json).collect::<Option<Vec<_>>>().map(Value::Array),
        Expression::Object(members) => {
            let mut object = Map::new();
            for (key, value) in members.iter() {
                let key = match key {
                    ObjectKey::Ident(name) => name.to_string(),
                    ObjectKey::Expression(key) => string(key)?,
                };
                object.insert(key, json(value.expr())?);
            }
            Some(Value::Object(object))
        }
        Expression::Parenthesis(inner) => json(inner.inner()),
        _ => None,
    }
}

/// A parameter for Pulumi, which knows no HCL: strings without their quotes, collections as JSON, everything
/// else as it is.
pub fn pulumi_text(name: &str, encoded: &str) -> Result<String, EngineError> {
    let failed = |reason: String| EngineError::Parameter { name: name.to_owned(), reason };
    // What is no HCL at all was not encoded, and is passed on.
    let Ok(expression) = hcl_edit::parser::parse_expr(encoded.trim()) else { return Ok(encoded.to_owned()) };
    match &expression {
        Expression::Array(_) | Expression::Object(_) => {
            let value = json(&expression).ok_or_else(|| failed("it is not a plain value".to_owned()))?;
            serde_json::to_string(&value).map_err(|error| failed(error.to_string()))
        }
        other => Ok(string(other).unwrap_or_else(|| encoded.trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulumi_gets_values_without_hcl_around_them() {
        for (encoded, expected) in [
            ("\"it's \\\"so\\\"\\n\"", "it's \"so\"\n"),
            ("true", "true"),
            ("12345678901234567890.5", "12345678901234567890.5"),
            ("[\"a\", 1, null, -2]", "[\"a\",1,null,-2]"),
            ("{ a = \"b\", \"c d\" = { e = true } }", "{\"a\":\"b\",\"c d\":{\"e\":true}}"),
            ("<<EOT\none\ntwo\nEOT\n", "one\ntwo\n"),
            ("plain words", "plain words"),
            ("eu-west-1", "eu-west-1"),
        ] {
            assert_eq!(pulumi_text("p", encoded).unwrap(), expected, "{encoded}");
        }
    }
}
