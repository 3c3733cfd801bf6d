//! A driver for tests: it sets a device up through its registers and lays rings out in guest memory.

use std::sync::atomic::Ordering;
use vm_memory::{Bytes, GuestAddress};

use super::GuestMemory;
use super::mmio::{Mmio, VirtioDevice, Window};

/// Where descriptors, rings and data of queue `n` start.
const QUEUE_AREA: u64 = 0x1_0000;
/// Within that area: the available ring, the used ring, the data.
const AVAIL: u64 = 0x2000;
const USED: u64 = 0x3000;
const DATA: u64 = 0x4000;

/// Guest memory in which all that a [`Driver`] needs lies.
pub(crate) fn memory() -> GuestMemory {
    GuestMemory::from_ranges(&[(GuestAddress(0), 0x8_0000), (GuestAddress(0x8_0000), 0x48_0000)]).unwrap()
}

/// Numbers that look random and are the same for the same seed.
pub(crate) struct Random(u64);

impl Random {
    /// A generator whose seed is printed, which is seen when a test fails, and taken from `SEED` where set.
    pub(crate) fn new(test: &str) -> Self {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| super::random_u64().unwrap());
        println!("{test}: SEED={seed}");
        Self(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 to `below` - 1.
    pub(crate) fn below(&mut self, below: u64) -> u64 {
        (self.next() >> 16) % below
    }

    /// One of `choices`.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// One buffer of a chain: bytes for the device, or room for its answer.
pub(crate) enum Piece<'a> {
    Out(&'a [u8]),
    In(usize),
}

pub(crate) use Piece::{In, Out};

/// A queue as its driver sees it.
pub(crate) struct Ring {
    base: u64,
    size: u16,
    next_desc: u16,
    avail: u16,
    used: u16,
    data: u64,
}

/// What a device answered to one chain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) written: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Ring {
    fn new(index: usize, size: u16) -> Self {
        // The data of a queue takes a MiB of its own above all rings.
        let data = 0x8_0000 + 0x10_0000 * index as u64;
        let base = QUEUE_AREA + 0x1_0000 * index as u64;
        Self { base, size, next_desc: 0, avail: 0, used: 0, data: data.max(base + DATA) }
    }

    /// Writes one descriptor.
    pub(crate) fn describe(&self, mem: &GuestMemory, at: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let mut raw = [0; 16];
        raw[..8].copy_from_slice(&addr.to_le_bytes());
        raw[8..12].copy_from_slice(&len.to_le_bytes());
        raw[12..14].copy_from_slice(&flags.to_le_bytes());
        raw[14..].copy_from_slice(&next.to_le_bytes());
        mem.write_slice(&raw, GuestAddress(self.base + 16 * u64::from(at))).unwrap();
    }

    /// Makes the chain at `head` available.
    pub(crate) fn publish(&mut self, mem: &GuestMemory, head: u16) {
        let slot = self.base + AVAIL + 4 + 2 * u64::from(self.avail % self.size);
        mem.write_obj(head, GuestAddress(slot)).unwrap();
        self.avail = self.avail.wrapping_add(1);
        mem.store(self.avail, GuestAddress(self.base + AVAIL + 2), Ordering::Release).unwrap();
    }

    /// Puts a chain into the queue, its data laid out from `self.data` on; returns where each piece lies.
    /// Only one chain at a time is in use by the tests that care about the answer.
    pub(crate) fn add(&mut self, mem: &GuestMemory, pieces: &[Piece<'_>]) -> u16 {
        let head = self.next_desc;
        let mut at = self.data + 0x1000 * u64::from(head);
        for (i, piece) in pieces.iter().enumerate() {
            let (len, flags) = match piece {
                Out(bytes) => {
                    mem.write_slice(bytes, GuestAddress(at)).unwrap();
                    (bytes.len(), 0)
                }
                In(len) => (*len, 2),
            };
            let more = u16::from(i + 1 < pieces.len());
            let this = self.next_desc;
            self.next_desc = (this + 1) % self.size;
            self.describe(mem, this, at, len as u32, flags | more, self.next_desc);
            at += len as u64;
        }
        self.publish(mem, head);
        head
    }

    /// The chains that came back since the last time: head, bytes written.
    pub(crate) fn take_used(&mut self, mem: &GuestMemory) -> Vec<(u16, u32)> {
        let idx: u16 = mem.load(GuestAddress(self.base + USED + 2), Ordering::Acquire).unwrap();
        let mut done = Vec::new();
        while self.used != idx {
            let at = self.base + USED + 4 + 8 * u64::from(self.used % self.size);
            let [head, len]: [u32; 2] = mem.read_obj(GuestAddress(at)).unwrap();
            done.push((head as u16, len));
            self.used = self.used.wrapping_add(1);
        }
        done
    }

    /// How many chains came back that were not taken.
    pub(crate) fn pending(&self, mem: &GuestMemory) -> u16 {
        let idx: u16 = mem.load(GuestAddress(self.base + USED + 2), Ordering::Acquire).unwrap();
        idx.wrapping_sub(self.used)
    }

    /// Whether the device, by its event index, wants to be told of the next chain.
    pub(crate) fn wants_kick(&self, mem: &GuestMemory) -> bool {
        let at = self.base + USED + 4 + 8 * u64::from(self.size);
        mem.load::<u16>(GuestAddress(at), Ordering::Acquire).unwrap() == self.avail
    }

    /// The bytes of the writable buffers of a chain that `add` laid out.
    pub(crate) fn answer(&self, mem: &GuestMemory, head: u16) -> Vec<u8> {
        let (mut at, mut bytes) = (head, Vec::new());
        loop {
            let raw: [u8; 16] = mem.read_obj(GuestAddress(self.base + 16 * u64::from(at))).unwrap();
            let addr = u64::from_le_bytes(raw[..8].try_into().unwrap());
            let len = u32::from_le_bytes(raw[8..12].try_into().unwrap());
            if raw[12] & 2 != 0 {
                let start = bytes.len();
                bytes.resize(start + len as usize, 0);
                mem.read_slice(&mut bytes[start..], GuestAddress(addr)).unwrap();
            }
            if raw[12] & 1 == 0 {
                return bytes;
            }
            at = u16::from_le_bytes(raw[14..].try_into().unwrap());
        }
    }
}

/// A driver of one device.
pub(crate) struct Driver<'a> {
    pub(crate) mem: GuestMemory,
    pub(crate) device: &'a dyn Window,
    pub(crate) rings: Vec<Ring>,
}

pub(crate) fn read32(device: &dyn Window, offset: u32) -> u32 {
    let mut data = [0; 4];
    device.read(offset, &mut data);
    u32::from_le_bytes(data)
}

pub(crate) fn write32(device: &dyn Window, offset: u32, value: u32) {
    device.write(offset, &value.to_le_bytes());
}

impl<'a> Driver<'a> {
    /// Sets a device up as Linux does, taking all features; each queue as large as it may be.
    pub(crate) fn start<D: VirtioDevice>(mem: &GuestMemory, device: &'a Mmio<D>) -> Self {
        Self::start_with(mem, device, u64::MAX)
    }

    /// As `start`, taking only some features.
    pub(crate) fn start_with<D: VirtioDevice>(mem: &GuestMemory, device: &'a Mmio<D>, features: u64) -> Self {
        let mut driver = Self { mem: mem.clone(), device, rings: Vec::new() };
        write32(device, 0x70, 0);
        write32(device, 0x70, 1);
        write32(device, 0x70, 3);
        for half in [0, 1] {
            write32(device, 0x14, half);
            let offered = read32(device, 0x10);
            write32(device, 0x24, half);
            write32(device, 0x20, offered & (features >> (32 * half)) as u32);
        }
        write32(device, 0x70, 11);
        assert_eq!(read32(device, 0x70), 11, "the features were not taken");
        for (index, &size) in D::QUEUES.iter().enumerate() {
            driver.set_up_queue(index, size);
        }
        write32(device, 0x70, 15);
        driver
    }

    fn set_up_queue(&mut self, index: usize, size: u16) {
        let ring = Ring::new(index, size);
        let area = vec![0; DATA as usize];
        self.mem.write_slice(&area, GuestAddress(ring.base)).unwrap();
        write32(self.device, 0x30, index as u32);
        write32(self.device, 0x38, size.into());
        for (register, offset) in [(0x80, 0), (0x90, AVAIL), (0xa0, USED)] {
            write32(self.device, register, (ring.base + offset) as u32);
            write32(self.device, register + 4, 0);
        }
        write32(self.device, 0x44, 1);
        self.rings.push(ring);
    }

    /// The registers by which a restored device is to be reached.
    pub(crate) fn moved_to(self, device: &dyn Window) -> Driver<'_> {
        Driver { mem: self.mem, device, rings: self.rings }
    }

    pub(crate) fn status(&self) -> u32 {
        read32(self.device, 0x70)
    }

    pub(crate) fn needs_reset(&self) -> bool {
        self.status() & 0x40 != 0
    }

    /// Says that queue `queue` has something in it.
    pub(crate) fn kick(&self, queue: usize) {
        write32(self.device, 0x50, queue as u32);
    }

    /// Puts one chain into a queue; its head.
    pub(crate) fn add(&mut self, queue: usize, pieces: &[Piece<'_>]) -> u16 {
        self.rings[queue].add(&self.mem, pieces)
    }

    /// Puts a chain into `queue`, has `device` work it, and returns its answer.
    pub(crate) fn ask<D: VirtioDevice>(
        &mut self,
        device: &Mmio<D>,
        queue: usize,
        pieces: &[Piece<'_>],
    ) -> Option<Answer> {
        let head = self.add(queue, pieces);
        self.kick(queue);
        device.process(queue);
        let done = self.rings[queue].take_used(&self.mem);
        let &[(answered, written)] = done.as_slice() else { return None };
        assert_eq!(answered, head);
        Some(Answer { written: written as usize, bytes: self.rings[queue].answer(&self.mem, head) })
    }
}

/// Lets a driver that keeps no rule at all loose on a device: random descriptors, indices and registers.
/// The device must neither panic nor hang; `make` makes it anew for each round.
pub(crate) fn torment<D: VirtioDevice>(
    test: &str,
    rounds: usize,
    make: impl Fn(&GuestMemory) -> Mmio<D>,
    mut between: impl FnMut(&Mmio<D>, &mut Random),
) {
    let mut random = Random::new(test);
    let mem = memory();
    for _ in 0..rounds {
        let device = make(&mem);
        let features = if random.below(2) == 0 { u64::MAX } else { !(1 << 29) };
        let mut driver = Driver::start_with(&mem, &device, features);
        for _ in 0..=random.below(6) {
            for queue in 0..D::QUEUES.len() {
                scribble(&mut driver.rings[queue], &mem, &mut random);
                driver.kick(queue);
                device.process(queue);
            }
            between(&device, &mut random);
            if random.below(4) == 0 {
                let register =
                    random.pick(&[0x30, 0x38, 0x44, 0x50, 0x64, 0x70, 0x80, 0x90, 0xa0, 0x20, 0x24]);
                let value = random.pick(&[0, 1, 2, 3, 11, 15, 0x80, u32::MAX, 0x1_0000]);
                write32(&device, register, value);
                read32(&device, random.below(0x140) as u32 & !3);
            }
        }
    }
}

/// Fills a ring with chains that are mostly plausible, and all wrong in one way or another now and then.
fn scribble(ring: &mut Ring, mem: &GuestMemory, random: &mut Random) {
    let end = 0x50_0000;
    for at in 0..ring.size.min(32) {
        let addr = match random.below(8) {
            0 => random.next(),
            1 => end - random.below(64),
            // An indirect table, or data, in the rings themselves.
            2 => ring.base + random.below(0x1000),
            _ => ring.data + random.below(0x1000),
        };
        let len = match random.below(8) {
            0 => random.next() as u32,
            1 => 0,
            2 => 16 * random.below(40) as u32,
            _ => random.pick(&[1, 16, 17, 44, 60, 512, 4096, 4097]),
        };
        let flags = match random.below(8) {
            0 => random.next() as u16,
            1 => 4,
            2..=4 => 1,
            _ => 3 & random.next() as u16,
        };
        let next = if random.below(8) == 0 { random.next() as u16 } else { random.below(32) as u16 };
        ring.describe(mem, at, addr, len, flags, next);
    }
    for _ in 0..random.below(40) {
        // Headers that are plausible to one device or the other.
        let at = ring.data + 4 * random.below(0x400);
        let word = random.pick(&[0, 1, 2, 3, 4, 5, 8, 11, 13, 1024, 0x1_0001, 0x2_0001, 0x5_0001, u32::MAX]);
        mem.write_obj(word, GuestAddress(at)).unwrap();
    }
    for _ in 0..random.below(20) {
        let head = if random.below(16) == 0 { random.next() as u16 } else { random.below(32) as u16 };
        ring.publish(mem, head);
    }
    if random.below(16) == 0 {
        let idx = ring.avail.wrapping_add(random.next() as u16);
        mem.store(idx, GuestAddress(ring.base + AVAIL + 2), Ordering::Release).unwrap();
        ring.avail = idx;
    }
}
