//! Disks of the ext4 writer before their judges: e2fsck, the kernel that mounts them, debugfs,
//! resize2fs, and a reader by another author.
#![allow(clippy::unwrap_used)]

mod edge;
mod host;
mod image;
mod maker;
mod manifest;
mod random;
mod refusal;
mod whole;
