//! The layers of the crate, and a check that every import points downward.
//!
//! The table below is the diagram in ARCHITECTURE.md. The tests fail with the offending line when a module uses one that
//! stands above it, and when the diagram and the table differ.

#![expect(clippy::unwrap_used, reason = "a helper of tests may panic")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// From top to bottom: what a layer is for, and its modules. A module may use modules of lower layers, and in its own layer
/// those to its right.
const LAYERS: &[(&str, &[&str])] = &[
    ("commands", &["cli", "local", "clean"]),
    ("wiring: start, recover, drain", &["runner"]),
    ("endpoint, token, hints for connection errors", &["connect"]),
    ("coordination", &["intake", "scheduler", "executor", "shipping"]),
    ("what each task means, which secrets it has", &["tasks"]),
    ("tools of the tasks", &["policy", "engines", "workspace", "sources", "script"]),
    ("processes and durable state", &["supervisor", "audit", "step", "observe"]),
    ("vocabulary", &["masking", "settings"]),
    ("foundations: files, locks, processes, URLs", &["base"]),
];

/// The other packages of the workspace: which of them each uses, and which modules of the product use it (all, if none).
const CRATES: &[(&str, &[&str], &[&str])] = &[
    ("contract", &[], &[]),
    ("signalr", &[], &["runner", "connect", "intake", "scheduler", "executor", "shipping"]),
    ("dev-server", &["contract", "signalr"], &["cli", "local"]),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A smaller rank is further up.
fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().flat_map(|(_, modules)| *modules).position(|name| *name == module)
}

#[test]
fn every_import_points_downward() {
    let mut violations = Vec::new();
    for (file, module) in sources() {
        let text = fs::read_to_string(&file).unwrap();
        for Use { target, line } in uses(&text, depth(&file)) {
            let allowed = match rank(&target) {
                Some(used) => target == module || rank(&module).is_some_and(|user| user < used),
                // A name that is not a module: a macro, or an item of the crate's root.
                None => true,
            };
            if !allowed {
                let source = text.lines().nth(line - 1).unwrap_or_default().trim();
                let shown = file.strip_prefix(root()).unwrap().display();
                violations.push(format!("{shown}:{line}: {module} may not use {target}: {source}"));
            }
        }
    }
    assert!(violations.is_empty(), "imports that point upward:\n{}", violations.join("\n"));
}

#[test]
fn every_module_has_a_layer() {
    let text = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let declared: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.trim().trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    let listed: BTreeSet<&str> = LAYERS.iter().flat_map(|(_, modules)| *modules).copied().collect();
    assert_eq!(declared, listed);
}

#[test]
fn the_other_crates_are_used_where_the_table_says() {
    for (name, uses, users) in CRATES {
        let manifest = fs::read_to_string(root().join(format!("crates/{name}/Cargo.toml"))).unwrap();
        let used: Vec<&str> = manifest
            .lines()
            .filter_map(|line| line.strip_prefix("hawser-")?.split(['.', ' ']).next())
            .collect();
        assert_eq!(used, *uses, "crates/{name}/Cargo.toml");
        let identifier = format!("hawser_{}", name.replace('-', "_"));
        for (file, module) in sources() {
            let text = fs::read_to_string(&file).unwrap();
            let is_used = without_tests(text.parse().unwrap()).iter().any(|token| token.text == identifier);
            assert!(
                !is_used || users.is_empty() || users.contains(&module.as_str()),
                "{module} may not use {identifier}: {}",
                file.display()
            );
        }
    }
}

#[test]
fn the_diagram_in_the_documentation_is_the_table() {
    let mut diagram = String::from("```text\n");
    for (purpose, modules) in LAYERS {
        writeln!(diagram, "{:<52}{purpose}", modules.join(" → ")).unwrap();
    }
    for (name, uses, _) in CRATES {
        let uses = if uses.is_empty() { "a leaf".to_owned() } else { format!("uses {}", uses.join(", ")) };
        writeln!(diagram, "{:<52}{uses}", format!("crates/{name}")).unwrap();
    }
    diagram.push_str("```\n");
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(page.contains(&diagram), "ARCHITECTURE.md lacks this diagram:\n{diagram}");
}

#[test]
fn a_forbidden_import_is_found_wherever_it_stands() {
    let found = |text: &str| uses(text, 1).into_iter().map(|it| (it.target, it.line)).collect::<Vec<_>>();
    let one = |target: &str, line| vec![(target.to_owned(), line)];
    assert_eq!(found("use crate::runner::run;"), one("runner", 1));
    assert_eq!(found("\nuse crate::{runner, cli::main};"), [("runner".to_owned(), 2), ("cli".to_owned(), 2)]);
    assert_eq!(found("fn f() {\n    g(crate::runner::X)\n}"), one("runner", 2));
    assert_eq!(found("fn f() { info!(\"{}\", crate::runner::X) }"), one("runner", 1));
    assert_eq!(found("use super::runner::run;"), one("runner", 1));
    assert_eq!(found("mod inner { use super::super::runner::run; use super::near; }"), one("runner", 1));
    assert_eq!(found("#[cfg(test)]\nmod tests { use crate::runner::run; }\nuse crate::cli;"), one("cli", 3));
    assert_eq!(found("// crate::runner\nconst TEXT: &str = \"crate::runner\";"), []);
}

/// Every file of the product that is not only for tests, with its module.
fn sources() -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, into);
            } else if path.extension().is_some_and(|it| it == "rs") && path.file_name().unwrap() != "tests.rs"
            {
                into.push(path);
            }
        }
    }
    let src = root().join("src");
    let mut files = Vec::new();
    walk(&src, &mut files);
    files.sort();
    let module = |file: &Path| {
        let first = file.strip_prefix(&src).unwrap().iter().next().unwrap().to_str().unwrap();
        first.trim_end_matches(".rs").to_owned()
    };
    let of_a_module = files.into_iter().map(|file| (file.clone(), module(&file)));
    of_a_module.filter(|(_, module)| !["lib", "main"].contains(&module.as_str())).collect()
}

/// How many modules a file is below the root of the crate.
fn depth(file: &Path) -> usize {
    let path = file.strip_prefix(root().join("src")).unwrap();
    path.components().count() - usize::from(path.ends_with("mod.rs"))
}

/// A module of the crate's root that is named somewhere.
struct Use {
    target: String,
    line: usize,
}

/// One token, with groups laid out flat.
struct Flat {
    text: String,
    line: usize,
    /// How many `mod … { }` blocks of the file are around it.
    nested: usize,
}

/// All that `crate::…` and `super::…` name in the root of the crate, in a file whose module is `depth` below it.
fn uses(text: &str, depth: usize) -> Vec<Use> {
    let tokens = without_tests(text.parse().unwrap());
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let mut up = 0;
        let mut next = at;
        let is = |index: usize, text: &str| tokens.get(index).is_some_and(|token| token.text == text);
        while is(next, "super") && is(next + 1, "::") {
            up += 1;
            next += 2;
        }
        let reaches_root = if is(at, "crate") && is(at + 1, "::") {
            next = at + 2;
            true
        } else {
            up > 0 && up == depth + tokens[at].nested
        };
        if reaches_root && is(next, "{") {
            let mut open = 0;
            for index in next..tokens.len() {
                match tokens[index].text.as_str() {
                    "{" => open += 1,
                    "}" => open -= 1,
                    _ => {}
                }
                if open == 0 {
                    break;
                }
                if open == 1 && ["{", ","].contains(&tokens[index].text.as_str()) && !is(index + 1, "}") {
                    let token = &tokens[index + 1];
                    found.push(Use { target: token.text.clone(), line: token.line });
                }
            }
        } else if reaches_root && let Some(token) = tokens.get(next) {
            found.push(Use { target: token.text.clone(), line: token.line });
        }
        at = next.max(at + 1);
    }
    found
}

/// The tokens of a file without its items for tests, its comments and its texts.
fn without_tests(stream: TokenStream) -> Vec<Flat> {
    fn flatten(stream: TokenStream, nested: usize, into: &mut Vec<Flat>) {
        let mut tokens = stream.into_iter().peekable();
        // `mod name` was just passed, so that a brace opens a module.
        let mut declares = 0;
        while let Some(token) = tokens.next() {
            let line = token.span().start().line;
            let mut put = |text: String| into.push(Flat { text, line, nested });
            match token {
                TokenTree::Ident(name) => {
                    declares = if name == "mod" { 1 } else { declares + usize::from(declares == 1) };
                    put(name.to_string());
                    continue;
                }
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    let attribute = tokens.peek().map(ToString::to_string).unwrap_or_default();
                    if attribute.replace(' ', "").starts_with("[cfg(test") {
                        // The item ends with a semicolon or with its block.
                        for token in tokens.by_ref() {
                            let ends = match &token {
                                TokenTree::Punct(mark) => mark.as_char() == ';',
                                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                                _ => false,
                            };
                            if ends {
                                break;
                            }
                        }
                    }
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && mark.spacing() == Spacing::Joint => {
                    tokens.next();
                    put("::".to_owned());
                }
                TokenTree::Punct(mark) => put(mark.to_string()),
                TokenTree::Group(group) => {
                    let (open, close) = match group.delimiter() {
                        Delimiter::Brace => ("{", "}"),
                        Delimiter::Bracket => ("[", "]"),
                        Delimiter::Parenthesis => ("(", ")"),
                        Delimiter::None => ("", ""),
                    };
                    let nested = nested + usize::from(open == "{" && declares == 2);
                    put(open.to_owned());
                    flatten(group.stream(), nested, into);
                    into.push(Flat { text: close.to_owned(), line: group.span_close().start().line, nested });
                }
                TokenTree::Literal(_) => put("\"\"".to_owned()),
            }
            declares = 0;
        }
    }
    let mut flat = Vec::new();
    flatten(stream, 0, &mut flat);
    flat
}
