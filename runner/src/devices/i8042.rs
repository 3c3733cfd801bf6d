//! As much of the PC's keyboard controller as resets the machine.

/// Command and status register.
pub(crate) const COMMAND: u16 = 0x64;
/// Data register.
pub(crate) const DATA: u16 = 0x60;

/// Pulses the processor's reset line.
const RESET: u8 = 0xfe;
/// Status: output waits to be read. Always so: a driver that probes finds that it cannot empty the
/// output and gives up at once, where a silent controller would keep it waiting; and the input buffer is
/// never full, so that a reboot does not wait either.
const OUTPUT_FULL: u8 = 0x01;

/// A read of `port`.
pub(crate) fn read(port: u16) -> u8 {
    if port == COMMAND { OUTPUT_FULL } else { 0 }
}

/// A write to `port`. True when it resets the machine.
pub(crate) fn write(port: u16, value: u8) -> bool {
    port == COMMAND && value == RESET
}
