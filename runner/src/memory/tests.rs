//! Memory from a section and back, against a plain array.

use super::*;
use smolpack_format::manifest::Kind;
use smolpack_format::{Digest, Manifest, SectionKind, SectionOptions, Writer};
use std::fs::File;
use std::path::Path;
use vm_memory::Bytes;

const MIB: usize = 1 << 20;

/// 8 MiB with data, short and long runs of zeros, and a page of zeros in the midst of data.
fn contents() -> Vec<u8> {
    let mut bytes = vec![0; 8 * MIB];
    for (start, end) in [(0, 4096), (MIB, 3 * MIB), (5 * MIB + 4096, 6 * MIB), (8 * MIB - 4096, 8 * MIB)] {
        for (i, byte) in bytes[start..end].iter_mut().enumerate() {
            *byte = (i % 251) as u8 + 1;
        }
    }
    bytes[2 * MIB..2 * MIB + 4096].fill(0);
    bytes
}

fn artifact(path: &Path, bytes: &[u8], options: SectionOptions) -> Artifact {
    let mut writer = Writer::create(path).unwrap();
    let mut section = writer.section(SectionKind::Memory, options).unwrap();
    section.data(bytes).unwrap();
    section.finish().unwrap();
    let mut manifest = Manifest::new(Kind::Checkpoint, 1, 8, 1 << 20);
    manifest.parent = Some(Digest([7; 32]));
    writer.finish(manifest).unwrap();
    Artifact::open(path).unwrap()
}

fn memory(artifact: &Artifact) -> Memory {
    let section = artifact.section(SectionKind::Memory).unwrap().unwrap();
    Memory::from_section(artifact, &section).unwrap()
}

fn read_all(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    memory.guest().read_slice(&mut bytes, GuestAddress(0)).unwrap();
    bytes
}

/// What a snapshot would write.
fn scan_all(memory: &Memory) -> Vec<u8> {
    // SAFETY: nothing else uses this memory.
    let mut scan = unsafe { memory.scan() }.unwrap();
    let mut bytes = Vec::new();
    while let Some(run) = scan.next_run().unwrap() {
        match run {
            Run::Zeros(len) => bytes.resize(bytes.len() + len as usize, 0),
            Run::Data(data) => bytes.extend_from_slice(data),
        }
    }
    bytes
}

#[test]
fn raw_and_compressed_sections_read_the_same_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    for (name, options) in [
        ("raw", SectionOptions::memory()),
        ("zstd", SectionOptions::memory().zstd(3)),
        ("unaligned", SectionOptions { zero_run: 4096, ..SectionOptions::memory() }),
    ] {
        let memory = memory(&artifact(&folder.path().join(name), &contents(), options));
        assert!(read_all(&memory) == contents(), "{name}");
        assert!(scan_all(&memory) == contents(), "{name}");
    }
}

#[test]
fn a_scan_sees_untouched_pages_of_the_file_and_all_writes_since() {
    let folder = tempfile::tempdir().unwrap();
    let memory = memory(&artifact(&folder.path().join("m"), &contents(), SectionOptions::memory()));
    assert!(scan_all(&memory) == contents(), "before any page was touched");
    let mut expected = contents();
    for at in [0, 2 * MIB + 5, 4 * MIB, 8 * MIB - 1] {
        memory.guest().write_obj(0xee_u8, GuestAddress(at as u64)).unwrap();
        expected[at] = 0xee;
    }
    // Data that becomes zero must stay zero and not show the file again.
    memory.guest().write_slice(&[0; 8192], GuestAddress(MIB as u64)).unwrap();
    expected[MIB..MIB + 8192].fill(0);
    assert!(scan_all(&memory) == expected);
}

#[test]
fn an_untouched_machine_is_all_zeros_without_being_read() {
    let memory = Memory::new(1 << 30).unwrap();
    memory.guest().write_obj(1_u8, GuestAddress(512 << 20)).unwrap();
    // SAFETY: nothing else uses this memory.
    let mut scan = unsafe { memory.scan() }.unwrap();
    let mut data = 0;
    while let Some(run) = scan.next_run().unwrap() {
        if let Run::Data(bytes) = run {
            data += bytes.len();
        }
    }
    // One page, or one huge page where the host gives such.
    assert!((4096..=2 * MIB).contains(&data), "{data} bytes were read");
}

#[test]
fn writes_stay_out_of_the_artifact_and_of_other_restores() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    let artifact = artifact(&path, &contents(), SectionOptions::memory());
    let before = std::fs::read(&path).unwrap();
    let (one, other) = (memory(&artifact), memory(&artifact));
    one.guest().write_slice(&vec![0xaa; 8 * MIB], GuestAddress(0)).unwrap();
    assert!(read_all(&other) == contents());
    assert!(std::fs::read(&path).unwrap() == before);
}

#[test]
fn a_file_cut_short_after_it_was_opened_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    let artifact = artifact(&path, &contents(), SectionOptions::memory());
    let section = artifact.section(SectionKind::Memory).unwrap().unwrap();
    File::options().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
    let error = Memory::from_section(&artifact, &section).unwrap_err();
    assert!(matches!(error, MemoryError::ShortFile { actual: 0x30_0000, .. }), "{error}");
}

#[test]
fn a_chunk_of_the_parent_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m");
    let mut writer = Writer::create(&path).unwrap();
    let mut section = writer.section(SectionKind::Memory, SectionOptions::memory()).unwrap();
    section.zeros(4 << 20).unwrap();
    section.parent(4 << 20).unwrap();
    section.finish().unwrap();
    let mut manifest = Manifest::new(Kind::Checkpoint, 1, 8, 1 << 20);
    manifest.parent = Some(Digest([7; 32]));
    writer.finish(manifest).unwrap();
    let artifact = Artifact::open(&path).unwrap();
    let section = artifact.section(SectionKind::Memory).unwrap().unwrap();
    let error = Memory::from_section(&artifact, &section).unwrap_err();
    assert!(matches!(error, MemoryError::Parent { at: 0x40_0000 }), "{error}");
}

#[test]
fn sizes_the_layout_cannot_hold_are_refused() {
    for bytes in [0, 4096, layout::MIN_MEMORY + 1, layout::MAX_MEMORY + 4096, u64::MAX] {
        assert!(matches!(Memory::new(bytes), Err(MemoryError::Size(_))), "{bytes}");
    }
}
