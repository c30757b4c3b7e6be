//! The commands, options, settings, and files that the pages mention exist.

use super::*;

/// The text of all code blocks of shell commands, line by line, and of all code spans.
fn code(page: &str) -> Vec<String> {
    let mut found: Vec<String> =
        shell_blocks(page).iter().flat_map(|block| block.lines()).map(str::to_owned).collect();
    // A span may be broken across lines.
    let text = prose(page).collect::<Vec<_>>().join(" ");
    found.extend(text.split('`').skip(1).step_by(2).map(str::to_owned));
    found
}

/// Each command with its help, from the reference, which a test compares with the program.
fn commands() -> BTreeMap<String, String> {
    let page = project("docs/cli.md");
    let sections = page.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap());
    sections.map(|(name, help)| (name.to_owned(), help.to_owned())).collect()
}

/// What is wrong with a command line of this program.
fn problem(line: &str, commands: &BTreeMap<String, String>, settings: &BTreeSet<String>) -> Option<String> {
    let words = line.split([' ', '\'']).take_while(|word| !["#", "|", ">", "&&", ";", "&"].contains(word));
    let (mut name, mut help) = ("hawser".to_owned(), commands.get("hawser")?);
    for word in words.skip(1) {
        let longer = format!("{name} {word}");
        if let Some(found) = commands.get(&longer) {
            (name, help) = (longer, found);
        } else if help.contains("\nCommands:\n") && !word.starts_with('-') {
            return Some(format!("{longer} is not a command"));
        } else if let Some(option) = word.strip_prefix("--") {
            let option = option.split('=').next().unwrap_or(option);
            let is_known = match option.replace(':', ".") {
                setting if setting.contains('.') => settings.contains(&setting),
                _ => {
                    help.lines().any(|line| line.split([' ', ',']).any(|word| word == format!("--{option}")))
                }
            };
            if !is_known && !option.is_empty() {
                return Some(format!("{name} has no option --{option}"));
            }
        }
    }
    None
}

/// The code on all pages that is to be kept, each with its page.
fn mentioned(keep: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let page = page.strip_prefix(root()).unwrap().display().to_string();
        found.extend(code(&text).into_iter().filter(|code| keep(code)).map(|code| (page.clone(), code)));
    }
    found
}

#[test]
fn the_commands_and_options_on_the_pages_exist() {
    let (commands, settings) = (commands(), setting_names());
    let found = mentioned(|code| code.starts_with("hawser "));
    assert!(found.len() > 50, "{found:#?}");
    // The process of a step is not a command for users.
    let found = found.into_iter().filter(|(_, code)| !code.starts_with("hawser supervise"));
    let wrong: Vec<String> = found
        .filter_map(|(page, code)| Some(format!("{page}: {code}: {}", problem(&code, &commands, &settings)?)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for wrong in
        ["hawser lokal", "hawser job aply .", "hawser local --plam", "hawser run --Runner:Instanze=x"]
    {
        assert!(problem(wrong, &commands, &settings).is_some(), "{wrong}");
    }
}

#[test]
fn the_settings_on_the_pages_exist() {
    /// Read for the sake of old files.
    const OLD: [&str; 3] = ["Logging.BatchSizeLimit", "Logging.PeriodSeconds", "Logging.EarlyEmitFirstEvent"];
    let settings = setting_names();
    let is_section = |word: &str| SECTIONS.iter().any(|(name, _)| *name == word);
    let is_name = |code: &str| {
        let is_text = code.chars().all(|letter| letter.is_ascii_alphanumeric() || "._*".contains(letter));
        is_text && code.replace("__", ".").split_once('.').is_some_and(|(first, _)| is_section(first))
    };
    let found = mentioned(is_name);
    assert!(found.len() > 80, "{found:#?}");
    for (page, code) in found {
        let name = code.replace("__", ".");
        let name = name.trim_end_matches(|it: char| it.is_ascii_digit()).trim_end_matches('.');
        let exists = match name.strip_suffix('*') {
            Some(start) => settings.iter().any(|setting| setting.starts_with(start)),
            // A section within a section.
            None => settings.iter().any(|it| it == name || it.starts_with(&format!("{name}."))),
        };
        assert!(exists || OLD.contains(&name), "{page} mentions {code}, which is not a setting");
    }
}

#[test]
fn the_files_on_the_pages_exist() {
    const FOLDERS: [&str; 7] = ["src/", "crates/", "tests/", "docs/", "examples/", "schema/", ".ci/"];
    let found = mentioned(|code| code.split(' ').any(|word| FOLDERS.iter().any(|it| word.starts_with(it))));
    assert!(found.len() > 20, "{found:#?}");
    for (page, code) in found {
        for word in code.split(' ').filter(|word| FOLDERS.iter().any(|it| word.starts_with(it))) {
            assert!(root().join(word).exists(), "{page} mentions {word}, which does not exist");
        }
    }
}
