//! Settings: where they come from, what they are, and what is wrong with them.

pub mod model;

pub use model::Settings;
