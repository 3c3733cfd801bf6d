//! The virtual machine monitor: a library and, in `src/bin`, a small static binary around it.
//!
//! Bottom up: [`layout`] and [`memory`] (the guest's address space), [`kvm`] (machine, CPUs, their state),
//! [`devices`] behind a [`bus`], the recipes [`boot`], [`restore`] (behind its [`gate`]) and [`snapshot`],
//! [`machine`], which is all of them together, and [`process`], the program's main loop. [`control`] is
//! what a parent process says to a runner process over [`ipc`]; [`client`] starts one.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod acpi;
pub mod boot;
pub mod bus;
pub mod chain;
pub mod client;
pub mod confine;
pub mod console;
pub mod control;
pub mod devices;
pub mod gate;
pub mod host;
pub mod ipc;
pub mod kvm;
pub mod layout;
pub mod machine;
pub mod memory;
mod notice;
pub mod process;
pub mod restore;
pub mod snapshot;
pub mod timings;
pub mod vcpus;
pub mod vmstate;
