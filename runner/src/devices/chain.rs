//! One request of the driver: the buffers of a descriptor chain, checked.

use std::ops::Deref;
use virtio_queue::DescriptorChain;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::GuestMemory;
use super::queue::Broken;

/// Most buffers of one request. Drivers stay below the queue's size, which is at most 256 here.
const MAX_SEGMENTS: usize = 1024;

/// A run of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) addr: GuestAddress,
    pub(crate) len: usize,
}

/// The buffers of one descriptor chain: those to read, then those to write.
///
/// Each segment lies in guest memory and is not empty; the writable ones come last, and all of them
/// together are shorter than 4 GiB. A `Chain` is filled again and again, so that a request costs no
/// allocation.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    head: u16,
    readable: Buffers,
    writable: Buffers,
}

/// Segments one after the other, seen as one run of bytes.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    segments: Vec<Segment>,
    len: usize,
}

impl Chain {
    /// The index by which the driver knows the chain.
    pub(crate) fn head(&self) -> u16 {
        self.head
    }

    /// What the driver wrote for the device.
    pub(crate) fn readable(&self) -> &Buffers {
        &self.readable
    }

    /// Where the driver wants the answer.
    pub(crate) fn writable(&self) -> &Buffers {
        &self.writable
    }

    /// Takes in and checks a chain.
    pub(crate) fn fill<M>(
        &mut self,
        mem: &GuestMemory,
        mut descriptors: DescriptorChain<M>,
    ) -> Result<(), Broken>
    where
        M: Deref<Target = GuestMemory>,
    {
        self.head = descriptors.head_index();
        self.readable.clear();
        self.writable.clear();
        // The iterator just ends where a link leads nowhere, so the last descriptor it gives tells.
        let mut complete = false;
        for descriptor in descriptors.by_ref() {
            complete = !descriptor.has_next();
            let segment = Segment { addr: descriptor.addr(), len: descriptor.len() as usize };
            self.add(mem, segment, descriptor.is_write_only())?;
        }
        if complete { Ok(()) } else { Err(Broken::Buffer("a descriptor chain leads nowhere")) }
    }

    fn add(&mut self, mem: &GuestMemory, segment: Segment, writable: bool) -> Result<(), Broken> {
        if self.readable.segments.len() + self.writable.segments.len() == MAX_SEGMENTS {
            return Err(Broken::Buffer("a descriptor chain has too many buffers"));
        }
        if segment.len == 0 {
            return Ok(());
        }
        if !GuestMemoryBackend::check_range(mem, segment.addr, segment.len) {
            return Err(Broken::Buffer("a descriptor points outside the guest's memory"));
        }
        if writable {
            self.writable.push(segment);
        } else if self.writable.segments.is_empty() {
            self.readable.push(segment);
        } else {
            return Err(Broken::Buffer("a readable descriptor follows a writable one"));
        }
        Ok(())
    }
}

impl Buffers {
    /// Bytes in all.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn clear(&mut self) {
        self.segments.clear();
        self.len = 0;
    }

    fn push(&mut self, segment: Segment) {
        self.segments.push(segment);
        self.len += segment.len;
    }

    /// The segments that make up `len` bytes from byte `at`; fewer where there are fewer.
    pub(crate) fn slice(&self, at: usize, len: usize) -> impl Iterator<Item = Segment> + '_ {
        let (mut skip, mut left) = (at, len);
        self.segments.iter().filter_map(move |segment| {
            let start = skip.min(segment.len);
            skip -= start;
            let take = left.min(segment.len - start);
            left -= take;
            // Within the segment, whose end does not overflow.
            let addr = GuestAddress(segment.addr.0 + start as u64);
            (take > 0).then_some(Segment { addr, len: take })
        })
    }

    /// Fills `buf` from byte `at` on.
    pub(crate) fn read(&self, mem: &GuestMemory, at: usize, buf: &mut [u8]) -> Result<(), Broken> {
        let mut done = 0;
        for segment in self.slice(at, buf.len()) {
            mem.read_slice(&mut buf[done..done + segment.len], segment.addr)?;
            done += segment.len;
        }
        if done == buf.len() { Ok(()) } else { Err(Broken::Buffer("a request is too short")) }
    }

    /// Writes `bytes` from byte `at` on.
    pub(crate) fn write(&self, mem: &GuestMemory, at: usize, bytes: &[u8]) -> Result<(), Broken> {
        let mut done = 0;
        for segment in self.slice(at, bytes.len()) {
            mem.write_slice(&bytes[done..done + segment.len], segment.addr)?;
            done += segment.len;
        }
        if done == bytes.len() { Ok(()) } else { Err(Broken::Buffer("room for an answer is too short")) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mmio::Mmio;
    use super::super::rng::Rng;
    use super::super::testing::{Driver, Ring, memory};
    use super::*;

    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;
    /// Data in guest memory, and the first byte beyond it.
    const DATA: u64 = 0x8_0000;
    const END: u64 = 0x50_0000;

    type Describe = fn(&Ring, &GuestMemory);

    /// Whether the random number device answered the chain at descriptor 0, or stopped.
    fn answered(describe: Describe) -> bool {
        let mem = memory();
        let device = Mmio::new(mem.clone(), Rng::default()).unwrap();
        let mut driver = Driver::start(&mem, &device);
        describe(&driver.rings[0], &mem);
        driver.rings[0].publish(&mem, 0);
        device.process(0);
        let done = driver.rings[0].take_used(&mem).len() == 1;
        assert_eq!(driver.needs_reset(), !done);
        done
    }

    /// Descriptors of an indirect table at `DATA`: address, length, flags, next.
    fn table(mem: &GuestMemory, entries: &[(u64, u32, u16, u16)]) {
        for (i, (addr, len, flags, next)) in entries.iter().enumerate() {
            let at = DATA + 16 * i as u64;
            mem.write_obj(*addr, GuestAddress(at)).unwrap();
            mem.write_obj(*len, GuestAddress(at + 8)).unwrap();
            mem.write_obj([*flags, *next], GuestAddress(at + 12)).unwrap();
        }
    }

    #[test]
    fn chains_that_keep_the_rules_are_answered() {
        let good: [(&str, Describe); 5] = [
            ("one buffer", |r, m| r.describe(m, 0, DATA, 8, WRITE, 0)),
            ("up to the end of memory", |r, m| r.describe(m, 0, END - 8, 8, WRITE, 0)),
            ("an empty buffer", |r, m| r.describe(m, 0, u64::MAX, 0, WRITE, 0)),
            ("readable, then writable", |r, m| {
                r.describe(m, 0, DATA, 8, NEXT, 5);
                r.describe(m, 5, DATA, 8, WRITE, 0);
            }),
            ("an indirect table", |r, m| {
                table(m, &[(DATA + 0x1000, 8, NEXT, 1), (DATA + 0x2000, 8, WRITE, 0)]);
                r.describe(m, 0, DATA, 32, INDIRECT, 0);
            }),
        ];
        for (name, describe) in good {
            assert!(answered(describe), "{name}");
        }
    }

    #[test]
    fn chains_that_break_the_rules_stop_the_device() {
        let bad: [(&str, Describe); 12] = [
            ("outside memory", |r, m| r.describe(m, 0, END, 8, WRITE, 0)),
            ("across the end of memory", |r, m| r.describe(m, 0, END - 7, 8, WRITE, 0)),
            ("an address that overflows", |r, m| r.describe(m, 0, u64::MAX - 3, 8, WRITE, 0)),
            ("a loop", |r, m| r.describe(m, 0, DATA, 8, WRITE | NEXT, 0)),
            ("a link outside the table", |r, m| r.describe(m, 0, DATA, 8, WRITE | NEXT, 64)),
            ("readable after writable", |r, m| {
                r.describe(m, 0, DATA, 8, WRITE | NEXT, 1);
                r.describe(m, 1, DATA, 8, 0, 0);
            }),
            ("4 GiB in all", |r, m| {
                (0..64).for_each(|i| r.describe(m, i, DATA, 0x400_0000, WRITE | NEXT, i + 1));
            }),
            ("an empty indirect table", |r, m| r.describe(m, 0, DATA, 0, INDIRECT, 0)),
            ("a ragged indirect table", |r, m| r.describe(m, 0, DATA, 17, INDIRECT, 0)),
            ("an indirect table outside memory", |r, m| r.describe(m, 0, END, 16, INDIRECT, 0)),
            ("a table in a table", |r, m| {
                table(m, &[(DATA + 0x1000, 16, INDIRECT, 0)]);
                r.describe(m, 0, DATA, 16, INDIRECT, 0);
            }),
            ("too many buffers", |r, m| {
                let entries: Vec<_> = (1..=1100).map(|i| (END - 8, 8, WRITE | NEXT, i)).collect();
                table(m, &entries);
                r.describe(m, 0, DATA, 16 * 1100, INDIRECT, 0);
            }),
        ];
        for (name, describe) in bad {
            assert!(!answered(describe), "{name}");
        }
    }
}
