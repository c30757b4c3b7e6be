//! The runtime log: its filter and its masking.

pub mod log_filter;
pub mod masked_writer;
