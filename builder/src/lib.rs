//! Turns Smolfiles and OCI images into ext4 root disks and packed machines.
//!
//! `smolfile` reads what the user wrote, and `machine` makes a manifest of it; `image` finds an image and
//! merges its layers into a [`tree::Tree`]; `ext4` lays the tree down through a [`sink::BlockSink`];
//! `kernel` keeps guest kernels and makes initrds; `build` ties these to the runner and the container
//! format.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod build;
pub mod compare;
pub mod debian;
pub mod ext4;
pub mod image;
pub mod kernel;
pub mod machine;
pub mod progress;
pub mod sink;
pub mod smolfile;
pub mod tree;
