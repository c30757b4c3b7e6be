//! Checks the documentation against the program: links, generated pages, and the tests that it names; in `documents/`,
//! commands, settings, files, and messages.
//!
//! `UPDATE_DOCS=1 cargo test --test it documents::` generates `docs/cli.md` and the tables of `docs/settings.md` again.

mod mentions;
mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::world::HAWSER;

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn project(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// All Markdown pages for users and maintainers.
fn pages() -> Vec<PathBuf> {
    fn walk(folder: &Path, pages: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, pages);
            } else if path.extension().is_some_and(|suffix| suffix == "md") {
                pages.push(path);
            }
        }
    }
    let names = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md"];
    let mut pages: Vec<PathBuf> = names.iter().map(|name| root().join(name)).collect();
    walk(&root().join("docs"), &mut pages);
    walk(&root().join("examples"), &mut pages);
    pages
}

/// The lines of a page outside of code blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The contents of all blocks of shell commands, without the indentation of a list.
pub(crate) fn shell_blocks(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.map(|block| block.lines().map(str::trim_start).collect::<Vec<_>>().join("\n")).collect()
}

/// The targets of all links and images.
fn links(page: &str) -> Vec<String> {
    let mut links = Vec::new();
    // A link may be broken across lines.
    let text = prose(page).collect::<Vec<_>>().join("\n");
    for (start, end) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
        links.extend(text.split(start).skip(1).filter_map(|rest| Some(rest.split_once(end)?.0.to_owned())));
    }
    links
}

/// The anchors that GitHub gives the headings of a page.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut counts = BTreeMap::new();
    let headings = prose(page).filter(|line| line.starts_with('#'));
    let slug = |heading: &str| -> String {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let is_kept = |letter: &char| letter.is_alphanumeric() || "-_ ".contains(*letter);
        text.chars().filter(is_kept).map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    headings
        .map(slug)
        .map(|slug| {
            let count = counts.entry(slug.clone()).and_modify(|count| *count += 1).or_insert(0);
            if *count == 0 { slug } else { format!("{slug}-{count}") }
        })
        .collect()
}

#[test]
fn every_relative_link_has_a_target() {
    let mut broken = Vec::new();
    let mut checked = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let has_anchor = || anchors(&fs::read_to_string(&target).unwrap()).contains(anchor);
            if !target.exists() || !anchor.is_empty() && !has_anchor() {
                broken.push(format!("{}: {link}", page.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
    assert!(checked > 30, "found only {checked} links");
}

#[test]
fn links_and_anchors_are_parsed_as_github_does() {
    let page = "# A b\n## `c`, d!\n## A b\n[x](a.md#b) <img src=\"i.png\">\n```sh\n# no\n[y](z)\n```\n";
    assert_eq!(links(page), ["a.md#b", "i.png"]);
    assert_eq!(Vec::from_iter(anchors(page)), ["a-b", "a-b-1", "c-d"]);
}

/// Adds the help of a command and of its subcommands.
fn add_help(command: &[&str], page: &mut String) {
    let mut program = Command::new(HAWSER);
    let output = program.args(command).arg("--help").env_remove("COLUMNS").output().unwrap();
    assert!(output.status.success(), "{command:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let name = [&["hawser"], command].concat().join(" ");
    writeln!(page, "\n## {name}\n\n```text\n{}\n```", help.join("\n").trim_end()).unwrap();
    let commands = help.iter().skip_while(|line| **line != "Commands:").skip(1);
    for line in commands.take_while(|line| !line.is_empty()) {
        // A description that is too long continues on lines with a deeper indentation.
        match line.strip_prefix("  ").and_then(|line| line.split(' ').next()) {
            Some("" | "help") | None => {}
            Some(subcommand) => add_help(&[command, &[subcommand]].concat(), page),
        }
    }
}

#[test]
fn the_command_line_reference_is_the_help_of_the_program() {
    let mut page = String::from(
        "# Command line\n\nThe help of every command. This page is generated: change the help in `src/cli`, then run\n\
         `UPDATE_DOCS=1 cargo test --test it documents::`.\n",
    );
    add_help(&[], &mut page);
    assert!(page.contains("\n## hawser job cancel\n"), "{page}");
    assert_generated("docs/cli.md", &page);
}

/// Fails if a page is not what its generator returns, or writes it in update mode.
fn assert_generated(file: &str, page: &str) {
    let path = root().join(file);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "{file} is stale: run `UPDATE_DOCS=1 cargo test --test it documents::`");
}

/// `Section.Key` of every setting, from the schema.
pub(crate) fn setting_names() -> BTreeSet<String> {
    fn add(section: &Value, before: &str, found: &mut BTreeSet<String>) {
        match section["properties"].as_object() {
            None => _ = found.insert(before.trim_start_matches('.').to_owned()),
            Some(members) => {
                for (name, member) in members {
                    add(member, &format!("{before}.{name}"), found);
                }
            }
        }
    }
    let schema: Value = serde_json::from_str(&project("schema/appsettings.schema.json")).unwrap();
    let mut found = BTreeSet::new();
    add(&schema, "", &mut found);
    found
}

/// The sections of the settings page in their order, each with the page that explains more.
const SECTIONS: [(&str, &str); 10] = [
    ("Runner", "[Operations](operations.md)"),
    ("Server", "[Security](security.md)"),
    ("WorkingDirectory", "[Working directory](operations.md#working-directory)"),
    ("Engine", "[Engines, caches, and hooks](engines.md)"),
    ("Source", "[Engines, caches, and hooks](engines.md)"),
    ("HooksPreapproval", "[Policy](policy.md)"),
    ("Policy", "[Policy](policy.md)"),
    ("Audit", "[Audit log](policy.md#audit-log)"),
    ("JobLogStream", "[Masking](security.md#what-is-masked)"),
    ("Logging", "[Logs](operations.md#logs)"),
];

const TABLES: &str =
    "<!-- Everything below is generated from the schema: change `src/settings/model.rs`. -->\n";

/// The text of a description, and whether the setting is required.
fn description(property: &Value) -> (String, bool) {
    let text = property["description"].as_str().unwrap_or_default().replace('\n', " ");
    match text.strip_suffix(" Required, in this layer or another.") {
        Some(text) => (text.to_owned(), true),
        None => (text, false),
    }
}

fn default_of(property: &Value, is_required: bool) -> String {
    match &property["default"] {
        _ if is_required => "required".to_owned(),
        Value::Null => "not set".to_owned(),
        Value::Array(items) if items.len() > 3 => {
            format!("`{}`, `{}`, …", items[0], items[1]).replace('"', "")
        }
        Value::String(text) => format!("`{text}`"),
        value => format!("`{value}`"),
    }
}

fn type_of(name: &str, property: &Value) -> String {
    let types = property["type"].to_string();
    let words: Vec<String> =
        property["enum"].as_array().into_iter().flatten().map(Value::to_string).collect();
    let range = match (&property["minimum"], &property["maximum"]) {
        (Value::Number(least), Value::Number(most)) => format!(", {least} to {most}"),
        _ => String::new(),
    };
    match property["format"].as_str().unwrap_or_default() {
        _ if property["writeOnly"] == true => "secret".to_owned(),
        _ if !words.is_empty() => words.join(", ").replace('"', "`"),
        _ if types.contains("array") => match type_of(name, &property["items"]) {
            words if words.contains('`') => format!("list of {words}"),
            item => format!("list of {item}s"),
        },
        _ if types.contains("object") => {
            format!("map to {}", type_of(name, &property["additionalProperties"]))
        }
        _ if types.contains("boolean") => "boolean".to_owned(),
        _ if types.contains("integer") && name.ends_with("Seconds") => format!("seconds{range}"),
        _ if types.contains("integer") && name.ends_with("Bytes") => format!("bytes{range}"),
        _ if types.contains("integer") => format!("integer{range}"),
        "uuid" => "GUID".to_owned(),
        "uri" => "URL".to_owned(),
        "path" => "path".to_owned(),
        "regex" => "regular expression".to_owned(),
        _ => "string".to_owned(),
    }
}

fn add_rows(before: &str, section: &Value, page: &mut String) {
    for (name, property) in section["properties"].as_object().unwrap() {
        let key = format!("{before}.{name}");
        if property.get("properties").is_some() {
            add_rows(&key, property, page);
            continue;
        }
        let (text, is_required) = description(property);
        let (default, kind) = (default_of(property, is_required), type_of(name, property));
        writeln!(page, "| `{key}` | {default} | {kind} | {} |", text.replace('|', "\\|")).unwrap();
    }
}

#[test]
fn the_tables_of_the_settings_page_are_generated_from_the_schema() {
    let schema: Value = serde_json::from_str(&project("schema/appsettings.schema.json")).unwrap();
    let named: BTreeSet<&str> = SECTIONS.iter().map(|(name, _)| *name).collect();
    let sections = schema["properties"].as_object().unwrap();
    let existing: BTreeSet<&str> =
        sections.keys().map(String::as_str).filter(|name| *name != "$schema").collect();
    assert_eq!(named, existing);
    let written = project("docs/settings.md");
    let (introduction, _) = written.split_once(TABLES).expect("the marker of the generated part");
    let mut page = format!("{introduction}{TABLES}");
    for (name, more) in SECTIONS {
        let text = description(&sections[name]).0;
        write!(page, "\n## {name}\n\n{text} See {more}.\n\n").unwrap();
        page.push_str("| Setting | Default | Type | Description |\n|---|---|---|---|\n");
        add_rows(name, &sections[name], &mut page);
    }
    assert_generated("docs/settings.md", &page);
}

#[test]
fn the_tests_behind_the_promises_exist() {
    fn sources(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, text);
            } else if path.extension().is_some_and(|suffix| suffix == "rs") {
                text.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut tests = String::new();
    sources(&root().join("tests/it"), &mut tests);
    let page = project("docs/development.md");
    let table = page.split("## Tests behind the promises").nth(1).unwrap().split("\n## ").next().unwrap();
    let names: Vec<&str> = table.split('`').skip(1).step_by(2).collect();
    assert!(names.len() > 10, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !tests.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "not in tests/it: {missing:?}");
}

#[test]
fn the_readme_is_short_and_the_pages_agree_on_the_rust_version() {
    let lines = project("README.md").lines().count();
    assert!(lines <= 150, "the README has {lines} lines");
    let mut found = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for rest in
            text.split("Rust ").skip(1).filter(|rest| rest.starts_with(|it: char| it.is_ascii_digit()))
        {
            found += 1;
            let version = rest.split(' ').next().unwrap();
            assert_eq!(version, env!("CARGO_PKG_RUST_VERSION"), "{}", page.display());
        }
    }
    assert!(found >= 2, "{found}");
}

#[test]
fn ci_runs_the_commands_of_the_readme() {
    let (readme, ci) = (project("README.md"), project(".ci/run"));
    assert!(readme.contains("cargo run --release -- local --yes"));
    assert!(ci.contains("cargo run --locked --release -- local --yes"));
    assert!(readme.contains("\ncargo test\n") && ci.contains("\ncargo test --locked\n"));
}

#[test]
fn the_image_contains_all_files_that_the_sources_include() {
    fn included(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                included(&path, found);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                let names = text.split("include_str!(\"").skip(1).map(|rest| rest.split('"').next().unwrap());
                found.extend(names.map(|name| folder.join(name).canonicalize().unwrap()));
            }
        }
    }
    let root = root().canonicalize().unwrap();
    let mut needed = vec![root.join("Cargo.toml"), root.join("Cargo.lock"), root.join("LICENSE")];
    included(&root.join("src"), &mut needed);
    included(&root.join("crates"), &mut needed);
    assert!(needed.len() > 6, "{needed:?}");
    let rules = project(".dockerignore");
    let allowed: Vec<_> = rules.lines().filter_map(|line| Some(root.join(line.strip_prefix('!')?))).collect();
    for file in needed.iter().chain(&allowed) {
        assert!(file.exists(), "{}", file.display());
        assert!(
            allowed.iter().any(|path| file.starts_with(path)),
            ".dockerignore excludes {}",
            file.display()
        );
    }
}
