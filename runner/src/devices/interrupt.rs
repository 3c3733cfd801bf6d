//! How a virtio device tells its driver that there is news.

use std::sync::atomic::{AtomicU32, Ordering};
use virtio_bindings::bindings::virtio_mmio::{VIRTIO_MMIO_INT_CONFIG, VIRTIO_MMIO_INT_VRING};
use vmm_sys_util::eventfd::EventFd;

use super::{DeviceError, new_eventfd};

/// The interrupt status register and the line behind it. It needs no lock: a vCPU reads and acknowledges
/// it while the device is at work.
pub(crate) struct Interrupt {
    status: AtomicU32,
    line: EventFd,
}

impl Interrupt {
    pub(crate) fn new() -> Result<Self, DeviceError> {
        Ok(Self { status: AtomicU32::new(0), line: new_eventfd()? })
    }

    /// The eventfd that KVM turns into an interrupt.
    pub(crate) fn line(&self) -> &EventFd {
        &self.line
    }

    /// Says that a queue has used buffers.
    pub(crate) fn raise_queue(&self) {
        self.raise(VIRTIO_MMIO_INT_VRING);
    }

    /// Says that the configuration, or the status, has changed.
    pub(crate) fn raise_config(&self) {
        self.raise(VIRTIO_MMIO_INT_CONFIG);
    }

    /// Has the driver told, with the next interrupt, that the configuration has changed.
    pub(crate) fn note_config(&self) {
        self.status.fetch_or(VIRTIO_MMIO_INT_CONFIG, Ordering::SeqCst);
    }

    fn raise(&self, reason: u32) {
        self.status.fetch_or(reason, Ordering::SeqCst);
        trigger(&self.line);
    }

    pub(crate) fn status(&self) -> u32 {
        self.status.load(Ordering::SeqCst)
    }

    pub(crate) fn acknowledge(&self, reasons: u32) {
        self.status.fetch_and(!reasons, Ordering::SeqCst);
    }

    pub(crate) fn set_status(&self, status: u32) {
        self.status.store(status, Ordering::SeqCst);
    }
}

/// Adds one to an eventfd. Failing means that its counter is full: then it is as triggered as can be.
pub(crate) fn trigger(event: &EventFd) {
    let _ = event.write(1);
}
