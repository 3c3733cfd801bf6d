//! The protocol between the host and the agent inside the machine.
//!
//! The agent itself is the binary of this package; the host's side uses this library alone.
//! [`protocol`] describes the frames and [`protocol::Frame::read`]/[`protocol::Frame::write`] move them.

pub mod protocol;
