//! Guest kernels: taking them in, keeping them by digest, and making the initrd they boot with.
//!
//! A kernel is imported once, decompressed and cut to what is loaded, so that neither a build nor a
//! boot does that work again. A kernel package brings modules too; of these only the ones that the
//! machine's devices need are kept, in load order. What a machine cannot do without is checked at
//! import, because a kernel without it would fail as a boot that hangs.

pub(crate) mod codec;
mod drivers;
mod elf;
mod error;
mod image;
mod import;
mod initrd;
mod modules;
pub(crate) mod record;
mod store;

pub use error::{ImageFault, KernelError};
pub use record::{KernelFile, KernelRecord};
pub use store::{Kernel, KernelStore};

/// Debian's package that depends on the newest kernel for virtual machines.
const METAPACKAGE: &str = "linux-image-cloud-amd64";
