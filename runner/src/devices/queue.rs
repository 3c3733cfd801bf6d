//! A virtqueue, with the rules a device must hold it to.
//!
//! Everything in the rings is written by the guest while we look at it. [`Queue`] checks what it takes
//! out, and answers [`Broken`] where the driver broke the rules; the transport then stops the device.

use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;
use virtio_bindings::bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{QueueOwnedT, QueueT};
use vm_memory::{Address, Bytes, GuestAddress};

use super::chain::Chain;
use super::interrupt::Interrupt;
use super::{GuestMemory, StateError};

/// The driver broke the rules; the device needs a reset. Says which rule.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The rings themselves.
    #[error("virtqueue: {0}")]
    Ring(#[from] virtio_queue::Error),
    /// A buffer.
    #[error("buffer: {0}")]
    Buffer(&'static str),
    /// An address outside the guest's memory.
    #[error("guest memory: {0}")]
    Memory(#[from] vm_memory::GuestMemoryError),
}

/// What a snapshot keeps of a queue. Addresses are the guest's physical ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStateV1 {
    /// Entries, a power of two.
    pub size: u16,
    /// Whether the driver has switched it on.
    pub ready: bool,
    /// The descriptor table.
    pub desc_table: u64,
    /// The available ring.
    pub avail_ring: u64,
    /// The used ring.
    pub used_ring: u64,
    /// Index of the next available entry to take, modulo 65,536.
    pub next_avail: u16,
    /// Index of the next used entry to write, modulo 65,536.
    pub next_used: u16,
}

/// A split virtqueue, seen from the device.
pub(crate) struct Queue {
    ring: virtio_queue::Queue,
    /// Whether a chain was completed since the driver was last told.
    news: bool,
}

impl Queue {
    /// A queue of at most `max_size` entries, which must be a power of two.
    pub(crate) fn new(max_size: u16) -> Result<Self, virtio_queue::Error> {
        Ok(Self { ring: virtio_queue::Queue::new(max_size)?, news: false })
    }

    /// The registers that describe it.
    pub(crate) fn ring_mut(&mut self) -> &mut virtio_queue::Queue {
        &mut self.ring
    }

    pub(crate) fn ready(&self) -> bool {
        self.ring.ready()
    }

    pub(crate) fn size(&self) -> u16 {
        self.ring.size()
    }

    pub(crate) fn max_size(&self) -> u16 {
        self.ring.max_size()
    }

    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        self.news = false;
    }

    /// Switches the queue on with the features the driver has taken.
    pub(crate) fn activate(&mut self, mem: &GuestMemory, event_idx: bool) -> Result<(), Broken> {
        self.ring.set_event_idx(event_idx);
        if self.ready() && !self.ring.is_valid(mem) {
            return Err(Broken::Buffer("a ring lies outside the guest's memory"));
        }
        Ok(())
    }

    /// Takes the next available chain, if there is one. A queue that is not ready has none.
    pub(crate) fn pop(&mut self, mem: &GuestMemory, chain: &mut Chain) -> Result<bool, Broken> {
        if !self.ready() {
            return Ok(false);
        }
        let Some(descriptors) = self.ring.iter(mem)?.next() else { return Ok(false) };
        chain.fill(mem, descriptors)?;
        Ok(true)
    }

    /// Puts the chain taken last back, to be taken again.
    pub(crate) fn undo_pop(&mut self) {
        self.ring.go_to_previous_position();
    }

    /// Gives a chain back to the driver, with `written` bytes of it filled.
    pub(crate) fn complete(&mut self, mem: &GuestMemory, head: u16, written: u32) -> Result<(), Broken> {
        self.ring.add_used(mem, head, written)?;
        self.news = true;
        Ok(())
    }

    /// Tells the driver what was completed since the last time, unless it does not want to know.
    pub(crate) fn signal(&mut self, mem: &GuestMemory, interrupt: &Interrupt) -> Result<(), Broken> {
        if !self.news {
            return Ok(());
        }
        self.news = false;
        if self.ring.needs_notification(mem)? && !self.interrupts_off(mem)? {
            interrupt.raise_queue();
        }
        Ok(())
    }

    /// The cruder way to ask for silence, where event indices are not in use.
    fn interrupts_off(&self, mem: &GuestMemory) -> Result<bool, Broken> {
        if self.ring.event_idx_enabled() {
            return Ok(false);
        }
        let flags: u16 = mem.load(GuestAddress(self.ring.avail_ring()), Ordering::Relaxed)?;
        Ok(u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT != 0)
    }

    /// Asks to be told when the driver makes the next chain available that was not taken yet. True when
    /// there is one already: then look again.
    pub(crate) fn ask_for_kick(&mut self, mem: &GuestMemory) -> Result<bool, Broken> {
        if !self.ready() {
            return Ok(false);
        }
        Ok(self.ring.enable_notification(mem)?)
    }

    /// Asks to be told when the driver adds a chain, though there are others left to take. Returns the
    /// number of chains made available so far, modulo 65,536.
    pub(crate) fn ask_for_kick_beyond(&mut self, mem: &GuestMemory) -> Result<u16, Broken> {
        let available = self.available(mem)?;
        if self.ring.event_idx_enabled() {
            let at = GuestAddress(self.ring.used_ring())
                .checked_add(4 + 8 * u64::from(self.size()))
                .ok_or(Broken::Buffer("the used ring wraps around"))?;
            mem.store(available.to_le(), at, Ordering::SeqCst)?;
        }
        Ok(available)
    }

    /// How many chains the driver has made available so far, modulo 65,536.
    pub(crate) fn available(&self, mem: &GuestMemory) -> Result<u16, Broken> {
        Ok(self.ring.avail_idx(mem, Ordering::Acquire)?.0)
    }

    pub(crate) fn save(&self) -> QueueStateV1 {
        QueueStateV1 {
            size: self.ring.size(),
            ready: self.ring.ready(),
            desc_table: self.ring.desc_table(),
            avail_ring: self.ring.avail_ring(),
            used_ring: self.ring.used_ring(),
            next_avail: self.ring.next_avail(),
            next_used: self.ring.next_used(),
        }
    }

    /// Rebuilds a queue. `state` is hostile: sizes, alignment and indices are checked here, the place of
    /// the rings by [`activate`](Self::activate).
    pub(crate) fn restore(state: &QueueStateV1, max_size: u16) -> Result<Self, StateError> {
        if state.next_avail.wrapping_sub(state.next_used) > state.size {
            return Err(StateError("more chains in flight than the queue holds".into()));
        }
        let ring = virtio_queue::QueueState {
            max_size,
            next_avail: state.next_avail,
            next_used: state.next_used,
            event_idx_enabled: false,
            size: state.size,
            ready: state.ready,
            desc_table: state.desc_table,
            avail_ring: state.avail_ring,
            used_ring: state.used_ring,
        };
        let ring = ring.try_into().map_err(|e: virtio_queue::Error| StateError(e.to_string()))?;
        Ok(Self { ring, news: false })
    }
}
