//! What a vCPU sees of the machine's devices: reads and writes that KVM does not handle itself.

use crate::control::Ended;

/// Devices behind ports and memory windows. Called from all vCPU threads at once.
pub trait Bus: Send + Sync {
    /// The guest reads `data.len()` bytes at a guest physical address. What no device answers stays 0xff.
    fn mmio_read(&self, address: u64, data: &mut [u8]);

    /// The guest writes at a guest physical address.
    fn mmio_write(&self, address: u64, data: &[u8]);

    /// The guest reads from an I/O port. What no device answers stays 0xff.
    fn pio_read(&self, port: u16, data: &mut [u8]);

    /// The guest writes to an I/O port; the answer says whether this ends the machine.
    fn pio_write(&self, port: u16, data: &[u8]) -> Option<Ended>;
}
