//! What goes wrong with kernels, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use super::codec::CodecError;
use crate::debian::{AptError, PackageError};

/// Why a kernel could not be imported, fetched, found or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The file system refused.
    #[error("cannot {doing} {path}")]
    Io {
        /// A verb phrase: `read`, `create the folder`.
        doing: &'static str,
        /// What it was about.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no kernel that smolpack can boot.
    #[error("{path}: {fault}")]
    Image {
        /// The file that was given.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        fault: ImageFault,
    },
    /// A Debian package that cannot be read.
    #[error("{path} is not a readable Debian package; get it again, or import another file")]
    Package {
        /// The package's file.
        path: PathBuf,
        /// What is wrong with it.
        source: PackageError,
    },
    /// A package that holds no kernel, or more than one.
    #[error("{path} holds {found}; import the linux-image package of one kernel")]
    NoKernelInside {
        /// The package's file.
        path: PathBuf,
        /// What it holds instead.
        found: String,
    },
    /// A module that is needed and cannot be read.
    #[error("{path}: the module {module} is {why}; get the package again")]
    Module {
        /// The package's file.
        path: PathBuf,
        /// The module's name.
        module: String,
        /// What is wrong with it.
        why: String,
    },
    /// A driver without which no machine boots is neither built in nor among the modules.
    #[error("{path}: kernel {version} lacks {drivers}, which every machine needs; {hint}")]
    MissingDriver {
        /// The file that was given.
        path: PathBuf,
        /// The kernel's version.
        version: String,
        /// The missing drivers, by module name.
        drivers: String,
        /// What to do.
        hint: &'static str,
    },
    /// No kernel is called so.
    #[error(
        "no kernel matches {reference:?}; `smolpack kernel list` shows what there is, and `smolpack kernel import FILE` adds one"
    )]
    Unknown {
        /// What was asked for.
        reference: String,
    },
    /// Several kernels are called so.
    #[error("{reference:?} matches several kernels: {candidates}; give more of the digest")]
    Ambiguous {
        /// What was asked for.
        reference: String,
        /// Short digests and versions.
        candidates: String,
    },
    /// A kept kernel is not what was put there.
    #[error(
        "the kept kernel {digest} is damaged: {why}; `smolpack kernel rm {digest}`, then import or fetch it again"
    )]
    Damaged {
        /// Its digest.
        digest: String,
        /// What is wrong.
        why: String,
    },
    /// apt did not deliver.
    #[error(
        "Debian's cloud kernel was not fetched; where apt cannot get it, import one with `smolpack kernel import FILE` (an ELF vmlinux, a bzImage, or a Debian linux-image package)"
    )]
    Fetch(#[source] AptError),
    /// An initial RAM disk cannot hold this.
    #[error("cannot make the initrd: {0}")]
    Initrd(String),
}

impl KernelError {
    /// Whether the file or the name that was given is at fault, rather than the host or the network.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        !matches!(
            self,
            Self::Io { .. }
                | Self::Damaged { .. }
                | Self::Fetch(_)
                | Self::Initrd(_)
                | Self::Image { fault: ImageFault::Io(_), .. }
        )
    }

    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing, path: path.to_owned(), source }
    }
}

/// What is wrong with a file that should be a kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageFault {
    /// Something else.
    #[error(
        "no Linux kernel for x86-64: it is {0}; import an ELF vmlinux, a bzImage, or a Debian linux-image package for amd64"
    )]
    NotAKernel(String),
    /// The file ends too early.
    #[error("truncated: {part} should reach to byte {need}, the file has {have}; get the file again")]
    Truncated {
        /// What is cut off.
        part: &'static str,
        /// Where it should end, bytes.
        need: u64,
        /// Where the file ends, bytes.
        have: u64,
    },
    /// A structure that contradicts itself.
    #[error("a malformed kernel: {0}; get the file again")]
    Malformed(&'static str),
    /// A kernel whose payload is packed with something else.
    #[error(
        "its payload is compressed with {0}, and smolpack reads gzip, xz, LZ4 and zstd; import the ELF vmlinux instead"
    )]
    Compression(&'static str),
    /// The payload does not decompress.
    #[error("its payload does not decompress: {0}; get the file again")]
    Payload(String),
    /// More than a kernel can be.
    #[error("it is larger than {limit} bytes, more than any guest kernel")]
    TooLarge {
        /// The limit, bytes.
        limit: u64,
    },
    /// The file could not be read.
    #[error("cannot be read")]
    Io(#[from] io::Error),
}

impl From<CodecError> for ImageFault {
    fn from(error: CodecError) -> Self {
        Self::Payload(match &error {
            CodecError::Damaged(_, cause) => format!("{error}, {cause}"),
            CodecError::TooLarge(..) => error.to_string(),
        })
    }
}
