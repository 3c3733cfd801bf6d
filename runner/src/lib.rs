//! The virtual machine monitor: a library and, in `src/bin`, a small static binary around it.
//!
//! [`control`] is what a parent process says to a runner process; `client` starts one.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod acpi;
pub mod boot;
pub mod bus;
pub mod client;
pub mod control;
pub mod devices;
pub mod kvm;
pub mod layout;
pub mod memory;
pub mod restore;
pub mod snapshot;
pub mod vcpus;
pub mod vmstate;
pub mod gate;
pub mod host;
pub mod ipc;
