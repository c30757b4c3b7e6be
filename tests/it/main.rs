//! The integration tests: one binary, one module per promise or part.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod clean;
mod container;
mod embedded_hub;
mod engine;
mod hostile;
mod hub_client;
mod hygiene;
mod job;
mod local;
mod recovery;
mod redaction;
mod settings;
mod shipping;
mod signalr;
mod source;
mod supervise;
mod support;
mod tasks;
mod veto;
