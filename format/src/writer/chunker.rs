//! Cuts a section's bytes into chunks. Pure: no input or output, no hashing of content.
//!
//! The result depends on the bytes and the options alone, never on how the bytes were handed over:
//! `zeros(n)` and `data` of n zero bytes are the same thing.

use super::options::{Chunking, SectionOptions};
use crate::{BLOCK, FormatError};

const BLOCK_LEN: usize = BLOCK as usize;
static ZERO_BLOCK: [u8; BLOCK_LEN] = [0; BLOCK_LEN];

/// A chunk as it leaves the chunker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cut<'a> {
    Data(&'a [u8]),
    Zeros(u64),
    Parent(u64),
}

/// Takes chunks in order.
pub(super) trait CutSink {
    fn cut(&mut self, cut: Cut<'_>) -> Result<(), FormatError>;
}

/// The state between two calls. In logical order: what was given to the sink (up to `at`), then
/// `chunk`, then `zeros`, then `partial`; or, instead of those three, `parent`.
#[derive(Debug)]
pub(super) struct Chunker {
    chunking: Chunking,
    zero_run: u64,
    /// Logical position of the first byte not given to the sink.
    at: u64,
    /// Blocks of the chunk being made.
    chunk: Vec<u8>,
    /// Bytes of whole zero blocks that are either the start of a zero chunk or part of `chunk`.
    zeros: u64,
    /// The start of a block: less than one.
    partial: Vec<u8>,
    /// Bytes of a parent chunk that may yet grow.
    parent: u64,
    /// A part that was no multiple of a block was closed: nothing may follow.
    ended: bool,
}

impl Chunker {
    pub(super) fn new(options: &SectionOptions) -> Self {
        Self {
            chunking: options.chunking,
            zero_run: options.zero_run,
            at: 0,
            chunk: Vec::new(),
            zeros: 0,
            partial: Vec::new(),
            parent: 0,
            ended: false,
        }
    }

    /// Bytes taken so far.
    pub(super) fn position(&self) -> u64 {
        self.at + self.chunk.len() as u64 + self.zeros + self.partial.len() as u64 + self.parent
    }

    /// Whether nothing may follow, because a parent run ended within a block.
    pub(super) fn ended(&self) -> bool {
        self.ended
    }

    /// Whether the position is within a block.
    pub(super) fn within_block(&self) -> bool {
        !self.partial.is_empty()
    }

    pub(super) fn data(&mut self, bytes: &[u8], sink: &mut dyn CutSink) -> Result<(), FormatError> {
        self.settle_parent(sink)?;
        let rest = self.fill_partial(bytes, sink)?;
        let blocks = rest.chunks_exact(BLOCK_LEN);
        self.partial.extend_from_slice(blocks.remainder());
        for block in blocks {
            self.block(block, sink)?;
        }
        Ok(())
    }

    pub(super) fn zeros(&mut self, len: u64, sink: &mut dyn CutSink) -> Result<(), FormatError> {
        self.settle_parent(sink)?;
        let within = self.partial.len() as u64;
        let fill = if within == 0 { 0 } else { (BLOCK - within).min(len) };
        self.fill_partial(&ZERO_BLOCK[..fill as usize], sink)?;
        let rest = len - fill;
        self.zeros += rest - rest % BLOCK;
        self.partial.resize(self.partial.len() + (rest % BLOCK) as usize, 0);
        Ok(())
    }

    /// The next `len` bytes are as in the parent. Not within a block; ends the section if `len` is no
    /// multiple of one.
    pub(super) fn parent(&mut self, len: u64, sink: &mut dyn CutSink) -> Result<(), FormatError> {
        self.settle_zeros(sink)?;
        self.cut_data(sink)?;
        self.parent += len;
        self.ended = !len.is_multiple_of(BLOCK);
        Ok(())
    }

    pub(super) fn finish(&mut self, sink: &mut dyn CutSink) -> Result<(), FormatError> {
        self.settle_parent(sink)?;
        let tail = std::mem::take(&mut self.partial);
        if tail.iter().all(|byte| *byte == 0) {
            self.zeros += tail.len() as u64;
            self.settle_zeros(sink)?;
        } else {
            self.settle_zeros(sink)?;
            self.chunk.extend_from_slice(&tail);
        }
        self.cut_data(sink)
    }

    /// Completes a block begun before; gives what is left of `bytes`.
    fn fill_partial<'b>(&mut self, bytes: &'b [u8], sink: &mut dyn CutSink) -> Result<&'b [u8], FormatError> {
        if self.partial.is_empty() {
            return Ok(bytes);
        }
        let (now, later) = bytes.split_at(bytes.len().min(BLOCK_LEN - self.partial.len()));
        self.partial.extend_from_slice(now);
        if self.partial.len() == BLOCK_LEN {
            let mut block = std::mem::take(&mut self.partial);
            self.block(&block, sink)?;
            block.clear();
            self.partial = block;
        }
        Ok(later)
    }

    fn block(&mut self, block: &[u8], sink: &mut dyn CutSink) -> Result<(), FormatError> {
        if block == ZERO_BLOCK {
            self.zeros += BLOCK;
            return Ok(());
        }
        self.settle_zeros(sink)?;
        self.push(block, sink)
    }

    /// Decides what the zero blocks before a block of data, a parent run or the end are.
    fn settle_zeros(&mut self, sink: &mut dyn CutSink) -> Result<(), FormatError> {
        let zeros = std::mem::take(&mut self.zeros);
        if zeros >= self.zero_run {
            self.cut_data(sink)?;
            self.at += zeros;
            return sink.cut(Cut::Zeros(zeros));
        }
        let mut rest = zeros;
        while rest > 0 {
            let len = rest.min(BLOCK);
            self.push(&ZERO_BLOCK[..len as usize], sink)?;
            rest -= len;
        }
        Ok(())
    }

    fn settle_parent(&mut self, sink: &mut dyn CutSink) -> Result<(), FormatError> {
        let parent = std::mem::take(&mut self.parent);
        if parent == 0 {
            return Ok(());
        }
        self.at += parent;
        sink.cut(Cut::Parent(parent))
    }

    fn push(&mut self, block: &[u8], sink: &mut dyn CutSink) -> Result<(), FormatError> {
        self.chunk.extend_from_slice(block);
        if self.is_boundary(block) { self.cut_data(sink) } else { Ok(()) }
    }

    /// Whether the chunk ends with `block`, its last.
    fn is_boundary(&self, block: &[u8]) -> bool {
        let len = self.chunk.len() as u64;
        match self.chunking {
            Chunking::Fixed(every) => (self.at + len).is_multiple_of(every.into()),
            Chunking::ContentDefined { min, spacing, max } => {
                let blocks = u64::from(spacing) / BLOCK;
                len >= max.into() || (len >= min.into() && block_hash(block) & (blocks - 1) == 0)
            }
        }
    }

    fn cut_data(&mut self, sink: &mut dyn CutSink) -> Result<(), FormatError> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        sink.cut(Cut::Data(&self.chunk))?;
        self.at += self.chunk.len() as u64;
        self.chunk.clear();
        Ok(())
    }
}

/// A hash of one block that decides on boundaries (FORMAT.md, "Chunk boundaries"). Four lanes of
/// multiply and rotate: several GB/s, so that SHA-256 remains the bound. Nothing rests on its strength.
fn block_hash(block: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [1u64, 2, 3, 4];
    for words in block.chunks_exact(32) {
        for (lane, word) in lanes.iter_mut().zip(words.chunks_exact(8)) {
            let mut raw = [0; 8];
            raw.copy_from_slice(word);
            *lane = (*lane ^ u64::from_le_bytes(raw)).wrapping_mul(K).rotate_left(29);
        }
    }
    let sum = lanes.into_iter().fold(0u64, |sum, lane| (sum ^ lane).wrapping_mul(K).rotate_left(29));
    sum >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the sink got: (class, length).
    #[derive(Default)]
    struct Taken(Vec<(char, u64)>);

    impl CutSink for Taken {
        fn cut(&mut self, cut: Cut<'_>) -> Result<(), FormatError> {
            self.0.push(match cut {
                Cut::Data(bytes) => ('d', bytes.len() as u64),
                Cut::Zeros(len) => ('z', len),
                Cut::Parent(len) => ('p', len),
            });
            Ok(())
        }
    }

    fn noise(blocks: u64, seed: u64) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8 | 1
        };
        (0..blocks * BLOCK).map(|_| next()).collect()
    }

    fn cuts(options: &SectionOptions, parts: &[&[u8]]) -> Vec<(char, u64)> {
        let (mut chunker, mut taken) = (Chunker::new(options), Taken::default());
        for part in parts {
            chunker.data(part, &mut taken).unwrap();
        }
        chunker.finish(&mut taken).unwrap();
        taken.0
    }

    #[test]
    fn zero_runs_are_left_out_from_their_minimum_on() {
        let block = noise(1, 1);
        let memory = SectionOptions::memory();
        let at_15 = [&block[..], &vec![0; 15 * BLOCK_LEN], &block].concat();
        let at_16 = [&block[..], &vec![0; 16 * BLOCK_LEN], &block].concat();
        assert_eq!(cuts(&memory, &[&at_15]), [('d', 17 * BLOCK)]);
        assert_eq!(cuts(&memory, &[&at_16]), [('d', BLOCK), ('z', 16 * BLOCK), ('d', BLOCK)]);
    }

    #[test]
    fn the_way_bytes_are_handed_over_changes_nothing() {
        let image = [noise(9, 1), vec![0; 5 * BLOCK_LEN + 77], noise(40, 2), vec![0; 3 * BLOCK_LEN]].concat();
        for options in [SectionOptions::disk(), SectionOptions::memory()] {
            let whole = cuts(&options, &[&image]);
            for step in [1, 1000, 4095, 4096, 4097, 50_000] {
                let parts: Vec<_> = image.chunks(step).collect();
                assert_eq!(cuts(&options, &parts), whole, "in pieces of {step}");
            }
        }
    }

    #[test]
    fn zeros_are_the_same_as_zero_data() {
        let (a, b) = (noise(3, 1), noise(3, 2));
        for len in [1, 100, 4096, 5000, 16 << 10, (16 << 10) + 5000, 1 << 20] {
            let (mut chunker, mut taken) = (Chunker::new(&SectionOptions::disk()), Taken::default());
            chunker.data(&a[..5000], &mut taken).unwrap();
            chunker.zeros(len, &mut taken).unwrap();
            chunker.data(&b, &mut taken).unwrap();
            chunker.finish(&mut taken).unwrap();
            let as_data = cuts(&SectionOptions::disk(), &[&a[..5000], &vec![0; len as usize], &b]);
            assert_eq!(taken.0, as_data, "{len} zeros");
        }
    }

    #[test]
    fn parent_runs_merge_and_split_data() {
        let (mut chunker, mut taken) = (Chunker::new(&SectionOptions::disk()), Taken::default());
        chunker.parent(BLOCK, &mut taken).unwrap();
        chunker.parent(3 * BLOCK, &mut taken).unwrap();
        chunker.data(&noise(2, 1), &mut taken).unwrap();
        chunker.zeros(BLOCK, &mut taken).unwrap();
        chunker.parent(100, &mut taken).unwrap();
        chunker.finish(&mut taken).unwrap();
        assert_eq!(taken.0, [('p', 4 * BLOCK), ('d', 3 * BLOCK), ('p', 100)]);
        assert!(chunker.ended());
    }

    #[test]
    fn disk_chunks_average_about_64_kib_and_keep_their_bounds() {
        let lengths: Vec<u64> =
            cuts(&SectionOptions::disk(), &[&noise(16 << 10, 7)]).iter().map(|c| c.1).collect();
        let (min, max) = (lengths[..lengths.len() - 1].iter().min(), lengths.iter().max());
        assert!(min >= Some(&(16 << 10)) && max <= Some(&(256 << 10)), "{min:?} {max:?}");
        let average = lengths.iter().sum::<u64>() / lengths.len() as u64;
        assert!((56 << 10..88 << 10).contains(&average), "{average}");
    }

    #[test]
    fn an_inserted_block_changes_few_chunks() {
        let image = noise(4 << 10, 3);
        let moved = [&image[..40 * BLOCK_LEN], &noise(1, 9), &image[40 * BLOCK_LEN..]].concat();
        let (before, after) =
            (cuts(&SectionOptions::disk(), &[&image]), cuts(&SectionOptions::disk(), &[&moved]));
        let same_tail = before.iter().rev().zip(after.iter().rev()).take_while(|(a, b)| a == b).count();
        assert!(same_tail + 8 > before.len(), "{same_tail} of {} chunks kept", before.len());
    }
}
