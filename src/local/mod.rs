//! `hawser local`: runs a complete job for a directory on this machine, over the real protocol.
//!
//! ```text
//! area (private folder) ─→ snapshot (a commit of the directory) ─→ session ─ events ─→ controller (pure) ─→ view (pure) ─→ screen
//!                                                                    └→ dev server and a runner in this process
//! ```

pub mod area;
pub mod controller;
pub mod session;
pub mod snapshot;
pub mod user_paths;
pub mod view;

use std::io;
use std::path::{Path, PathBuf};

use hawser_contract::EngineName;

use crate::base::process::ProcessError;

#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("no directory for local data: neither HAWSER_LOCAL_DIR nor a home directory is set")]
    NoData,
    #[error("another hawser local is running on {}", directory.display())]
    Busy { directory: PathBuf },
    #[error("no engine is installed: {} not found on PATH", programs(engines))]
    NoEngine { engines: Vec<EngineName> },
    #[error("{} is not a directory", path.display())]
    NotADirectory { path: PathBuf },
    #[error("{} contains no configuration (no .tf, .tofu, or Pulumi.yaml file)", path.display())]
    NoConfiguration { path: PathBuf },
    #[error("git ignores every configuration file in {}", path.display())]
    AllIgnored { path: PathBuf },
    #[error("git is not installed or not on PATH")]
    NoGit,
    #[error(transparent)]
    Git(#[from] ProcessError),
}

fn programs(engines: &[EngineName]) -> String {
    engines.iter().map(EngineName::as_str).collect::<Vec<_>>().join(" and ")
}

/// For `map_err` after an operation on a file or a directory.
fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LocalError {
    let path = path.to_owned();
    move |source| LocalError::Io { action, path, source }
}
