//! What a reader accepts at most (FORMAT.md, "Limits"). They bound memory and arithmetic.

/// Longest container, and longest section, in bytes: 2^62. Sums of two lengths then fit 64 bits.
pub const MAX_LENGTH: u64 = 1 << 62;
/// Longest manifest, in bytes.
pub const MAX_MANIFEST: u64 = 4 << 20;
/// Deepest nesting of the manifest's JSON.
pub const MAX_MANIFEST_DEPTH: u32 = 64;
/// Most sections in one container.
pub const MAX_SECTIONS: u64 = 256;
/// Most chunks in one section. A loaded section takes about 80 bytes a chunk.
pub const MAX_CHUNKS: u64 = 1 << 22;
/// Longest data chunk, in logical bytes; also the most one decompression may produce.
pub const MAX_DATA_CHUNK: u64 = 4 << 20;
/// Gaps between parts of a container are shorter than this, in bytes.
pub const MAX_GAP: u64 = 2 << 20;
/// Smallest alignment of a section's data, as a power of two (4 KiB).
pub const MIN_ALIGNMENT_LOG2: u8 = 12;
/// Largest alignment of a section's data, as a power of two (2 MiB).
pub const MAX_ALIGNMENT_LOG2: u8 = 21;
