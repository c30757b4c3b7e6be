//! Colors for a terminal.

use console::Style;

/// Colors text, or returns it unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    color: bool,
}

impl Paint {
    pub fn new(color: bool) -> Self {
        Self { color }
    }

    pub fn bold(self, text: &str) -> String {
        self.with(Style::new().bold(), text)
    }

    pub fn dim(self, text: &str) -> String {
        self.with(Style::new().dim(), text)
    }

    pub fn green(self, text: &str) -> String {
        self.with(Style::new().green(), text)
    }

    pub fn yellow(self, text: &str) -> String {
        self.with(Style::new().yellow(), text)
    }

    pub fn red(self, text: &str) -> String {
        self.with(Style::new().red(), text)
    }

    pub fn cyan(self, text: &str) -> String {
        self.with(Style::new().cyan(), text)
    }

    /// Forces the style because `console` would look at stdout, and `color` has already been decided.
    fn with(self, style: Style, text: &str) -> String {
        if self.color && !text.is_empty() {
            style.force_styling(true).apply_to(text).to_string()
        } else {
            text.to_owned()
        }
    }
}
