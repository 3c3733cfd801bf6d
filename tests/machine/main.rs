//! Real Linux guests, through the program as its users run it.
//!
//! `tests/machine/run` runs these where `/dev/kvm` runs an ordinary kernel: on this machine, or in the
//! emulated lab. Images and kernel are made there beforehand, since the lab has no network.

#![allow(clippy::unwrap_used, missing_docs)]

mod agent;
mod boot;
mod build;
mod damage;
mod restore;
mod setup;
mod support;
mod waits;
