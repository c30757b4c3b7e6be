//! The integration tests: one binary, with modules named like those in `src/` and `crates/`. Four are about the whole
//! program: `documents` (the docs are correct), `examples` (the examples work), `hostile` (no request does harm), and
//! `hygiene` (what other programs and users can see).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod audit;
mod clean;
mod connect;
mod dev_server;
mod documents;
mod engines;
mod examples;
mod exec;
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
