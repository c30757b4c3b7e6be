//! `hawser local`: a directory on this machine taken through a whole job over the real protocol.
//!
//! ```text
//! place (private area) ─→ snapshot (a commit of the directory) ─→ session ─ events ─→ conduct (pure) ─→ view (pure) ─→ screen
//!                                                                    └→ embedded hub and a runner in this process
//! ```

pub mod area;
pub mod controller;
pub mod session;
pub mod snapshot;
pub mod view;
