//! Turns Smolfiles and OCI images into ext4 root disks and packed machines.
//!
//! `smolfile` reads what the user wrote; `image` finds an image and merges its layers into a
//! [`tree::Tree`]; `ext4` lays the tree down through a [`sink::BlockSink`]; `kernel` keeps guest
//! kernels and makes initrds; `build` ties these to the runner and the container format.

pub mod ext4;
pub mod progress;
pub mod sink;
pub mod tree;
