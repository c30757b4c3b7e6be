//! HCL expressions that are plain values, as text and as JSON.

use std::collections::BTreeMap;

use hcl_edit::expr::{Expression, ObjectKey};
use hcl_edit::template::{Element, Template};
use hcl_edit::visit::{Visit, visit_expr};
use serde_json::Value;
use serde_json::value::RawValue;

use super::EngineError;

/// The value of a quoted string or a heredoc. `None` if it must be evaluated.
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
            Element::Literal(text) => Some(text.value().clone()),
            // Such as `${"$"}`, a way to write a dollar sign.
            Element::Interpolation(part) => string(&part.expr),
            Element::Directive(_) => None,
        })
        .collect()
}

/// Every string and number in an expression, at any depth, without the names of members. Of a template, the literal parts.
pub fn texts(expression: &Expression) -> Vec<String> {
    #[derive(Default)]
    struct Texts(Vec<String>);

    impl Visit for Texts {
        fn visit_expr(&mut self, expression: &Expression) {
            match (string(expression), expression) {
                (Some(text), _) => self.0.push(text),
                (None, Expression::Number(_) | Expression::UnaryOp(_)) => {
                    self.0.push(expression.to_string().trim().to_owned());
                }
                _ => visit_expr(self, expression),
            }
        }

        fn visit_object_key(&mut self, _: &ObjectKey) {}

        fn visit_element(&mut self, element: &Element) {
            match element {
                Element::Literal(text) => self.0.push(text.value().clone()),
                other => hcl_edit::visit::visit_element(self, other),
            }
        }
    }

    let mut texts = Texts::default();
    texts.visit_expr(expression);
    texts.0
}

/// Every string and number in a JSON text, at any depth, with all of their digits.
pub fn json_texts(value: &RawValue) -> Vec<String> {
    let mut found = Vec::new();
    add_json_texts(value, true, &|_| true, DEEPEST, &mut found);
    found
}

/// The same for the members with these names only.
pub fn json_texts_of(value: &RawValue, is_wanted: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    add_json_texts(value, false, is_wanted, DEEPEST, &mut found);
    found
}

/// Keeps deeply nested values from overflowing the stack.
const DEEPEST: usize = 128;

fn add_json_texts(
    value: &RawValue,
    wanted: bool,
    is_wanted: &dyn Fn(&str) -> bool,
    depth: usize,
    found: &mut Vec<String>,
) {
    let json = value.get();
    match json.bytes().next() {
        Some(b'{') if depth > 0 => {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(json).unwrap_or_default();
            for (name, value) in members {
                add_json_texts(value, wanted || is_wanted(&name), is_wanted, depth - 1, found);
            }
        }
        Some(b'[') if depth > 0 => {
            let items: Vec<&RawValue> = serde_json::from_str(json).unwrap_or_default();
            items.iter().for_each(|item| add_json_texts(item, wanted, is_wanted, depth - 1, found));
        }
        Some(b'"') if wanted => found.extend(serde_json::from_str::<String>(json)),
        Some(b'-' | b'0'..=b'9') if wanted => found.push(json.to_owned()),
        _ => {}
    }
}

/// The value as JSON. Numbers keep all of their digits.
fn json(expression: &Expression) -> Option<String> {
    if let Some(text) = string(expression) {
        return Some(Value::String(text).to_string());
    }
    match expression {
        Expression::Null(_) => Some("null".to_owned()),
        Expression::Bool(value) => Some(value.value().to_string()),
        Expression::Number(_) | Expression::UnaryOp(_) => {
            let text = expression.to_string().trim().to_owned();
            serde_json::from_str::<serde_json::Number>(&text).is_ok().then_some(text)
        }
        Expression::Array(items) => {
            let items: Option<Vec<_>> = items.iter().map(json).collect();
            Some(format!("[{}]", items?.join(",")))
        }
        Expression::Object(members) => {
            let member = |(key, value): (&ObjectKey, &hcl_edit::expr::ObjectValue)| {
                let key = match key {
                    ObjectKey::Ident(name) => name.as_str().to_owned(),
                    ObjectKey::Expression(key) => string(key)?,
                };
                Some(format!("{}:{}", Value::String(key), json(value.expr())?))
            };
            let members: Option<Vec<_>> = members.iter().map(member).collect();
            Some(format!("{{{}}}", members?.join(",")))
        }
        Expression::Parenthesis(inner) => json(inner.inner()),
        _ => None,
    }
}

/// A parameter for Pulumi, which does not read HCL: strings without quotes, collections as JSON, everything else unchanged.
pub fn pulumi_text(name: &str, encoded: &str) -> Result<String, EngineError> {
    // A value that is not HCL was not encoded.
    let Ok(expression) = hcl_edit::parser::parse_expr(encoded.trim()) else { return Ok(encoded.to_owned()) };
    match &expression {
        Expression::Array(_) | Expression::Object(_) => json(&expression).ok_or_else(|| {
            EngineError::Parameter { name: name.to_owned(), reason: "it is not a plain value".to_owned() }
        }),
        other => Ok(string(other).unwrap_or_else(|| encoded.trim().to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_found_at_any_depth() {
        for (source, expected) in [
            ("\"a\\nb\"", &["a\nb"][..]),
            ("[1, -2.50, \"x\", null, true]", &["1", "-2.50", "x"]),
            ("{ name = \"x\", \"other\" = [\"y\"] }", &["x", "y"]),
            ("jsonencode({ k = \"x\" })", &["x"]),
            ("\"before ${var.a} after\"", &["before ", " after"]),
            ("var.a ? \"x\" : \"y\"", &["x", "y"]),
        ] {
            assert_eq!(texts(&hcl_edit::parser::parse_expr(source).unwrap()), expected, "{source}");
        }
        let json = r#"{"a": [1.0, "x\u0041", {"b": 123456789012345678901}], "c": null}"#;
        let json = RawValue::from_string(json.to_owned()).unwrap();
        assert_eq!(json_texts(&json), ["1.0", "xA", "123456789012345678901"]);
        let deep =
            RawValue::from_string(format!("{}\"x\"{}", "[".repeat(50_000), "]".repeat(50_000))).unwrap();
        assert!(json_texts(&deep).is_empty());
    }

    #[test]
    fn pulumi_gets_values_without_hcl_syntax() {
        for (encoded, expected) in [
            ("\"it's \\\"so\\\"\\n\"", "it's \"so\"\n"),
            ("true", "true"),
            ("12345678901234567890.5", "12345678901234567890.5"),
            ("[\"a\", 1, null, -2]", "[\"a\",1,null,-2]"),
            ("{ a = \"b\", \"c d\" = { e = true } }", "{\"a\":\"b\",\"c d\":{\"e\":true}}"),
            ("[1234567890123456789012345678.125, -0.10]", "[1234567890123456789012345678.125,-0.10]"),
            ("<<EOT\none\ntwo\nEOT\n", "one\ntwo\n"),
            ("plain words", "plain words"),
            ("eu-west-1", "eu-west-1"),
        ] {
            assert_eq!(pulumi_text("p", encoded).unwrap(), expected, "{encoded}");
        }
    }
}
