//! Colours, or none.

use console::Style;

/// Paints words, or leaves them as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    colour: bool,
}

impl Paint {
    pub fn new(colour: bool) -> Self {
        Self { colour }
    }

    /// Whether there is anything but plain characters to be had.
    pub fn fancy(self) -> bool {
        self.colour
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

    pub fn magenta(self, text: &str) -> String {
        self.with(Style::new().magenta(), text)
    }

    pub fn red(self, text: &str) -> String {
        self.with(Style::new().red(), text)
    }

    pub fn cyan(self, text: &str) -> String {
        self.with(Style::new().cyan(), text)
    }

    /// The decision was made by whoever made this `Paint`, not by what stdout happens to be.
    fn with(self, style: Style, text: &str) -> String {
        if self.colour && !text.is_empty() {
            style.force_styling(true).apply_to(text).to_string()
        } else {
            text.to_owned()
        }
    }
}
