//! A guest's driver out of bytes: it writes registers and memory, rings, resets, and is saved and restored.

use crate::Bytes;
use rustix::fs::{MemfdFlags, memfd_create};
use smolpack_format::manifest::Kind;
use smolpack_format::{Artifact, Manifest, SectionKind, SectionOptions, Writer};
use smolpack_runner::bus::Bus;
use smolpack_runner::devices::{Backing, DeviceConfig, DeviceSet, DiskConfig, GuestMemory};
use smolpack_runner::layout::{VIRTIO_MMIO, VIRTIO_MMIO_STRIDE};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use vm_memory::{Bytes as _, GuestAddress};

/// Guest memory, bytes.
const MEMORY: usize = 1 << 20;
/// The disk, bytes.
const DISK: u64 = 16 << 12;
/// Where the queues of device `d` lie: `d` times this, and within it `q` times an eighth.
const QUEUES: u64 = 0x1_0000;
/// The most operations of one input.
const OPERATIONS: usize = 2000;

/// Registers that do something when they are written (virtio 1.2, section 4.2.2).
const REGISTERS: [u32; 20] = [
    0x14, 0x20, 0x24, 0x30, 0x38, 0x44, 0x50, 0x64, 0x70, 0x80, 0x84, 0x90, 0x94, 0xa0, 0xa4, 0xac, 0xb0,
    0xb4, 0xc0, 0x100,
];

fn memory() -> Option<GuestMemory> {
    GuestMemory::from_ranges(&[(GuestAddress(0), MEMORY)]).ok()
}

fn in_memory() -> Option<File> {
    memfd_create("fuzz", MemfdFlags::CLOEXEC).ok().map(File::from)
}

fn artifact() -> Option<&'static Artifact> {
    static ARTIFACT: OnceLock<Option<Artifact>> = OnceLock::new();
    let make = || {
        let folder = tempfile::tempdir().ok()?;
        let path = folder.path().join("disk");
        let mut writer = Writer::create(&path).ok()?;
        let mut section = writer.section(SectionKind::Disk, SectionOptions::disk()).ok()?;
        section.data(&vec![5; DISK as usize]).ok()?;
        section.finish().ok()?;
        writer.finish(Manifest::new(Kind::Machine, 1, 64, DISK)).ok()?;
        Artifact::open(&path).ok()
    };
    ARTIFACT.get_or_init(make).as_ref()
}

fn config() -> Option<DeviceConfig> {
    let artifact = artifact()?;
    let section = artifact.section(SectionKind::Disk).ok()??;
    let disk = DiskConfig {
        base: Backing::new(Arc::clone(artifact.file()), section),
        overlay: None,
        scratch: in_memory()?,
        scratch_folder: "/".into(),
        wait_for_room: false,
        bytes: DISK,
        durable: false,
    };
    Some(DeviceConfig { disk, console: in_memory()?, generation: [3; 16] })
}

pub(crate) fn run(bytes: &[u8]) {
    let (Some(mem), Some(config)) = (memory(), config()) else { return };
    let Ok(set) = DeviceSet::new(&mem, config) else { return };
    let mut guest = Guest { mem, set, streams: Vec::new() };
    let mut bytes = Bytes(bytes);
    for _ in 0..OPERATIONS {
        if bytes.is_over() || guest.step(&mut bytes).is_none() {
            return;
        }
    }
}

struct Guest {
    mem: GuestMemory,
    set: DeviceSet,
    /// The host's ends of streams.
    streams: Vec<UnixStream>,
}

impl Guest {
    /// One operation; none where the host refuses something.
    fn step(&mut self, bytes: &mut Bytes<'_>) -> Option<()> {
        match bytes.byte() % 12 {
            0 => {
                let (device, register) =
                    (bytes.byte(), REGISTERS[usize::from(bytes.byte()) % REGISTERS.len()]);
                self.write(device, register, bytes.word());
            }
            1 => {
                let address = VIRTIO_MMIO + u64::from(bytes.half());
                let mut data = [0; 8];
                self.set.mmio_read(address, &mut data[..usize::from(bytes.byte() % 9)]);
            }
            2 => {
                let (address, len) = (bytes.word() as usize % MEMORY, usize::from(bytes.byte()));
                let some = bytes.some(len.min(MEMORY - address));
                self.mem.write_slice(some, GuestAddress(address as u64)).ok()?;
            }
            3 => self.set.handle_events().ok()?,
            4 => {
                self.set.pio_write(bytes.half(), &[bytes.byte()]);
                self.set.pio_read(bytes.half(), &mut [0; 4][..usize::from(bytes.byte() % 5)]);
            }
            5 => self.connect(bytes.word())?,
            6 => self.set_up(bytes.byte() % 3, bytes.byte()),
            7 => self.describe(bytes)?,
            8 => self.offer(bytes)?,
            9 => self.save_and_restore()?,
            10 => self.talk(bytes),
            _ => self.set.mmio_write(VIRTIO_MMIO + u64::from(bytes.half()), &bytes.array::<4>()),
        }
        Some(())
    }

    fn write(&self, device: u8, register: u32, value: u32) {
        let address = VIRTIO_MMIO + u64::from(device % 3) * VIRTIO_MMIO_STRIDE + u64::from(register);
        self.set.mmio_write(address, &value.to_le_bytes());
    }

    /// A driver that keeps to the rules as far as here: reset, features, queues of 16 entries.
    fn set_up(&self, device: u8, features: u8) {
        for status in [0, 1, 3] {
            self.write(device, 0x70, status);
        }
        for (half, value) in [(0, u32::from(features)), (1, 1)] {
            self.write(device, 0x24, half);
            self.write(device, 0x20, value);
        }
        self.write(device, 0x70, 11);
        for queue in 0..3 {
            self.write(device, 0x30, queue);
            self.write(device, 0x38, 16);
            for (register, part) in [(0x80, 0), (0x90, 0x400), (0xa0, 0x800)] {
                self.write(device, register, place(device, queue as u8) as u32 + part);
                self.write(device, register + 4, 0);
            }
            self.write(device, 0x44, 1);
        }
        self.write(device, 0x70, 15);
    }

    /// A descriptor of one of the queues.
    fn describe(&self, bytes: &mut Bytes<'_>) -> Option<()> {
        let at = place(bytes.byte(), bytes.byte()) + u64::from(bytes.byte() % 16) * 16;
        let (address, len) = (u64::from(bytes.word()) % (MEMORY as u64 + 0x1000), bytes.word());
        let descriptor = [
            &address.to_le_bytes()[..],
            &(len % 0x8000).to_le_bytes(),
            &u16::from(bytes.byte() % 8).to_le_bytes(),
            &u16::from(bytes.byte() % 18).to_le_bytes(),
        ];
        self.mem.write_slice(&descriptor.concat(), GuestAddress(at)).ok()
    }

    /// Makes chains available and rings.
    fn offer(&self, bytes: &mut Bytes<'_>) -> Option<()> {
        let (device, queue) = (bytes.byte(), bytes.byte());
        let ring = place(device, queue) + 0x400;
        let index: u16 = self.mem.read_obj(GuestAddress(ring + 2)).ok()?;
        let count = u16::from(bytes.byte() % 20);
        for i in 0..count {
            let slot = u64::from(index.wrapping_add(i) % 16);
            self.mem.write_obj(u16::from(bytes.byte() % 18), GuestAddress(ring + 4 + slot * 2)).ok()?;
        }
        self.mem.write_obj(index.wrapping_add(count), GuestAddress(ring + 2)).ok()?;
        self.write(device, 0x50, u32::from(queue % 3));
        self.set.handle_events().ok()
    }

    fn connect(&mut self, port: u32) -> Option<()> {
        let (ours, theirs) = UnixStream::pair().ok()?;
        ours.set_nonblocking(true).ok()?;
        self.set.connect(port, theirs);
        self.streams.push(ours);
        Some(())
    }

    /// The host writes to a stream, reads from it, or closes it.
    fn talk(&mut self, bytes: &mut Bytes<'_>) {
        if self.streams.is_empty() {
            return;
        }
        let at = usize::from(bytes.byte()) % self.streams.len();
        // A stream that takes nothing, or is gone, is as good.
        match bytes.byte() % 4 {
            0 => drop(self.streams.swap_remove(at)),
            1 => drop(self.streams[at].read(&mut [0; 4096])),
            _ => drop(self.streams[at].write(&vec![1; usize::from(bytes.half())])),
        }
    }

    fn save_and_restore(&mut self) -> Option<()> {
        let state = self.set.save();
        self.set = DeviceSet::restore(&self.mem, config()?, &state).ok()?;
        self.set.resume();
        self.streams.clear();
        Some(())
    }
}

fn place(device: u8, queue: u8) -> u64 {
    u64::from(device % 3) * QUEUES + u64::from(queue % 3) * (QUEUES / 8) + 0x1000
}
