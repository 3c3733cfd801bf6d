//! Devices: virtio over MMIO, the serial console, VMGENID, reset.
//!
//! Every virtio device has the same shape: a live type that implements [`mmio::VirtioDevice`], and a
//! plain state type (`BlockStateV1`) that is saved and checked on restore. [`mmio`] carries the registers
//! all of them share. Devices are worked by one thread, the event loop; vCPU threads only touch the
//! registers, under the transport's lock, and ring queues through ioeventfds. What the guest writes is
//! hostile: where its driver breaks the rules, the device stops until it is reset.
//!
//! [`DeviceSet`] holds them all. Its [`wiring`](DeviceSet::wiring) says what to register with KVM.

pub mod block;
mod chain;
mod console;
mod i8042;
mod interrupt;
pub mod mmio;
mod queue;
pub mod rng;
pub mod serial;
mod set;
#[cfg(test)]
mod testing;
mod transfer;
pub mod vmgenid;
pub mod vsock;

pub use block::disk::{Backing, Disk, DiskConfig};
pub use queue::QueueStateV1;
pub use set::{DeviceConfig, DeviceSet, DeviceSetStateV1, DiskGuard, WINDOWS, Wiring};

use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// The guest's memory, shared by vCPUs and devices.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;

/// Why a device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The host refused something.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The host's answer.
        source: io::Error,
    },
    /// The configuration, or the state to restore, does not fit.
    #[error("{device} device: {why}")]
    State {
        /// Which device.
        device: &'static str,
        /// What does not fit.
        why: String,
    },
}

impl DeviceError {
    pub(crate) fn io(doing: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Io { doing, source: source.into() }
    }

    pub(crate) fn state(device: &'static str, why: impl Into<String>) -> Self {
        Self::State { device, why: why.into() }
    }
}

/// What is wrong with a saved state; the caller knows of which device.
#[derive(Debug)]
pub(crate) struct StateError(pub(crate) String);

fn new_eventfd() -> Result<EventFd, DeviceError> {
    EventFd::new(EFD_NONBLOCK).map_err(|e| DeviceError::io("making an eventfd", e))
}

/// Fills `buf` with random numbers from the host's kernel.
pub(crate) fn random(buf: &mut [u8]) -> Result<(), DeviceError> {
    let mut done = 0;
    while done < buf.len() {
        match getrandom(&mut buf[done..], GetRandomFlags::empty()) {
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(DeviceError::io("getting random numbers", e)),
        }
    }
    Ok(())
}

/// A random number from the host's kernel.
fn random_u64() -> Result<u64, DeviceError> {
    let mut bytes = [0; 8];
    random(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
