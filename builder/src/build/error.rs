//! Why a build failed.

use smolpack_format::FormatError;
use std::io;
use std::path::PathBuf;

use super::machine::MachineFailure;
use super::setup::SetupError;
use crate::compare::CompareError;
use crate::ext4::Ext4Error;
use crate::image::{self, ImageError};
use crate::kernel::KernelError;

/// Why a build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The Smolfile wants what this version cannot do.
    #[error("the Smolfile uses {0}, which this version of smolpack does not do yet")]
    Unsupported(String),
    /// The output cannot be written there.
    #[error("cannot write the artifact to {0}: {1}")]
    Output(PathBuf, &'static str),
    /// The image cannot be had.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The kernel cannot be had.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The files do not fit the disk, or ext4.
    #[error(transparent)]
    Disk(#[from] Ext4Error),
    /// The artifact cannot be written or read back.
    #[error("cannot write the artifact")]
    Artifact(#[from] FormatError),
    /// The machine did not come up to be captured.
    #[error("no snapshot could be taken: {why}{console}")]
    Snapshot {
        /// Why.
        #[source]
        why: MachineFailure,
        /// The last lines of its console, under a heading.
        console: String,
    },
    /// No machine can be booted to be captured.
    #[error("no snapshot can be taken: {0}")]
    NoMachine(String),
    /// Set-up commands failed.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The same inputs gave two artifacts; the lines say in what they differ.
    #[error("two builds of the same inputs differ:\n  {}", .0.join("\n  "))]
    NotReproducible(Vec<String>),
    /// The two could not be compared.
    #[error("cannot compare two builds")]
    Compare(#[from] CompareError),
    /// The artifact cannot fit.
    #[error("no room in {}: the image's files alone take {} MiB there, and {} MiB are free", folder.display(), needed.div_ceil(1 << 20), free >> 20)]
    NoRoom {
        /// Where it was to go.
        folder: PathBuf,
        /// Bytes that it takes at the least.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A temporary file cannot be made in this folder.
    #[error("cannot make a temporary file in {0}")]
    File(PathBuf, #[source] io::Error),
    /// A file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A defect.
    #[error("a defect of smolpack: {0}")]
    Internal(&'static str),
}

impl BuildError {
    /// Whether the user's input is at fault, rather than the host or the network.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        use image::ErrorKind as Kind;
        match self {
            Self::Unsupported(_) | Self::Output(..) | Self::Setup(SetupError::Secret { .. }) => true,
            Self::Image(e) => !matches!(e.kind(), Kind::Io | Kind::Network | Kind::Unauthorized),
            Self::Kernel(e) => e.is_bad_input(),
            Self::Disk(e) => !matches!(e, Ext4Error::Write(_) | Ext4Error::Read { .. }),
            _ => false,
        }
    }

    /// What to do about it, where the text does not say.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unsupported(_) => {
                Some("build the image with its files and set-up done, and remove the key".into())
            }
            Self::Image(e) => e.hint().map(str::to_owned),
            Self::Snapshot { why, .. } | Self::Setup(SetupError::Machine { why, .. }) => why.hint(),
            Self::Setup(SetupError::Secret { secret, .. }) => {
                Some(format!("have the command use /run/secrets/{secret} without copying it to the disk"))
            }
            Self::NoRoom { .. } => Some("free some space, or name a file on another disk with -o".into()),
            Self::Disk(Ext4Error::TooSmall { needed, .. }) => {
                Some(format!("disk = \"{}MiB\" or more in the Smolfile", needed.div_ceil(1 << 20)))
            }
            _ => None,
        }
    }
}
