//! What several test modules use.

pub(crate) mod authority;
pub(crate) mod proxy;
pub(crate) mod relay;
pub(crate) mod scripted_hub;
