//! The agent: PID 1 of a machine.
//!
//! [`boot`] makes a root file system out of an initramfs; [`serve`] answers one stream; the rest are
//! its parts. One thread a stream, no runtime: an idle agent costs its stacks and nothing else.

pub mod boot;
mod exec;
mod hello;
mod link;
mod power;
mod pty;
mod pump;
mod reaper;
mod session;
mod setup;
mod tar;
mod vsock;

pub use hello::Generation;
pub use power::fail;
pub use reaper::Reaper;
pub use session::serve;
pub use vsock::Listener;
