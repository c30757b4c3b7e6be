//! The integration tests: one binary, whose modules are named like those of `src/` and `crates/`. Two are about promises that
//! every part keeps: `hostile` (no request does harm) and `hygiene` (what other programs and users get to see).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod audit;
mod clean;
mod connect;
mod dev_server;
mod engines;
mod hostile;
mod hygiene;
mod local;
mod masking;
mod policy;
mod runner;
mod settings;
mod shipping;
mod signalr;
mod sources;
mod supervisor;
mod support;
mod tasks;
mod workspace;
