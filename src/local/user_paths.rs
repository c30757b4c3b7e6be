//! Names files in messages as the user knows them. The engine runs in a checkout of a snapshot, whose paths mean nothing to
//! the user.

use std::path::{Path, PathBuf};

use hawser_contract::{Fault, Outcome};

use super::view::Event;

#[derive(Debug)]
pub struct UserPaths {
    /// The user's directory in the checkout, and where it really is.
    pub checkout: String,
    pub directory: PathBuf,
    /// The directory as the user named it.
    pub subject: String,
    /// The URL of the snapshot.
    pub snapshot: String,
}

impl UserPaths {
    /// Rewrites the texts of an event.
    pub fn in_event(&self, event: Event) -> Event {
        match event {
            Event::Line { task, level, text } => Event::Line { task, level, text: self.in_text(&text) },
            Event::Ended(task, Outcome::Faulted(fault)) => {
                let (message, details) = (self.in_text(&fault.message), self.in_text(&fault.details));
                Event::Ended(task, Outcome::Faulted(Fault { message, details, ..fault }))
            }
            other => other,
        }
    }

    /// A file that the user has is shown relative to the user's directory, and the directory itself by its name. Other paths
    /// stay as they are: the file exists in the checkout only, or the path is part of a command to paste.
    fn in_text(&self, text: &str) -> String {
        let cloning = format!("Cloning a snapshot of {}", self.subject);
        let text = text.replace(&format!("Cloning {}", self.snapshot), &cloning);
        let mut parts = text.split(self.checkout.as_str());
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for after in parts {
            let is_whole = after.chars().next().is_none_or(ends_path);
            // The argument of `cd` is part of a command to paste.
            if is_whole
                && !shown.ends_with(['`', '='])
                && !shown.trim_end_matches(['\'', '"']).ends_with("cd ")
            {
                shown.push_str(&self.subject);
                shown.push_str(after);
            } else if let Some(below) = after.strip_prefix('/').filter(|below| self.is_of_user(below)) {
                shown.push_str(below);
            } else {
                shown.push_str(&self.checkout);
                shown.push_str(after);
            }
        }
        shown
    }

    /// Whether a text starts with the path of a file in the user's directory.
    fn is_of_user(&self, text: &str) -> bool {
        let path = text.split(ends_path).next().unwrap_or_default().trim_end_matches('.');
        !path.is_empty() && self.directory.join(Path::new(path)).exists()
    }
}

fn ends_path(character: char) -> bool {
    character.is_whitespace() || "\"'`:;,()[]{}<>\u{1b}".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_user_are_shown_relative_to_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("main.tf"), "").unwrap();
        let paths = UserPaths {
            checkout: "/data/work/module/home/user/infra".to_owned(),
            directory: directory.path().to_owned(),
            subject: "infra".to_owned(),
            snapshot: "file:///data/source.git".to_owned(),
        };
        for (text, shown) in [
            ("terraform 1.11.4 in /data/work/module/home/user/infra", "terraform 1.11.4 in infra"),
            ("/data/work/module/home/user/infra/main.tf:3: no", "main.tf:3: no"),
            ("see '/data/work/module/home/user/infra/main.tf'.", "see 'main.tf'."),
            ("\u{1b}[1m/data/work/module/home/user/infra/main.tf\u{1b}[0m", "\u{1b}[1mmain.tf\u{1b}[0m"),
            ("/data/work/module/home/user/infra\nnext", "infra\nnext"),
            ("ls /data/work/module/home/user/infra; exit", "ls infra; exit"),
            ("Cloning file:///data/source.git", "Cloning a snapshot of infra"),
        ] {
            assert_eq!(paths.in_text(text), shown);
        }
        for kept in [
            "`cd /data/work/module/home/user/infra && terraform state list`",
            "`cd '/data/work/module/home/user/infra' && terraform state list`",
            "terraform -chdir=/data/work/module/home/user/infra state list",
            "/data/work/module/home/user/infra/.snapcd/plan.out",
            "/data/work/module/home/user/infra/",
            "/data/work/module/home/user/infrastructure/main.tf",
            "nothing",
        ] {
            assert_eq!(paths.in_text(kept), kept);
        }
    }
}
