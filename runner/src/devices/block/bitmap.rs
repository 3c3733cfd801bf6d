//! Which blocks of a disk were written.

use std::ops::Range;

/// One bit a block.
pub(super) struct Bitmap {
    words: Vec<u64>,
    blocks: u64,
}

impl Bitmap {
    /// `blocks` blocks, none of them written.
    pub(super) fn new(blocks: u64) -> Self {
        Self { words: vec![0; blocks.div_ceil(64) as usize], blocks }
    }

    /// Marks blocks as written.
    pub(super) fn insert(&mut self, blocks: Range<u64>) {
        for block in blocks {
            self.words[(block / 64) as usize] |= 1 << (block % 64);
        }
    }

    /// Whether `block` was written, and the first block after it that is not the same, or the end.
    pub(super) fn run(&self, block: u64) -> (bool, u64) {
        let same = if self.word(block / 64) >> (block % 64) & 1 == 1 { u64::MAX } else { 0 };
        let mut index = block / 64;
        let mut differs = (self.word(index) ^ same) >> (block % 64) << (block % 64);
        while differs == 0 && (index + 1) * 64 < self.blocks {
            index += 1;
            differs = self.word(index) ^ same;
        }
        (same != 0, (index * 64 + u64::from(differs.trailing_zeros())).min(self.blocks))
    }

    fn word(&self, index: u64) -> u64 {
        self.words[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_the_bits_change_or_the_disk_ends() {
        let mut bitmap = Bitmap::new(200);
        assert_eq!(bitmap.run(0), (false, 200));
        bitmap.insert(3..5);
        bitmap.insert(60..140);
        bitmap.insert(199..200);
        for (block, expected) in [
            (0, (false, 3)),
            (3, (true, 5)),
            (4, (true, 5)),
            (5, (false, 60)),
            (60, (true, 140)),
            (64, (true, 140)),
            (139, (true, 140)),
            (140, (false, 199)),
            (199, (true, 200)),
        ] {
            assert_eq!(bitmap.run(block), expected, "{block}");
        }
    }
}
