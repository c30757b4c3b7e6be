//! What several test modules need.

pub(crate) mod git;
