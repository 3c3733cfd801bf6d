//! The program as its users run it, on what needs no KVM: building cold, reading artifacts, bad input.

#![allow(clippy::unwrap_used, missing_docs)]

mod artifacts;
mod bad_input;
mod copy;
mod diff;
mod hostile;
mod streams;
mod support;
