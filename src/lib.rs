//! The `smolpack` command line as a library: one module a verb.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod boot;
pub mod build;
pub mod cache;
pub mod check;
pub mod cli;
pub mod completion;
pub mod diff;
pub mod doctor;
pub mod embedded;
pub mod error;
pub mod explain;
pub mod export;
pub mod inspect;
pub mod kernel;
pub mod limits;
pub mod output;
pub mod paths;
pub mod plan;
pub mod progress;
pub mod publish;
pub mod secrets;
pub mod signals;
pub mod source;
pub mod streams;
pub mod terminal;
pub mod verify;
