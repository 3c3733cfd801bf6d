//! The disk through its device, against a plain array of bytes.

use smolpack_format::manifest::Kind;
use smolpack_format::{Artifact, ChunkData, Manifest, SectionKind, SectionOptions, Writer};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::disk::{Backing, DiskConfig};
use super::*;
use crate::devices::mmio::Mmio;
use crate::devices::testing::{Answer, Driver, In, Out, Random, memory, torment};

const BLOCK_BYTES: usize = BLOCK as usize;
/// Blocks of the artifact's disk, and of the machine's, which is larger.
const BASE: usize = 96;
const TOTAL: usize = 128;

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// A disk over an artifact, and what it should hold.
struct Fixture {
    artifact: Artifact,
    content: Vec<u8>,
    overlay: bool,
}

impl Fixture {
    fn new(random: &mut Random, zstd: bool, overlay: bool) -> Self {
        let options = || if zstd { SectionOptions::disk().zstd(3) } else { SectionOptions::disk() };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.smolmachine");
        let mut writer = Writer::create(&path).unwrap();
        let mut content = vec![0; TOTAL * BLOCK_BYTES];
        let mut section = writer.section(SectionKind::Disk, options()).unwrap();
        for block in content[..BASE * BLOCK_BYTES].chunks_mut(4 * BLOCK_BYTES) {
            if random.below(3) > 0 {
                fill(block, random);
            }
            section.data(block).unwrap();
        }
        section.finish().unwrap();
        if overlay {
            let mut section = writer.section(SectionKind::Overlay, options()).unwrap();
            for block in content[..BASE * BLOCK_BYTES].chunks_mut(4 * BLOCK_BYTES) {
                match random.below(4) {
                    0 => {
                        fill(block, random);
                        section.data(block).unwrap();
                    }
                    1 => {
                        block.fill(0);
                        section.zeros(block.len() as u64).unwrap();
                    }
                    _ => section.parent(block.len() as u64).unwrap(),
                }
            }
            section.finish().unwrap();
        }
        let manifest = Manifest::new(Kind::Machine, 1, 64, (BASE * BLOCK_BYTES) as u64);
        writer.finish(manifest).unwrap();
        let artifact = Artifact::open(&path).unwrap();
        Self { artifact, content, overlay }
    }

    fn disk(&self) -> Disk {
        let backing = |kind| {
            Backing::new(Arc::clone(self.artifact.file()), self.artifact.section(kind).unwrap().unwrap())
        };
        Disk::new(DiskConfig {
            base: backing(SectionKind::Disk),
            overlay: self.overlay.then(|| backing(SectionKind::Overlay)),
            scratch: tempfile::tempfile().unwrap(),
            scratch_folder: std::env::temp_dir(),
            wait_for_room: false,
            bytes: (TOTAL * BLOCK_BYTES) as u64,
            durable: false,
        })
        .unwrap()
    }
}

fn fill(bytes: &mut [u8], random: &mut Random) {
    let word = random.next().to_le_bytes();
    bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte = word[i % 8] ^ (i / 512) as u8);
}

fn header(kind: u32, sector: u64) -> [u8; 16] {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[8..].copy_from_slice(&sector.to_le_bytes());
    header
}

fn range(sector: u64, sectors: u32, flags: u32) -> [u8; 16] {
    let mut range = [0; 16];
    range[..8].copy_from_slice(&sector.to_le_bytes());
    range[8..12].copy_from_slice(&sectors.to_le_bytes());
    range[12..].copy_from_slice(&flags.to_le_bytes());
    range
}

/// A machine with a disk, as its driver sees it.
struct Bench<'a> {
    device: &'a Mmio<Block>,
    driver: Driver<'a>,
}

impl<'a> Bench<'a> {
    fn new(device: &'a Mmio<Block>, mem: &crate::devices::GuestMemory) -> Self {
        Self { device, driver: Driver::start(mem, device) }
    }

    fn read(&mut self, sector: u64, len: usize) -> (u8, Vec<u8>) {
        let split = (len / 3).min(len);
        let pieces = [Out(&header(READ, sector)), In(split), In(len - split), In(1)];
        let Answer { mut bytes, written } = self.driver.ask(self.device, 0, &pieces).unwrap();
        let status = bytes.pop().unwrap();
        assert_eq!(written, if status == OK { len + 1 } else { 1 });
        (status, bytes)
    }

    fn send(&mut self, kind: u32, sector: u64, data: &[u8]) -> u8 {
        let (first, second) = data.split_at(data.len() / 3);
        let pieces = [Out(&header(kind, sector)), Out(first), Out(second), In(1)];
        let answer = self.driver.ask(self.device, 0, &pieces).unwrap();
        assert_eq!(answer.written, 1);
        answer.bytes[0]
    }
}

#[test]
fn a_disk_reads_as_a_plain_array_whatever_it_is_made_of() {
    let mut random = Random::new("disk");
    for (zstd, overlay) in [(false, false), (false, true), (true, false), (true, true)] {
        let fixture = Fixture::new(&mut random, zstd, overlay);
        let mem = memory();
        let device = Mmio::new(mem.clone(), Block::new(fixture.disk())).unwrap();
        let mut bench = Bench::new(&device, &mem);
        let mut plain = fixture.content.clone();
        for _ in 0..400 {
            step(&mut bench, &mut plain, &mut random);
        }
        let mut whole = vec![1; plain.len()];
        device.device().disk().read_at(&mut whole, 0).unwrap();
        assert!(whole == plain);
        changes_are_all_that_differs(&fixture, &plain, device.device().disk());
    }
}

/// One request, and what it should do.
fn step(bench: &mut Bench<'_>, plain: &mut [u8], random: &mut Random) {
    let first = random.below(TOTAL as u64) as usize;
    let blocks = 1 + random.below((TOTAL - first).min(24) as u64) as usize;
    let (sector, bytes) = (first as u64 * 8, first * BLOCK_BYTES..(first + blocks) * BLOCK_BYTES);
    match random.below(8) {
        0 | 1 => {
            fill(&mut plain[bytes.clone()], random);
            assert_eq!(bench.send(WRITE, sector, &plain[bytes]), OK);
        }
        2 => {
            let kind = random.pick(&[DISCARD, WRITE_ZEROES]);
            let flags = if kind == WRITE_ZEROES { random.below(2) as u32 } else { 0 };
            plain[bytes].fill(0);
            assert_eq!(bench.send(kind, 0, &range(sector, blocks as u32 * 8, flags)), OK);
        }
        3 => assert_eq!(bench.send(FLUSH, 0, &[]), OK),
        _ => assert!(bench.read(sector, bytes.len()) == (OK, plain[bytes].to_vec())),
    }
}

fn changes_are_all_that_differs(fixture: &Fixture, plain: &[u8], disk: &Disk) {
    let section = fixture.artifact.section(SectionKind::Disk).unwrap().unwrap();
    let mut rebuilt = vec![0; TOTAL * BLOCK_BYTES];
    section.read_at(&mut rebuilt[..BASE * BLOCK_BYTES], 0).unwrap();
    let mut last = 0;
    for change in disk.changed() {
        assert!(change.start >= last && change.start < change.end, "in order, not empty");
        last = change.end + 1;
        let bytes = change.start as usize..change.end as usize;
        disk.read_at(&mut rebuilt[bytes], change.start).unwrap();
    }
    assert!(rebuilt == plain);
}

#[test]
fn a_damaged_chunk_is_an_io_error_and_the_others_are_not() {
    let fixture = Fixture::new(&mut Random::new("damage"), false, false);
    let mem = memory();
    let section = fixture.artifact.section(SectionKind::Disk).unwrap().unwrap();
    let raw = section.chunks().iter().find_map(|chunk| match chunk.data {
        ChunkData::Raw { offset } => Some((offset, chunk.at, chunk.len)),
        _ => None,
    });
    let (offset, at, len) = raw.unwrap();
    let path = format!("/proc/self/fd/{}", fixture.artifact.file().as_raw_fd());
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let healthy = fixture.content[at as usize..][..BLOCK_BYTES].to_vec();
    // The last byte of the chunk, far from what is read.
    let last = fixture.content[(at + len) as usize - 1];
    file.write_all_at(&[last ^ 1], offset + len - 1).unwrap();
    let device = Mmio::new(mem.clone(), Block::new(fixture.disk())).unwrap();
    let mut bench = Bench::new(&device, &mem);
    for _ in 0..2 {
        assert_eq!(bench.read(at / 512, BLOCK_BYTES).0, IOERR);
    }
    for chunk in section.chunks().iter().filter(|chunk| chunk.at != at) {
        assert_eq!(bench.read(chunk.at / 512, BLOCK_BYTES).0, OK);
    }
    file.write_all_at(&[last], offset + len - 1).unwrap();
    assert!(bench.read(at / 512, BLOCK_BYTES) == (OK, healthy));
}

#[test]
fn trimming_what_is_zero_is_no_change() {
    let fixture = Fixture::new(&mut Random::new("trim"), false, false);
    let mut disk = fixture.disk();
    let end = (TOTAL * BLOCK_BYTES) as u64;
    disk.zero((BASE * BLOCK_BYTES) as u64, end - (BASE * BLOCK_BYTES) as u64).unwrap();
    assert_eq!(disk.changed().count(), 0);
}

#[test]
fn requests_that_do_not_fit_fail_and_change_nothing() {
    let fixture = Fixture::new(&mut Random::new("misfits"), false, true);
    let mem = memory();
    let device = Mmio::new(mem.clone(), Block::new(fixture.disk())).unwrap();
    let mut bench = Bench::new(&device, &mem);
    let end = TOTAL as u64 * 8;
    for (name, kind, sector, len, status) in [
        ("a sector within a block", WRITE, 1, BLOCK_BYTES, IOERR),
        ("part of a block", WRITE, 0, 512, IOERR),
        ("the block beyond the end", WRITE, end, BLOCK_BYTES, IOERR),
        ("across the end", WRITE, end - 8, 2 * BLOCK_BYTES, IOERR),
        ("an address that overflows", WRITE, u64::MAX / 8 * 8, BLOCK_BYTES, IOERR),
        ("no such request", 77, 0, BLOCK_BYTES, UNSUPPORTED),
        ("no range but part of one", DISCARD, 0, 15, IOERR),
    ] {
        assert_eq!(bench.send(kind, sector, &vec![7; len]), status, "{name}");
    }
    for (name, sector, sectors, flags, status) in [
        ("part of a block", 0, 1, 0, IOERR),
        ("within a block", 4, 8, 0, IOERR),
        ("across the end", end - 8, 16, 0, IOERR),
        ("too many sectors", 0, u32::MAX, 0, IOERR),
        ("an address that overflows", u64::MAX - 7, 8, 0, IOERR),
        ("a flag discarding has not", 0, 8, 1, UNSUPPORTED),
    ] {
        assert_eq!(bench.send(DISCARD, 0, &range(sector, sectors, flags)), status, "discard: {name}");
    }
    assert_eq!(bench.read(4, BLOCK_BYTES).0, IOERR);
    assert_eq!(bench.read(end, BLOCK_BYTES).0, IOERR);
    let mut whole = vec![0; TOTAL * BLOCK_BYTES];
    device.device().disk().read_at(&mut whole, 0).unwrap();
    assert!(whole == fixture.content);
    assert!(!bench.driver.needs_reset());
}

#[test]
fn the_disk_has_a_name_and_says_its_size() {
    let fixture = Fixture::new(&mut Random::new("name"), false, false);
    let mem = memory();
    let device = Mmio::new(mem.clone(), Block::new(fixture.disk())).unwrap();
    let mut bench = Bench::new(&device, &mem);
    let answer = bench.driver.ask(&device, 0, &[Out(&header(GET_ID, 0)), In(20), In(1)]).unwrap();
    assert_eq!(&answer.bytes[..14], b"smolpack-root\0");
    assert_eq!((answer.written, answer.bytes[20]), (21, OK));
    let mut capacity = [0; 8];
    crate::devices::mmio::Window::read(&device, 0x100, &mut capacity);
    assert_eq!(u64::from_le_bytes(capacity), TOTAL as u64 * 8);
}

#[test]
fn a_request_without_header_or_status_stops_the_device() {
    let fixture = Fixture::new(&mut Random::new("no status"), false, false);
    for pieces in [vec![Out(&[0; 16])], vec![Out(&[0; 15]), In(1)], vec![In(1)]] {
        let mem = memory();
        let device = Mmio::new(mem.clone(), Block::new(fixture.disk())).unwrap();
        let mut bench = Bench::new(&device, &mem);
        assert!(bench.driver.ask(&device, 0, &pieces).is_none());
        assert!(bench.driver.needs_reset());
        // Nothing is done until it is reset.
        assert!(bench.driver.ask(&device, 0, &[Out(&header(FLUSH, 0)), In(1)]).is_none());
        let mut bench = Bench::new(&device, &mem);
        assert_eq!(bench.send(FLUSH, 0, &[]), OK);
    }
}

#[test]
fn disks_that_do_not_fit_together_are_refused() {
    let fixture = Fixture::new(&mut Random::new("sizes"), false, false);
    let config = |bytes: u64, scratch: std::fs::File| DiskConfig {
        base: Backing::new(
            Arc::clone(fixture.artifact.file()),
            fixture.artifact.section(SectionKind::Disk).unwrap().unwrap(),
        ),
        overlay: None,
        scratch,
        scratch_folder: std::env::temp_dir(),
        wait_for_room: false,
        bytes,
        durable: true,
    };
    let empty = || tempfile::tempfile().unwrap();
    let used = tempfile::tempfile().unwrap();
    used.set_len(1).unwrap();
    for (name, config) in [
        ("smaller than the artifact's", config(BLOCK, empty())),
        ("no whole blocks", config((BASE as u64 + 1) * BLOCK + 512, empty())),
        ("immense", config(1 << 60, empty())),
        ("a used scratch file", config(TOTAL as u64 * BLOCK, used)),
    ] {
        assert!(Disk::new(config).is_err(), "{name}");
    }
    assert!(Disk::new(config(BASE as u64 * BLOCK, empty())).is_ok());
}

#[test]
fn a_hostile_driver_of_the_disk_does_no_harm() {
    let fixture = Fixture::new(&mut Random::new("hostile disk"), false, true);
    torment("block", 300, |mem| Mmio::new(mem.clone(), Block::new(fixture.disk())).unwrap(), |_, _| {});
}
