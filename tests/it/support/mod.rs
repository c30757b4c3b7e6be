//! What several test modules need.

pub(crate) mod git;
pub(crate) mod steps;
