//! The two static binaries that travel inside this program (made by `build.rs`).

/// The virtual machine monitor, run as a process of its own.
pub const RUNNER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/smolpack-runner"));

/// PID 1 and agent of every machine: `/init` of the initrd.
pub const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/smolpack-guest"));
