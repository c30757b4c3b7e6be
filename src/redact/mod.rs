//! Nothing secret leaves the host in a text.
//!
//! ```text
//! settings, environment, requests, outputs ─ learn ─→ Vault ─→ one Redactor per job ─→ logs, faults, runtime log
//! ```
//!
//! [`Rules`] say what counts as a secret: which names, how long a value must be, which patterns. The [`Vault`] holds the
//! values that are known now: the runner's own for as long as it runs, and those of each job for as long as anybody
//! works on it. A [`Redactor`] is the compiled form of what one job must not say: each secret in all its disguises.

mod faults;
mod forms;
pub(crate) mod gather;
mod redactor;
mod rules;
pub mod runtime_log;
mod scanner;
#[cfg(test)]
mod tests;
mod vault;

pub use redactor::{MASK, Redactor};
pub(crate) use redactor::{Place, Spans};
pub use rules::{Rules, RulesError};
pub use vault::{JobSecrets, Vault};
