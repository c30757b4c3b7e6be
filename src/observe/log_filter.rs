//! Filters the events of the runtime log by `Logging.LogLevel`.
//!
//! A category is a module path, in the syntax of Rust (`hawser::shipping`) or .NET (`Hawser.Shipping`), case-insensitive, with
//! or without underscores. It applies to everything below it. The longest match counts, or else `Default`, which is
//! Information if it is not set. Other crates log at most at Warning, regardless of `Default`, because at Debug they flood the
//! log and some log what they send. To see their events, set a category for the crate.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::sync::Mutex;

use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterFn, filter_fn};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, fmt};

use super::masked_writer::MaskedWriters;
use crate::masking::SecretStore;
use crate::settings::model::{Level, LoggingSettings};

const OURS: &str = "hawser";
const DEFAULT: &str = "default";

/// Writes events to the file or to stdout: time, level, module, message, with the secrets in the store masked.
pub fn init(
    logging: &LoggingSettings,
    file: Option<File>,
    secret_store: SecretStore,
) -> Result<(), TryInitError> {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colors = file.is_none() && !no_color && io::stdout().is_terminal();
    let output = match file {
        Some(file) => BoxMakeWriter::new(Mutex::new(file)),
        None => BoxMakeWriter::new(io::stdout),
    };
    let layer = fmt::layer()
        .with_writer(MaskedWriters::new(output, secret_store))
        .with_ansi(colors)
        .with_filter(Levels::new(logging).into_filter());
    tracing_subscriber::registry().with(layer).try_init()
}

#[derive(Debug, Clone)]
pub struct Levels {
    default: LevelFilter,
    /// Longest category first.
    categories: Vec<(String, LevelFilter)>,
}

impl Levels {
    pub fn new(logging: &LoggingSettings) -> Self {
        let mut default = LevelFilter::INFO;
        let mut categories = Vec::new();
        for (category, level) in &logging.log_level {
            match normalized(category) {
                name if name == DEFAULT => default = filter_of(*level),
                name => categories.push((name, filter_of(*level))),
            }
        }
        categories.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self { default, categories }
    }

    /// The most verbose level that this target may write.
    pub fn of(&self, target: &str) -> LevelFilter {
        let target = normalized(target);
        let named = self.categories.iter().find(|(category, _)| is_within(&target, category));
        match named {
            Some((_, level)) => *level,
            None if is_within(&target, OURS) => self.default,
            None => self.default.min(LevelFilter::WARN),
        }
    }

    /// The answer depends only on the call site, so tracing asks once per call site and caches it.
    fn into_filter(self) -> FilterFn<impl Fn(&Metadata<'_>) -> bool> {
        let most_talkative = self.categories.iter().map(|(_, level)| *level).chain([self.default]).max();
        let filter = filter_fn(move |metadata| *metadata.level() <= self.of(metadata.target()));
        filter.with_max_level_hint(most_talkative.unwrap_or(LevelFilter::OFF))
    }
}

/// Converts `hawser::shipping::step_stream` and `Hawser.Shipping.StepStream` to the same text. Other crates of the workspace
/// count as modules: `hawser_signalr` is `hawser::signalr`.
fn normalized(category: &str) -> String {
    let category = category.replace("::", ".").to_lowercase();
    let category = match category.strip_prefix("hawser_") {
        Some(rest) => format!("{OURS}.{rest}"),
        None => category,
    };
    category.replace('_', "")
}

fn is_within(target: &str, category: &str) -> bool {
    target.strip_prefix(category).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn filter_of(level: Level) -> LevelFilter {
    match level {
        Level::Trace => LevelFilter::TRACE,
        Level::Debug => LevelFilter::DEBUG,
        Level::Information => LevelFilter::INFO,
        Level::Warning => LevelFilter::WARN,
        // tracing has no level above error.
        Level::Error | Level::Critical => LevelFilter::ERROR,
        Level::None => LevelFilter::OFF,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(pairs: &[(&str, Level)]) -> Levels {
        let log_level = pairs.iter().map(|(name, level)| ((*name).to_owned(), *level)).collect();
        Levels::new(&LoggingSettings { log_level })
    }

    #[test]
    fn the_default_is_information_for_hawser_and_warning_for_other_crates() {
        let levels = levels(&[]);
        assert_eq!(levels.of("hawser::hub"), LevelFilter::INFO);
        for other in ["hyper::client", "reqwest::connect", "rustls", "tungstenite", "hawserish"] {
            assert_eq!(levels.of(other), LevelFilter::WARN, "{other}");
        }
    }

    #[test]
    fn the_longest_matching_category_counts_in_either_syntax() {
        let levels = levels(&[
            ("Default", Level::Warning),
            ("Hawser", Level::Error),
            ("hawser::hub", Level::Debug),
            ("Hawser.Hub.LineState", Level::Trace),
            ("hawser_signalr", Level::Warning),
        ]);
        assert_eq!(levels.of("hawser"), LevelFilter::ERROR);
        assert_eq!(levels.of("hawser::hub"), LevelFilter::DEBUG);
        assert_eq!(levels.of("hawser::hub::codec"), LevelFilter::DEBUG);
        assert_eq!(levels.of("hawser_hub::codec"), LevelFilter::DEBUG);
        assert_eq!(levels.of("hawser_signalr::codec"), LevelFilter::WARN);
        assert_eq!(levels.of("hawser::hubris"), LevelFilter::ERROR);
        assert_eq!(levels.of("hawser::hub::line_state"), LevelFilter::TRACE);
        assert_eq!(levels.of("hyper"), LevelFilter::WARN);
    }

    #[test]
    fn other_crates_need_their_own_category_and_respect_a_silent_default() {
        let verbose = levels(&[("Default", Level::Trace), ("hyper", Level::Debug)]);
        assert_eq!(verbose.of("hawser::hub"), LevelFilter::TRACE);
        assert_eq!(verbose.of("hyper::client"), LevelFilter::DEBUG);
        assert_eq!(verbose.of("h2::codec"), LevelFilter::WARN);
        let silent = levels(&[("default", Level::None)]);
        assert_eq!(silent.of("hyper"), LevelFilter::OFF);
        assert_eq!(silent.of("hawser"), LevelFilter::OFF);
    }

    #[test]
    fn critical_still_shows_errors() {
        assert_eq!(levels(&[("Default", Level::Critical)]).of("hawser"), LevelFilter::ERROR);
    }
}
