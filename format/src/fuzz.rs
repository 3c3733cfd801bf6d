//! What fuzzers and hostile tests share: a reader's whole path, and checksums put right.

use std::fs::File;

use crate::spec::footer::FOOTER_LEN;
use crate::spec::header::{HEADER_LEN, MAGIC};
use crate::{Artifact, Digest, verify_artifact};

/// Opens a file, loads every section, reads its ends and middle, and verifies it. Whatever the bytes are,
/// this returns.
pub fn read_everything(file: File) {
    let Ok(artifact) = Artifact::from_file(file) else { return };
    let mut buf = [0; 8192];
    for position in 0..artifact.sections().len() {
        let Ok(section) = artifact.section_at(position) else { continue };
        for at in [0, section.len() / 2, section.len().saturating_sub(buf.len() as u64)] {
            let some = (section.len() - at).min(buf.len() as u64) as usize;
            // An error is an answer too.
            let _ = section.read_at(&mut buf[..some], at);
        }
    }
    let _ = verify_artifact(&artifact, &mut |_, _| {});
}

/// Makes the digests of a container's index and manifest, and its header's checksum, right again, so that
/// a mutation gets past them. Bytes that are no container stay as they are.
pub fn mend(bytes: &mut [u8]) {
    let length = bytes.len();
    if length < (HEADER_LEN + FOOTER_LEN) as usize || bytes[..8] != MAGIC {
        return;
    }
    for (place, digest_at) in [(48, 64), (96, 112)] {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            usize::try_from(u64::from_le_bytes(word)).unwrap_or(usize::MAX)
        };
        let (offset, len) = (word(place), word(place + 8));
        if let Some(part) = offset.checked_add(len).and_then(|end| bytes.get(offset..end)) {
            let digest = Digest::of(part).0;
            bytes[digest_at..digest_at + 32].copy_from_slice(&digest);
        }
    }
    let checksum = Digest::of(&bytes[..HEADER_LEN as usize - 32]).0;
    bytes[HEADER_LEN as usize - 32..HEADER_LEN as usize].copy_from_slice(&checksum);
    let footer = length - FOOTER_LEN as usize;
    bytes[footer + 16..footer + 48].copy_from_slice(&checksum);
}
