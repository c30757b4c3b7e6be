//! Hawser: a self-hosted runner for Terraform, OpenTofu and Pulumi.
//!
//! The modules in the order in which a message passes them:
//!
//! ```text
//! server ──push──▶ signalr ─▶ intake ─▶ scheduler ─▶ executor: prepare ─▶ supervisor: run ─▶ executor: conclude ─▶ outcome
//! server ◀──calls── signalr ◀─ shipping ◀────────────── step folder: records, outcome ◀─────────┘
//! ```
//!
//! ARCHITECTURE.md has the layers. Everything here is private but the command line: the feature `testing`, which only the
//! crate's own tests enable, makes the modules public, and without it the compiler reports what is not used.

// Without the feature nothing but `main` can be reached from outside, so that the word `pub` says too much everywhere.
#![cfg_attr(not(feature = "testing"), allow(unreachable_pub))]

#[cfg(not(target_os = "linux"))]
compile_error!("hawser runs on Linux only");

#[cfg(feature = "testing")]
pub mod clean;
#[cfg(not(feature = "testing"))]
mod clean;
#[cfg(feature = "testing")]
pub mod cli;
#[cfg(not(feature = "testing"))]
mod cli;
#[cfg(feature = "testing")]
pub mod local;
#[cfg(not(feature = "testing"))]
mod local;

#[cfg(feature = "testing")]
pub mod connect;
#[cfg(not(feature = "testing"))]
mod connect;
#[cfg(feature = "testing")]
pub mod runner;
#[cfg(not(feature = "testing"))]
mod runner;

#[cfg(feature = "testing")]
pub mod executor;
#[cfg(not(feature = "testing"))]
mod executor;
#[cfg(feature = "testing")]
pub mod intake;
#[cfg(not(feature = "testing"))]
mod intake;
#[cfg(feature = "testing")]
pub mod scheduler;
#[cfg(not(feature = "testing"))]
mod scheduler;
#[cfg(feature = "testing")]
pub mod shipping;
#[cfg(not(feature = "testing"))]
mod shipping;

#[cfg(feature = "testing")]
pub mod engines;
#[cfg(not(feature = "testing"))]
mod engines;
#[cfg(feature = "testing")]
pub mod policy;
#[cfg(not(feature = "testing"))]
mod policy;
#[cfg(feature = "testing")]
pub mod script;
#[cfg(not(feature = "testing"))]
mod script;
#[cfg(feature = "testing")]
pub mod sources;
#[cfg(not(feature = "testing"))]
mod sources;
#[cfg(feature = "testing")]
pub mod tasks;
#[cfg(not(feature = "testing"))]
mod tasks;
#[cfg(feature = "testing")]
pub mod workspace;
#[cfg(not(feature = "testing"))]
mod workspace;

#[cfg(feature = "testing")]
pub mod audit;
#[cfg(not(feature = "testing"))]
mod audit;
#[cfg(feature = "testing")]
pub mod observe;
#[cfg(not(feature = "testing"))]
mod observe;
#[cfg(feature = "testing")]
pub mod step;
#[cfg(not(feature = "testing"))]
mod step;
#[cfg(feature = "testing")]
pub mod supervisor;
#[cfg(not(feature = "testing"))]
mod supervisor;

#[cfg(feature = "testing")]
pub mod base;
#[cfg(not(feature = "testing"))]
mod base;
#[cfg(feature = "testing")]
pub mod masking;
#[cfg(not(feature = "testing"))]
mod masking;
#[cfg(feature = "testing")]
pub mod settings;
#[cfg(not(feature = "testing"))]
mod settings;

pub use cli::main;
