use std::fs;

use super::*;
use crate::base::confined_dir::open_regular;

struct Module {
    folder: tempfile::TempDir,
}

impl Module {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Self { folder }
    }

    fn declarations(&self, reads_tofu: bool) -> Declarations {
        let folder = self.folder.path();
        let entries =
            fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file());
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        Declarations::of_files(names.collect(), reads_tofu, |name| open_regular(&folder.join(name))).unwrap()
    }

    fn variables(&self, reads_tofu: bool) -> Vec<Variable> {
        let declarations = self.declarations(reads_tofu);
        let extra = ["extra.tf".to_owned()];
        declarations.variable_set(Uuid::nil(), &extra, 0).map(|set| set.variables).unwrap_or_default()
    }

    fn names(&self, reads_tofu: bool) -> Vec<String> {
        self.variables(reads_tofu).into_iter().map(|it| it.name).collect()
    }
}

fn one(text: &str) -> Variable {
    Module::new(&[("a.tf", text)]).variables(false).remove(0)
}

#[test]
fn types_keep_their_source_text() {
    let nested =
        "map(object({\n    a = optional(list(string), [\"}\"]) # a comment }\n    b = tuple([bool])\n  }))";
    let variable = one(&format!("variable \"v\" {{\n  type = {nested}\n  default = {{}}\n}}\n"));
    assert_eq!(variable.kind.as_deref(), Some(nested));
    assert_eq!(one("variable \"v\" { type=string }").kind.as_deref(), Some("string"));
    assert_eq!(one("variable v {\n  type   =   any // why\n}").kind.as_deref(), Some("any"));
    assert_eq!(one("variable \"v\" {}").kind, None);
}

#[test]
fn ephemeral_variables_are_recognized() {
    let module = Module::new(&[
        (
            "a.tf",
            "variable \"one\" {\n  ephemeral = true\n  type = list(string)\n}\nvariable \"two\" {}\nvariable \"no\" {\n  ephemeral = false\n}\n",
        ),
        ("b_override.tf", "variable \"two\" {\n  ephemeral = true\n}\n"),
        ("c.tf.json", r#"{"variable": {"three": {"ephemeral": true, "type": "string"}}}"#),
    ]);
    let declarations = module.declarations(false);
    assert_eq!(
        ["one", "two", "three", "no", "gone"].map(|it| declarations.is_ephemeral(it)),
        [true, true, true, false, false]
    );
    assert!(declarations.is_sensitive("one") && !declarations.is_sensitive("no"));
    assert_eq!(["one", "two", "three"].map(|it| declarations.takes_text(it)), [false, true, true]);
}

#[test]
fn nullable_is_declared_or_follows_from_the_default() {
    for (body, nullable) in [
        ("", false),
        ("default = null", false),
        ("default = \"\"", true),
        ("default = {}", true),
        ("nullable = true", true),
        ("default = 1\nnullable = false", false),
    ] {
        assert_eq!(one(&format!("variable \"v\" {{\n{body}\n}}")).nullable, nullable, "{body}");
    }
}

#[test]
fn a_variable_with_an_unclear_sensitive_attribute_is_sensitive() {
    for (value, sensitive) in [
        ("true", true),
        ("(true)", true),
        ("\"true\"", true),
        ("\"1\"", true),
        ("!false", true),
        ("!(\"false\")", true),
        ("\"${true}\"", true),
        ("tobool(\"true\")", true),
        ("true && true", true),
        ("false", false),
        ("(false)", false),
        ("\"false\"", false),
        ("!true", false),
    ] {
        assert_eq!(
            one(&format!("variable \"v\" {{\nsensitive = {value}\n}}")).sensitive,
            sensitive,
            "{value}"
        );
    }
    for (value, sensitive) in [
        ("true", true),
        ("\"true\"", true),
        ("\"${true}\"", true),
        ("1", true),
        ("false", false),
        ("\"false\"", false),
    ] {
        let text = format!(r#"{{"variable": {{"v": {{"sensitive": {value}}}}}}}"#);
        let module = Module::new(&[("a.tf.json", &text)]);
        assert_eq!(module.variables(false)[0].sensitive, sensitive, "{value}");
        assert_eq!(module.declarations(false).is_sensitive("v"), sensitive, "{value}");
    }
    assert!(!one("variable \"v\" {}").sensitive);
    assert!(!one("variable \"v\" {\n default = 1\n nullable = \"false\"\n}").nullable);
}

#[test]
fn descriptions_may_be_quoted_or_heredocs() {
    let text = r#"
# variable "in_a_comment" {}
/* variable "also" {} */
locals {
  s = "variable \"in_a_string\" { type = string }"
}
variable "a" {
  description = "says \"}\" and é, 100% $${x}"
  sensitive   = true
}
variable "b" {
  description = <<-EOT
    first
      second }
  EOT
  validation {
    condition     = length(var.b) > 0
    error_message = "no"
  }
}
"#;
    let variables = Module::new(&[("a.tf", text)]).variables(false);
    let seen: Vec<_> =
        variables.iter().map(|it| (it.name.as_str(), it.description.as_deref(), it.sensitive)).collect();
    assert_eq!(
        seen,
        [("a", Some("says \"}\" and é, 100% ${x}"), true), ("b", Some("first\n  second }\n"), false)]
    );
}

#[test]
fn json_files_are_read_in_all_of_their_forms() {
    let module = Module::new(&[(
        "a.tf.json",
        r#"{"variable": [{"x": {"type": "list(string)", "default": null, "description": "d", "sensitive": true}},
            {"y": [{"default": 0}]}], "output": {"o": {"value": 1}}, "//": "a comment"}"#,
    )]);
    let variables = module.variables(false);
    assert_eq!(variables.len(), 2);
    assert_eq!(variables[0].kind.as_deref(), Some("list(string)"));
    assert_eq!((variables[0].sensitive, variables[0].nullable), (true, false));
    assert!(variables[1].nullable);
}

/// The engines read each one as a separate block.
#[test]
fn duplicate_names_in_a_json_file_are_all_read() {
    let module = Module::new(&[
        ("a.tf.json", r#"{"variable": {"a": {}}, "variable": {"b": {}}, "output": 1, "variable": "x"}"#),
        ("b.tf.json", r#"[{"variable": [{"c": {}, "c": {}}, 1]}, "x", {"variable": {"d": [[], {}]}}]"#),
    ]);
    assert_eq!(module.names(false), ["a", "b", "c", "d"]);
}

#[test]
fn only_tofu_reads_tofu_files_and_prefers_them() {
    let module = Module::new(&[
        ("a.tf", "variable \"tf\" {}"),
        ("a.tofu", "variable \"tofu\" {}"),
        ("b.tf.json", r#"{"variable": {"tf_json": {}}}"#),
        ("b.tofu.json", r#"{"variable": {"tofu_json": {}}}"#),
        ("c.tf", "variable \"both\" {}"),
        ("Pulumi.yaml", "name: x"),
    ]);
    assert_eq!(module.names(false), ["both", "tf", "tf_json"]);
    assert_eq!(module.names(true), ["both", "tofu", "tofu_json"]);
}

#[test]
fn a_file_that_cannot_be_parsed_causes_a_warning_and_is_ignored() {
    let module = Module::new(&[
        ("broken.tf", "variable \"lost\" {\n"),
        ("broken.tf.json", "{"),
        ("good.tf", "\u{feff}variable \"kept\" {}\n"),
        (".hidden.tf", "variable \"hidden\" {}"),
        ("backup.tf~", "variable \"backup\" {}"),
        ("#emacs.tf#", "variable \"emacs\" {}"),
    ]);
    fs::write(module.folder.path().join("latin1.tf"), b"# \xe9").unwrap();
    fs::create_dir(module.folder.path().join("folder.tf")).unwrap();
    let declarations = module.declarations(false);
    assert_eq!(module.names(false), ["kept"]);
    assert_eq!(declarations.warnings.len(), 3, "{:?}", declarations.warnings);
    for name in ["broken.tf ", "broken.tf.json ", "latin1.tf "] {
        assert!(declarations.warnings.iter().any(|it| it.starts_with(name)), "{:?}", declarations.warnings);
    }
}

#[test]
fn overrides_replace_single_attributes() {
    let module = Module::new(&[
        ("a_override.tf", "variable \"v\" { default = 1 }\n"),
        ("main.tf", "variable \"v\" {\n  type = number\n  description = \"d\"\n}\n"),
    ]);
    let variable = module.variables(false).remove(0);
    assert_eq!((variable.kind.as_deref(), variable.description.as_deref()), (Some("number"), Some("d")));
    assert!(variable.nullable);
}

#[test]
fn declarations_of_extra_files_are_marked() {
    let module = Module::new(&[
        ("extra.tf", "variable \"x\" {}\noutput \"ox\" { value = 1 }\n"),
        ("main.tf", "variable \"m\" {}\noutput \"om\" { value = 1 }\n"),
    ]);
    let marked: Vec<_> =
        module.variables(false).into_iter().map(|it| (it.name, it.from_extra_file)).collect();
    assert_eq!(marked, [("m".to_owned(), false), ("x".to_owned(), true)]);
    let outputs = module.declarations(false).outputs_of(&["extra.tf".to_owned()]);
    assert_eq!(outputs.into_iter().collect::<Vec<_>>(), ["ox"]);
}

#[test]
fn the_checksum_changes_only_with_the_variables() {
    let checksum = |files: &[(&str, &str)], timestamp| {
        let declarations = Module::new(files).declarations(false);
        declarations.variable_set(Uuid::nil(), &[], timestamp).unwrap().checksum
    };
    let first = checksum(&[("a.tf", "variable \"a\" {}\nvariable \"b\" {}\n")], 1);
    assert_eq!(first, checksum(&[("x.tf", "variable \"b\" {}\n# more\nvariable \"a\" {\n}\n")], 2));
    assert_ne!(first, checksum(&[("a.tf", "variable \"a\" {}\nvariable \"b\" { type = any }\n")], 1));
    let none = Module::new(&[("a.tf", "locals {}")]).declarations(true);
    assert!(none.variable_set(Uuid::nil(), &[], 0).is_none());
}
