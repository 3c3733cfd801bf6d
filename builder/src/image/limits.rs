//! Bounds on what an image may ask for. Images are hostile: a few kilobytes can inflate to terabytes.

/// Bounds on one image; passing one is an error that names the layer and the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Archive entries or folder entries, all layers together.
    pub entries: u64,
    /// Bytes of one layer or archive after decompression.
    pub inflated_bytes: u64,
    /// Folders within folders.
    pub depth: usize,
    /// Bytes of one PAX header or GNU long name.
    pub header_bytes: u64,
    /// Bytes of one index, manifest or configuration.
    pub json_bytes: u64,
    /// Layers.
    pub layers: usize,
}

impl Default for Limits {
    /// Far above what images hold: 8 million entries, 256 GiB a layer, folders 1,024 deep, 4 MiB of
    /// headers an entry (Linux allows 64 KiB an attribute), 8 MiB of JSON, 1,024 layers.
    fn default() -> Self {
        Self {
            entries: 8_000_000,
            inflated_bytes: 256 << 30,
            depth: 1024,
            header_bytes: 4 << 20,
            json_bytes: 8 << 20,
            layers: 1024,
        }
    }
}
