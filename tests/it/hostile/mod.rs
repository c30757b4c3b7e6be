//! Requests of a hostile server, pushed to a real runner over the real protocol.
//!
//! Around the working directory, beside the module and in the home directory are files that must not change, and no command
//! that a request smuggles in may run: it would create a file there. Both are looked at after every request.
//!
//! - `refused`: what leads out, or would be read as an option, a program or another assignment, faults, and says why.
//! - `verbatim`: what is legal data, however it looks, arrives as it is, and nothing in it is carried out.
//! - `sweep`: each text of each request in turn is replaced by something nasty. Whatever comes of it, it is answered.

mod refused;
mod stage;
mod sweep;
mod verbatim;
