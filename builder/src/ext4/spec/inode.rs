//! Inodes, 256 bytes: 128 of the original layout, 32 of extra fields, 96 for attributes.

use super::checksum::Checksum;
use super::{Block, INODE_SIZE, Ino, Put};
use crate::tree::Timestamp;

/// `EXT4_INDEX_FL`: a folder with a hash index.
pub(in crate::ext4) const INDEX_FL: u32 = 0x1000;
/// `EXT4_EXTENTS_FL`: `block` holds the root of an extent tree.
pub(in crate::ext4) const EXTENTS_FL: u32 = 0x8_0000;
/// `EXT4_EA_INODE_FL`: the contents are an attribute's value.
pub(in crate::ext4) const EA_INODE_FL: u32 = 0x20_0000;

/// The file type in a mode.
pub(in crate::ext4) mod file_mode {
    pub(in crate::ext4) const FIFO: u16 = 0o010_000;
    pub(in crate::ext4) const CHAR_DEVICE: u16 = 0o020_000;
    pub(in crate::ext4) const DIRECTORY: u16 = 0o040_000;
    pub(in crate::ext4) const BLOCK_DEVICE: u16 = 0o060_000;
    pub(in crate::ext4) const REGULAR: u16 = 0o100_000;
    pub(in crate::ext4) const SYMLINK: u16 = 0o120_000;
    pub(in crate::ext4) const SOCKET: u16 = 0o140_000;
}

/// Bytes for attributes after the extra fields.
pub(in crate::ext4) const BODY_SIZE: usize = INODE_SIZE - BODY_AT;

/// Bytes of extra fields: all up to the project number.
const EXTRA_SIZE: u16 = 32;
const BODY_AT: usize = 128 + EXTRA_SIZE as usize;

/// The earliest and latest second that 34 bits hold: December 1901 and May 2446.
const SECONDS: std::ops::RangeInclusive<i64> = -(1 << 31)..=(1 << 34) - (1 << 31) - 1;

/// An inode's fields. What is not here is zero: generation, deletion time, fragments, project.
#[derive(Clone, Debug)]
pub(in crate::ext4) struct Inode {
    /// File type and permissions.
    pub(in crate::ext4) mode: u16,
    pub(in crate::ext4) uid: u32,
    pub(in crate::ext4) gid: u32,
    /// Bytes.
    pub(in crate::ext4) size: u64,
    pub(in crate::ext4) atime: Timestamp,
    pub(in crate::ext4) ctime: Timestamp,
    pub(in crate::ext4) mtime: Timestamp,
    pub(in crate::ext4) crtime: Timestamp,
    pub(in crate::ext4) links: u16,
    /// All the blocks it owns, in units of 512 bytes.
    pub(in crate::ext4) sectors: u64,
    pub(in crate::ext4) flags: u32,
    /// The low half of the version: in an attribute's value, the number of its users.
    pub(in crate::ext4) version: u32,
    /// The attribute block, or 0.
    pub(in crate::ext4) file_acl: Block,
    /// `i_block`: an extent tree's root, a device's number or a short symlink's target.
    pub(in crate::ext4) block: [u8; 60],
    /// Attributes in the inode.
    pub(in crate::ext4) body: [u8; BODY_SIZE],
}

impl Inode {
    /// An inode of one link with all four times the same, and nothing in it.
    pub(in crate::ext4) fn new(mode: u16, time: Timestamp) -> Self {
        Self {
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            atime: time,
            ctime: time,
            mtime: time,
            crtime: time,
            links: 1,
            sectors: 0,
            flags: 0,
            version: 0,
            file_acl: Block(0),
            block: [0; 60],
            body: [0; BODY_SIZE],
        }
    }

    /// The bytes, checksum included; `checksum` starts at the file system's UUID.
    pub(in crate::ext4) fn encode(&self, ino: Ino, checksum: Checksum) -> [u8; INODE_SIZE] {
        let mut bytes = [0; INODE_SIZE];
        self.put_original(&mut bytes);
        self.put_extra(&mut bytes);
        bytes.put(BODY_AT, &self.body);
        let sum = checksum.of_inode(ino).over(&bytes);
        bytes.put16(0x7C, sum.low());
        bytes.put16(0x82, sum.high());
        bytes
    }

    fn put_original(&self, bytes: &mut [u8]) {
        bytes.put16(0x00, self.mode);
        bytes.put16(0x02, self.uid as u16);
        bytes.put32(0x04, self.size as u32);
        bytes.put32(0x08, encode_time(self.atime).0);
        bytes.put32(0x0C, encode_time(self.ctime).0);
        bytes.put32(0x10, encode_time(self.mtime).0);
        bytes.put16(0x18, self.gid as u16);
        bytes.put16(0x1A, self.links);
        bytes.put32(0x1C, self.sectors as u32);
        bytes.put32(0x20, self.flags);
        bytes.put32(0x24, self.version);
        bytes.put(0x28, &self.block);
        bytes.put32(0x68, self.file_acl.low());
        bytes.put32(0x6C, (self.size >> 32) as u32);
        bytes.put16(0x74, (self.sectors >> 32) as u16);
        bytes.put16(0x76, self.file_acl.high() as u16);
        bytes.put16(0x78, (self.uid >> 16) as u16);
        bytes.put16(0x7A, (self.gid >> 16) as u16);
    }

    fn put_extra(&self, bytes: &mut [u8]) {
        let (crtime, crtime_extra) = encode_time(self.crtime);
        bytes.put16(0x80, EXTRA_SIZE);
        bytes.put32(0x84, encode_time(self.ctime).1);
        bytes.put32(0x88, encode_time(self.mtime).1);
        bytes.put32(0x8C, encode_time(self.atime).1);
        bytes.put32(0x90, crtime);
        bytes.put32(0x94, crtime_extra);
    }
}

/// The low 32 bits of the seconds, and two more bits of them under the nanoseconds. Times that do not
/// fit take the nearest that does, as the kernel does it.
///
/// From 2310-04-04 to 2378-04-22 the kernel reads them right, yet e2fsck (until 2242) suspects times
/// before 1970 that an old kernel got wrong, and says so.
fn encode_time(time: Timestamp) -> (u32, u32) {
    let seconds = time.seconds.clamp(*SECONDS.start(), *SECONDS.end());
    let nanoseconds = if seconds == time.seconds { time.nanoseconds } else { 0 };
    let since_start = seconds.abs_diff(*SECONDS.start());
    let epoch = (since_start >> 32) as u32;
    ((since_start as u32).wrapping_sub(1 << 31), nanoseconds << 2 | epoch)
}

/// A device's number as `i_block` holds it; `None` where ext4 has no room for it.
///
/// Small numbers keep the old 16-bit form in the first word; larger ones take the second, 12 bits of
/// major and 20 of minor.
pub(in crate::ext4) fn device_block(major: u32, minor: u32) -> Option<[u8; 60]> {
    if major >= 1 << 12 || minor >= 1 << 20 {
        return None;
    }
    let mut block = [0; 60];
    if major < 256 && minor < 256 {
        block.put32(0, major << 8 | minor);
    } else {
        block.put32(4, minor & 0xFF | major << 8 | (minor & !0xFF) << 12);
    }
    Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_wrap_at_the_epochs_the_kernel_documents() {
        for (seconds, low, epoch) in [
            (-0x8000_0000, 0x8000_0000, 0),
            (-1, 0xFFFF_FFFF, 0),
            (0x7FFF_FFFF, 0x7FFF_FFFF, 0),
            (0x8000_0000, 0x8000_0000, 1),
            (0x3_7FFF_FFFF, 0x7FFF_FFFF, 3),
        ] {
            let time = Timestamp { seconds, nanoseconds: 999_999_999 };
            assert_eq!(encode_time(time), (low, 999_999_999 << 2 | epoch), "{seconds}");
        }
    }

    #[test]
    fn times_that_do_not_fit_take_the_nearest() {
        let time = |seconds| Timestamp { seconds, nanoseconds: 5 };
        assert_eq!(encode_time(time(i64::MIN)), (0x8000_0000, 0));
        assert_eq!(encode_time(time(i64::MAX)), (0x7FFF_FFFF, 3));
    }

    #[test]
    fn device_numbers_take_the_old_form_where_they_fit() {
        assert_eq!(device_block(8, 1).unwrap()[..8], [1, 8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(device_block(259, 0xF_FFFF).unwrap()[..8], [0, 0, 0, 0, 0xFF, 3, 0xF1, 0xFF]);
        assert_eq!(device_block(4096, 0), None);
        assert_eq!(device_block(0, 1 << 20), None);
    }
}
