//! A whole job on one machine: the embedded hub, the snapshot of a directory, and the view in the terminal.

pub mod conduct;
pub mod place;
pub mod snapshot;
pub mod view;
