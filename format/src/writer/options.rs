//! How a section is cut and stored. None of this is visible to a reader, except in the chunks.

use crate::BLOCK;
use crate::limits::MAX_DATA_CHUNK;

/// Where chunks of data end. All lengths are in bytes and multiples of 4096.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunking {
    /// Where the content of the last block says so: data that moved by whole blocks keeps its chunks.
    ContentDefined {
        /// No chunk is shorter, unless what follows it is not data.
        min: u32,
        /// A block ends a chunk with a probability of 4096 / `spacing`, a power of two.
        spacing: u32,
        /// No chunk is longer.
        max: u32,
    },
    /// At logical multiples of this.
    Fixed(u32),
}

/// How chunks are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// As they are, so that they can be mapped.
    None,
    /// As zstd frames of this level, where that saves at least a sixteenth.
    Zstd(i32),
}

/// How a section is cut and stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SectionOptions {
    /// Where chunks end.
    pub chunking: Chunking,
    /// Runs of zero blocks at least this long, in bytes, become zero chunks; shorter ones are data.
    pub zero_run: u64,
    /// The first data byte's place is a multiple of this: a power of two from 4 KiB to 2 MiB.
    pub alignment: u32,
    /// How chunks are stored.
    pub compression: Compression,
    /// What an attachment is called.
    pub name: Option<String>,
}

impl SectionOptions {
    /// A disk or an overlay: content-defined chunks of 16 to 256 KiB, about 64 KiB on average; zero
    /// runs from 16 KiB on left out; 2 MiB aligned; not compressed.
    #[must_use]
    pub fn disk() -> Self {
        Self {
            chunking: Chunking::ContentDefined { min: 16 << 10, spacing: 64 << 10, max: 256 << 10 },
            zero_run: 16 << 10,
            alignment: 2 << 20,
            compression: Compression::None,
            name: None,
        }
    }

    /// Guest memory: runs of pages, cut at every MiB; zero runs from 64 KiB on left out, so that the
    /// number of mappings stays low; 2 MiB aligned; not compressed.
    #[must_use]
    pub fn memory() -> Self {
        Self { chunking: Chunking::Fixed(1 << 20), zero_run: 64 << 10, ..Self::disk() }
    }

    /// Kernel, initrd, device state, attachments: cut at every MiB, 4 KiB aligned, not compressed.
    #[must_use]
    pub fn blob() -> Self {
        Self { alignment: 4 << 10, ..Self::memory() }
    }

    /// The same, compressed with zstd at `level`.
    #[must_use]
    pub fn zstd(self, level: i32) -> Self {
        Self { compression: Compression::Zstd(level), ..self }
    }

    /// The same, called `name`.
    #[must_use]
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// What is wrong with the options.
    pub(super) fn check(&self) -> Result<(), String> {
        let length = |bytes: u32| {
            u64::from(bytes).is_multiple_of(BLOCK) && (1..=MAX_DATA_CHUNK).contains(&bytes.into())
        };
        let chunking = match self.chunking {
            Chunking::Fixed(every) => length(every),
            Chunking::ContentDefined { min, spacing, max } => {
                length(min) && length(max) && min <= max && length(spacing) && spacing.is_power_of_two()
            }
        };
        if !chunking {
            return Err(format!("{:?}: lengths are multiples of 4096 up to 4 MiB", self.chunking));
        }
        if !self.alignment.is_power_of_two() || !(4 << 10..=2 << 20).contains(&self.alignment) {
            return Err(format!("alignment {}: a power of two from 4 KiB to 2 MiB", self.alignment));
        }
        let run = self.zero_run;
        if !run.is_multiple_of(BLOCK) || !(BLOCK..=MAX_DATA_CHUNK).contains(&run) {
            return Err(format!("zero runs of {run} bytes: a multiple of 4096 up to 4 MiB"));
        }
        Ok(())
    }
}
