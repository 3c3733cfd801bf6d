//! Checksums of metadata: CRC-32C without the inversions at its ends, chained over a seed.

use super::Ino;

/// A running checksum. Each structure continues from one made of what it belongs to.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext4) struct Checksum(u32);

impl Checksum {
    /// Where the superblock's own checksum starts.
    pub(in crate::ext4) const START: Self = Self(u32::MAX);

    /// Where all others start: over the file system's UUID.
    pub(in crate::ext4) fn of_uuid(uuid: &[u8; 16]) -> Self {
        Self::START.over(uuid)
    }

    /// Where the checksums of an inode, and of its extent and folder blocks, start. The generation is
    /// zero in every inode written here.
    pub(in crate::ext4) fn of_inode(self, ino: Ino) -> Self {
        self.over(&ino.0.to_le_bytes()).over(&[0; 4])
    }

    /// Continues over `bytes`.
    pub(in crate::ext4) fn over(self, bytes: &[u8]) -> Self {
        Self(!crc32c::crc32c_append(!self.0, bytes))
    }

    /// The value stored.
    pub(in crate::ext4) fn value(self) -> u32 {
        self.0
    }

    /// The low half, where a structure splits the value.
    pub(in crate::ext4) fn low(self) -> u16 {
        self.0 as u16
    }

    /// The high half.
    pub(in crate::ext4) fn high(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_crc32c_without_the_final_inversion() {
        assert_eq!(!Checksum::START.over(b"123456789").value(), 0xE306_9283);
    }

    #[test]
    fn chains() {
        assert_eq!(Checksum::START.over(b"12345").over(b"6789").value(), !0xE306_9283);
    }
}
