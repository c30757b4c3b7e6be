//! Foundations that know nothing about jobs: files, locks, processes, URLs, retries.

pub(crate) mod blocking;
pub mod confined_dir;
pub mod digest;
pub mod files;
pub mod git_url;
pub mod lock;
pub mod process;
pub(crate) mod retry;
pub(crate) mod signals;
pub mod tls;
pub mod wildcard;
