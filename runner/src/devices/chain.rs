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
