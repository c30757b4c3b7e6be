//! What several test modules share.

pub mod git;
pub mod world;
