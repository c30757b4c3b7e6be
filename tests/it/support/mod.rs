//! What several test modules share.

pub(crate) mod authority;
pub(crate) mod git;
pub(crate) mod processes;
pub(crate) mod proxy;
pub(crate) mod relay;
pub(crate) mod scripted_hub;
pub(crate) mod steps;
pub(crate) mod world;
