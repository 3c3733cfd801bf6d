//! What a section holds.

use std::fmt;

/// What a section holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum SectionKind {
    /// The guest kernel, an ELF `vmlinux`.
    Kernel,
    /// The initial root file system: a cpio archive.
    Initrd,
    /// The root disk.
    Disk,
    /// CPU, interrupt controller and device state; opaque to the format.
    VmState,
    /// Guest memory, the hole below 4 GiB left out.
    Memory,
    /// The pages a restore touches first; opaque to the format.
    WorkingSet,
    /// The disk at the time of the snapshot; parent chunks mean "as in the disk".
    Overlay,
    /// A named document: bill of materials, provenance, signature. May occur many times.
    Attachment,
    /// A kind that a later minor version defined. Verified like any other, used by nobody.
    Unknown(u32),
}

impl SectionKind {
    const NAMED: [(Self, u32, &'static str); 8] = [
        (Self::Kernel, 1, "kernel"),
        (Self::Initrd, 2, "initrd"),
        (Self::Disk, 3, "disk"),
        (Self::VmState, 4, "vm-state"),
        (Self::Memory, 5, "memory"),
        (Self::WorkingSet, 6, "working-set"),
        (Self::Overlay, 7, "overlay"),
        (Self::Attachment, 8, "attachment"),
    ];

    /// The kind's number in the section index.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::Unknown(code) => code,
            known => Self::NAMED.iter().find(|row| row.0 == known).map_or(0, |row| row.1),
        }
    }

    pub(crate) fn from_code(code: u32) -> Self {
        Self::NAMED.iter().find(|row| row.1 == code).map_or(Self::Unknown(code), |row| row.0)
    }

    /// The kind's name in the manifest; `None` for an unknown kind.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Self::NAMED.iter().find(|row| row.0 == self).map(|row| row.2)
    }

    /// Whether `name` is that of a known kind.
    pub(crate) fn is_known_name(name: &str) -> bool {
        Self::NAMED.iter().any(|row| row.2 == name)
    }

    /// Whether a container may hold several sections of this kind.
    pub(crate) fn may_repeat(self) -> bool {
        matches!(self, Self::Attachment | Self::Unknown(_))
    }
}

impl fmt::Display for SectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "unknown-{}", self.code()),
        }
    }
}
