//! The line to the server: one authenticated SignalR connection after another, for ever.

pub mod codec;
pub mod line;

pub use line::{CallError, Line, LineStatus, Pending, Pushed};
