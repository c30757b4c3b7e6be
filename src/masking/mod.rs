//! Nothing secret leaves the host in a text.
//!
//! ```text
//! settings, environment, requests, outputs ─ learn ─→ SecretStore ─→ one Masker per job ─→ logs, faults, runtime log
//! ```
//!
//! [`Rules`] say what counts as a secret: which names, how long a value must be, which patterns. The [`SecretStore`] holds the
//! values that are known now: the runner's own for as long as it runs, and those of each job for as long as anybody
//! works on it. A [`Masker`] is the compiled form of what one job must not say: each secret in all its disguises.

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
