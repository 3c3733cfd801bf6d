//! The conformance vectors of `testdata/format`: this crate's reader and the one in Python agree on all of
//! them. `SMOLPACK_REGENERATE=1` makes them anew.

#![allow(clippy::unwrap_used, missing_docs)]

use smolpack_format::manifest::{Kind, Manifest};
use smolpack_format::{Artifact, Digest, SectionKind, SectionOptions, SectionWriter, Writer, verify};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/format")
}

/// Bytes that differ from block to block, none of them zero.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|i| ((i / 512).wrapping_mul(31).wrapping_add(i ^ seed) % 251) as u8 + 1).collect()
}

/// With small alignment, so that the vectors are small files.
fn small(options: SectionOptions) -> SectionOptions {
    SectionOptions { alignment: 4096, ..options }
}

fn section(
    w: &mut Writer,
    kind: SectionKind,
    options: SectionOptions,
    fill: impl FnOnce(&mut SectionWriter),
) {
    let mut section = w.section(kind, options).unwrap();
    fill(&mut section);
    section.finish().unwrap();
}

fn machine(w: &mut Writer) -> Manifest {
    section(w, SectionKind::Kernel, SectionOptions::blob(), |s| s.data(&pattern(5000, 1)).unwrap());
    section(w, SectionKind::Disk, small(SectionOptions::disk()), |s| {
        s.data(&pattern(8192, 2)).unwrap();
        s.zeros(16384).unwrap();
        s.data(&pattern(8192, 3)).unwrap();
    });
    // Alignment that leaves a gap before the data.
    let memory = SectionOptions { alignment: 16384, ..SectionOptions::memory() };
    section(w, SectionKind::Memory, memory, |s| {
        s.data(&pattern(8192, 4)).unwrap();
        s.zeros(65536).unwrap();
    });
    section(w, SectionKind::Overlay, small(SectionOptions::disk()), |s| {
        s.parent(16384).unwrap();
        s.data(&pattern(4096, 5)).unwrap();
        s.parent(12288).unwrap();
    });
    let note = SectionOptions::blob().named("note");
    section(w, SectionKind::Attachment, note, |s| s.data(b"a short document").unwrap());
    Manifest::new(Kind::Machine, 12, 1, 32768)
}

fn compressed(w: &mut Writer) -> Manifest {
    let options = SectionOptions::blob().zstd(3);
    section(w, SectionKind::Initrd, options, |s| s.data(&b"smolpack".repeat(1024)).unwrap());
    Manifest::new(Kind::Machine, 1, 64, 0)
}

fn checkpoint(w: &mut Writer) -> Manifest {
    section(w, SectionKind::Memory, small(SectionOptions::memory()), |s| {
        s.parent(65536).unwrap();
        s.data(&pattern(4096, 6)).unwrap();
    });
    let mut manifest = Manifest::new(Kind::Checkpoint, 1, 64, 0);
    manifest.parent = Some(Digest::of(b"a parent"));
    manifest
}

fn large(w: &mut Writer) -> Manifest {
    section(w, SectionKind::Disk, small(SectionOptions::disk()), |s| s.zeros(8 << 20).unwrap());
    Manifest::new(Kind::Machine, 1, 64, 8 << 20)
}

fn empty(_: &mut Writer) -> Manifest {
    Manifest::new(Kind::Machine, 1, 64, 0)
}

type Maker = fn(&mut Writer) -> Manifest;

/// Name, maker, and how many bytes of a program come before it.
const VALID: [(&str, Maker, usize); 6] = [
    ("machine.smolmachine", machine, 0),
    ("zstd.smolmachine", compressed, 0),
    ("checkpoint.smolcheckpoint", checkpoint, 0),
    ("large.smolmachine", large, 0),
    ("empty.smolmachine", empty, 0),
    ("prefixed.smolmachine", machine, 4096),
];

fn make(maker: Maker, prefix: usize) -> Vec<u8> {
    let work = tempfile::tempdir().unwrap();
    let path = work.path().join("x");
    let mut writer = Writer::create(&path).unwrap();
    let manifest = maker(&mut writer);
    writer.finish(manifest).unwrap();
    let mut bytes = vec![0xCC; prefix];
    bytes.extend(fs::read(path).unwrap());
    bytes
}

fn describe(path: &Path) -> serde_json::Value {
    let artifact = Artifact::open(path).unwrap();
    let sections = artifact.sections().iter().map(|s| {
        let (kind, length, chunks, digest) = (s.kind.to_string(), s.length, s.chunks, s.digest);
        serde_json::json!({ "kind": kind, "length": length, "chunks": chunks, "digest": digest })
    });
    let sections: Vec<_> = sections.collect();
    serde_json::json!({ "digest": artifact.digest(), "kind": artifact.manifest().kind, "sections": sections })
}

fn regenerate() {
    let mut rows = Vec::new();
    for (name, maker, prefix) in VALID {
        let path = folder().join(name);
        fs::write(&path, make(maker, prefix)).unwrap();
        rows.push(serde_json::json!({ "file": name, "expect": describe(&path) }));
    }
    fs::write(folder().join("valid.json"), serde_json::to_string_pretty(&rows).unwrap() + "\n").unwrap();
    let status = Command::new("python3").arg(folder().join("generate.py")).status().unwrap();
    assert!(status.success());
}

fn rows(name: &str) -> Vec<serde_json::Value> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("SMOLPACK_REGENERATE").is_some() {
            regenerate();
        }
    });
    serde_json::from_slice(&fs::read(folder().join(name)).unwrap()).unwrap()
}

#[test]
fn valid_files_hold_what_is_expected_and_are_written_the_same_today() {
    let rows = rows("valid.json");
    assert_eq!(rows.len(), VALID.len());
    for (row, (name, maker, prefix)) in rows.iter().zip(VALID) {
        let path = folder().join(name);
        verify(&path, &mut |_, _| {}).unwrap();
        assert_eq!(row["expect"], describe(&path), "{name}");
        assert!(fs::read(&path).unwrap() == make(maker, prefix), "{name}: identical content, other bytes");
    }
}

/// A malformed file is a valid one with edits, cut or extended to a length.
fn materialise(row: &serde_json::Value) -> Vec<u8> {
    let mut data = fs::read(folder().join(row["base"].as_str().unwrap())).unwrap();
    for edit in row["edits"].as_array().unwrap() {
        let at = edit[0].as_u64().unwrap() as usize;
        for (i, pair) in edit[1].as_str().unwrap().as_bytes().chunks(2).enumerate() {
            data[at + i] = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        }
    }
    if let Some(length) = row["length"].as_u64() {
        data.resize(length as usize, 0);
    }
    data
}

#[test]
fn malformed_files_are_refused_with_the_expected_code() {
    let rows = rows("malformed.json");
    assert!(rows.len() >= 40);
    let mut wrong = Vec::new();
    for row in &rows {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&materialise(row)).unwrap();
        let got = match verify(file.path(), &mut |_, _| {}) {
            Ok(_) => "accepted".to_owned(),
            Err(e) => e.code.to_string(),
        };
        if got != row["code"].as_str().unwrap() {
            wrong.push(format!("{}: {got}, not {}", row["name"], row["code"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_reader_in_python_agrees_and_stays_short() {
    rows("valid.json");
    let reader = fs::read_to_string(folder().join("reader.py")).unwrap();
    assert!(reader.lines().count() <= 250, "{} lines", reader.lines().count());
    let out = Command::new("python3").arg(folder().join("check.py")).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
}

#[test]
fn every_code_of_the_crate_is_in_the_text_and_the_other_way_round() {
    let text = fs::read_to_string(folder().join("../../FORMAT.md")).unwrap();
    let list = text.split("## 12. Error codes").nth(1).unwrap();
    let mut named: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    let mut known: Vec<&str> = smolpack_format::Code::ALL.iter().map(|code| code.as_str()).collect();
    named.sort_unstable();
    known.sort_unstable();
    assert_eq!(named, known);
}
