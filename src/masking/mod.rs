//! Masks secrets in text that leaves the host.
//!
//! ```text
//! settings, environment, requests, outputs ─ learn ─→ SecretStore ─→ one Masker per job ─→ logs, faults, runtime log
//! ```
//!
//! [`Rules`] define what counts as a secret: names, a minimum length, and patterns. The [`SecretStore`] holds the known values:
//! those of the runner while it runs, and those of each job while it is in use. A [`Masker`] is compiled from the secrets of
//! one job, each in all its encodings.

mod encodings;
mod fault_texts;
mod masker;
mod rules;
mod scanner;
mod secret_store;
#[cfg(test)]
mod tests;
pub(crate) mod url_credentials;

pub use masker::{MASK, Masker};
pub(crate) use masker::{Spans, StreamCursor};
pub use rules::{Rules, RulesError};
pub use secret_store::{JobSecrets, SecretStore};
