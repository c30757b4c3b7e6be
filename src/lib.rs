//! Hawser: a self-hosted runner for Terraform, OpenTofu and Pulumi.
//!
//! The modules in the order in which a message passes them:
//!
//! ```text
//! server ──push──▶ signalr ─▶ intake ─▶ scheduler ─▶ executor: prepare ─▶ supervisor: run ─▶ executor: conclude ─▶ outcome
//! server ◀──calls── signalr ◀─ shipping ◀────────────── step folder: records, outcome ◀─────────┘
//! ```
//!
//! ARCHITECTURE.md has the layers. Only `main` is public. The feature `testing`, which only the crate's own tests enable,
//! makes all modules public; without it the compiler reports dead code.

// Without the feature only `main` is reachable from outside, so every other `pub` is an unreachable one.
#![cfg_attr(not(feature = "testing"), allow(unreachable_pub))]

#[cfg(not(target_os = "linux"))]
compile_error!("hawser runs on Linux only");

cfg_if::cfg_if! {
    if #[cfg(feature = "testing")] {
        pub mod clean;
        pub mod cli;
        pub mod local;

        pub mod connect;
        pub mod runner;

        pub mod executor;
        pub mod intake;
        pub mod scheduler;
        pub mod shipping;

        pub mod engines;
        pub mod policy;
        pub mod script;
        pub mod sources;
        pub mod tasks;
        pub mod workspace;

        pub mod audit;
        pub mod observe;
        pub mod step;
        pub mod supervisor;

        pub mod base;
        pub mod masking;
        pub mod settings;
    } else {
        mod clean;
        mod cli;
        mod local;

        mod connect;
        mod runner;

        mod executor;
        mod intake;
        mod scheduler;
        mod shipping;

        mod engines;
        mod policy;
        mod script;
        mod sources;
        mod tasks;
        mod workspace;

        mod audit;
        mod observe;
        mod step;
        mod supervisor;

        mod base;
        mod masking;
        mod settings;
    }
}

pub use cli::main;
