//! The messages that the troubleshooting page quotes are those of the program.

use super::*;

/// The text of all sources without their tests, with strings on one line.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|suffix| suffix == "rs") && !path.ends_with("tests.rs") {
            let source = fs::read_to_string(path).unwrap();
            let product = source.split("\n#[cfg(test)]\nmod tests").next().unwrap();
            let lines: Vec<&str> = product.split("\\\n").map(str::trim_start).collect();
            text.push_str(&lines.join(""));
        }
    }
    text
}

#[test]
fn the_messages_on_the_troubleshooting_page_are_those_of_the_program() {
    let sources = sources(&root().join("src")) + &sources(&root().join("crates"));
    let page = project("docs/troubleshooting.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let (mut is_message, mut checked, mut missing) = (false, 0, Vec::new());
    for row in rows {
        let cell = row.split(" | ").next().unwrap();
        if row.ends_with("| Remedy |") || cell.starts_with("Where") {
            is_message = cell == "Message";
            continue;
        }
        let quoted: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!is_message || !quoted.is_empty(), "no message in {cell:?}");
        // A text that varies is between two parts.
        for part in quoted.iter().filter(|_| is_message).flat_map(|quoted| quoted.split('…')) {
            checked += 1;
            if !sources.contains(part.trim_matches([' ', '.', ','])) {
                missing.push(part);
            }
        }
    }
    assert!(missing.is_empty(), "not in the sources: {missing:#?}");
    assert!(checked > 80, "checked only {checked}");
}
