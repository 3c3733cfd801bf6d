//! Files nobody meant well: every flipped bit is found, and no mutation does more than an error.

#![allow(clippy::unwrap_used, missing_docs)]

use smolpack_format::{Artifact, fuzz, verify};
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// xorshift64: enough for choosing bytes, and the same everywhere.
struct Random(u64);

impl Random {
    /// Seeded by `SMOLPACK_SEED`, else by the time; says which.
    fn new() -> Self {
        let seed = std::env::var("SMOLPACK_SEED").ok().and_then(|text| text.parse().ok());
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = seed.unwrap_or(now) | 1;
        println!("SMOLPACK_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

fn seeds() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/format");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let seeds =
        files.filter(|path| path.extension().is_some_and(|e| e.to_str().unwrap().starts_with("smol")));
    let seeds: Vec<_> = seeds.map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    assert!(seeds.len() >= 6);
    seeds
}

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let mut random = Random::new();
    for (path, bytes) in seeds() {
        // A program before a container is not the container's.
        let start = usize::from(path.to_str().unwrap().contains("prefixed")) * 4096;
        for _ in 0..500 {
            let mut bytes = bytes.clone();
            let at = start + random.below(bytes.len() - start);
            // Reserved for later minor versions: covered by the header's checksum all the same.
            bytes[at] ^= 1 << random.below(8);
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&bytes).unwrap();
            assert!(verify(file.path(), &mut |_, _| {}).is_err(), "{}: byte {at}", path.display());
        }
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    for (path, bytes) in seeds() {
        for length in (0..bytes.len()).step_by(97) {
            assert!(Artifact::from_file(file_of(&bytes[..length])).is_err(), "{}: {length}", path.display());
        }
    }
}

#[test]
fn mutations_give_errors_and_nothing_worse() {
    let mut random = Random::new();
    let seeds = seeds();
    let until = Instant::now() + Duration::from_secs(5);
    let mut rounds = 0;
    while Instant::now() < until {
        let mut bytes = seeds[random.below(seeds.len())].1.clone();
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes[at] = 0xff,
                2 => bytes.truncate(at.max(1)),
                _ => {
                    let from = random.below(bytes.len());
                    let len = random.below(64).min(bytes.len() - at.max(from));
                    bytes.copy_within(from..from + len, at);
                }
            }
        }
        // Half of them with checksums mended, so that what lies behind is reached.
        if random.below(2) == 0 {
            fuzz::mend(&mut bytes);
        }
        fuzz::read_everything(file_of(&bytes));
        rounds += 1;
    }
    println!("{rounds} mutations");
}
