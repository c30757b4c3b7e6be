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
pub mod view;
