//! The machine's inside: the protocol between host and agent, and both ends of it.
//!
//! [`protocol`] has the frames; [`client`] is the host's side of a stream; [`agent`] is what the binary
//! of this package runs as PID 1, here as a library so that it can be tested without a machine.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod agent;
pub mod client;
pub mod protocol;
pub mod signals;
pub mod user;
