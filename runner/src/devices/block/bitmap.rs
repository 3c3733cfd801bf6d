//! Which blocks of the disk were written.

use std::ops::Range;

/// A set of block numbers below a fixed length.
pub(crate) struct Bitmap {
    words: Vec<u64>,
    len: u64,
}

impl Bitmap {
    /// An empty set. The memory it takes is only touched as it fills.
    pub(crate) fn new(len: u64) -> Self {
        Self { words: vec![0; len.div_ceil(64) as usize], len }
    }

    /// Adds all of `blocks`; those beyond the length are ignored.
    pub(crate) fn insert(&mut self, blocks: Range<u64>) {
        let (mut at, end) = (blocks.start, blocks.end.min(self.len));
        while at < end {
            let next = end.min((at / 64 + 1) * 64);
            self.words[(at / 64) as usize] |= mask(at, next);
            at = next;
        }
    }

    /// Whether `block`, below the length, is in the set, and the first after it up to `limit` of which
    /// the contrary holds.
    pub(crate) fn run(&self, block: u64, limit: u64) -> (bool, u64) {
        let limit = limit.min(self.len);
        let set = self.words[(block / 64) as usize] >> (block % 64) & 1 == 1;
        let mut at = block;
        while at < limit {
            let word = self.words[(at / 64) as usize];
            let word = if set { !word } else { word } >> (at % 64);
            if word != 0 {
                return (set, limit.min(at + u64::from(word.trailing_zeros())));
            }
            at = (at / 64 + 1) * 64;
        }
        (set, limit)
    }
}

/// The bits of `at` to `end` in the word that holds both.
fn mask(at: u64, end: u64) -> u64 {
    (u64::MAX >> (64 - (end - at))) << (at % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_a_plain_array_of_flags() {
        // A small generator of its own, the same numbers in every run.
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        for len in [1, 63, 64, 65, 200, 1000] {
            let (mut bitmap, mut plain) = (Bitmap::new(len), vec![false; len as usize]);
            for _ in 0..12 {
                let start = random(len);
                let end = start + random(len - start + 1);
                bitmap.insert(start..end);
                plain[start as usize..end as usize].fill(true);
                for at in 0..len {
                    let set = plain[at as usize];
                    let limit = at + 1 + random(len - at);
                    let end = (at..limit).find(|&i| plain[i as usize] != set).unwrap_or(limit);
                    assert_eq!(bitmap.run(at, limit), (set, end), "{at} of {len}, limit {limit}");
                }
            }
        }
    }
}
