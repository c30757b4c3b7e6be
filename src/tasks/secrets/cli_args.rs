//! Variables of a module that are set by arguments in the environment: `TF_CLI_ARGS` and `TF_CLI_ARGS_plan`.

/// The prefix of environment variables that contain arguments for an engine.
pub(super) const VARIABLE: &str = "TF_CLI_ARGS";

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments {
    /// Name and value of each `-var`.
    pub(super) variables: Vec<(String, String)>,
    /// The files of `-var-file`.
    pub(super) files: Vec<String>,
}

impl Arguments {
    pub(super) fn of(text: &str) -> Self {
        let mut found = Self::default();
        let mut words = words(text).into_iter();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else { continue };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            if !["var", "var-file"].contains(&name) {
                continue;
            }
            let Some(value) = value.or_else(|| words.next()) else { break };
            if name == "var-file" {
                found.files.push(value);
            } else if let Some((name, value)) = value.split_once('=') {
                found.variables.push((name.trim().to_owned(), value.to_owned()));
            }
        }
        found
    }
}

/// Splits a text into words like Terraform, which handles quotes and backslashes like a shell.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match (char, quote) {
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(chars.next()),
            (end, Some(open)) if end == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (space, None) if space.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_and_files_are_found_in_all_notations() {
        let found = Arguments::of(
            r#"-var a=one --var 'b=two words' "-var=c=th\"ree" -input=false -var-file x.tfvars -var d -var "e=\\" --var-file=y'z'"#,
        );
        let pairs = [("a", "one"), ("b", "two words"), ("c", "th\"ree"), ("e", "\\")];
        assert_eq!(found.variables, pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(found.files, ["x.tfvars", "yz"]);
        for rubbish in ["", "-var", "-var=", "'", "\\", "a b -varx=y"] {
            assert_eq!(Arguments::of(rubbish), Arguments::default(), "{rubbish}");
        }
    }
}
