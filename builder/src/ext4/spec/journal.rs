//! The journal's superblock (JBD2), the one big-endian structure.

use super::BLOCK_SIZE;

/// The first block of an empty journal of `blocks` blocks. The rest of it is zeros.
///
/// No feature is set: the kernel adds its checksums and 64-bit numbers at the first mount.
pub(in crate::ext4) fn superblock(blocks: u32) -> [u8; BLOCK_SIZE] {
    const MAGIC: u32 = 0xC03B_3998;
    const SUPERBLOCK_V2: u32 = 4;
    let mut bytes = [0; BLOCK_SIZE];
    for (at, value) in [
        (0x00, MAGIC),
        (0x04, SUPERBLOCK_V2),
        (0x0C, BLOCK_SIZE as u32),
        (0x10, blocks),
        (0x14, 1), // the first block of the log
        (0x18, 1), // the first sequence number; a start of 0 at 0x1C means nothing to replay
        (0x40, 1), // file systems that use it
    ] {
        bytes[at..at + 4].copy_from_slice(&u32::to_be_bytes(value));
    }
    bytes
}
