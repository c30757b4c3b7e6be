//! The runtime log: which events are written, and how secrets are masked in them.

pub mod log_filter;
pub mod masked_writer;
