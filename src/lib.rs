//! Hawser: a self-hosted runner for Terraform, OpenTofu and Pulumi.
//!
//! The modules in the order in which a message passes them:
//!
//! ```text
//! server ─push→ hub ─→ intake ─→ scheduler ─→ tasks: prepare ─→ supervise: execute ─→ tasks: conclude
//!        ←────── hub ←─ shipping ←─ step (output.log, outcome.json) ←──┘
//! ```
//!
//! Beside the way stand `policy`, which judges a task before the scheduler takes it, `audit`, which writes down what became of
//! it, and `redact`, which knows what must not be said and masks it in everything that leaves.

pub mod executor;
pub mod observe;
#[cfg(not(target_os = "linux"))]
compile_error!("hawser runs on Linux only");

pub mod base;
pub mod cli;
pub mod settings;

pub mod masking;

pub mod connect;

pub mod audit;
pub mod intake;
pub mod policy;
pub mod scheduler;
pub mod step;

pub mod engines;
pub mod script;
pub mod sources;
pub mod tasks;
pub mod workspace;

pub mod shipping;
pub mod supervisor;

pub mod clean;
pub mod local;
pub mod runner;
