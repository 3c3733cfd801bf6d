//! Where everything lies in the guest's physical address space.
//!
//! RAM starts at 0 and leaves the hole [3 GiB, 4 GiB) to devices; what does not fit below goes on at
//! 4 GiB. The host keeps all of it in one mapping without the hole, so an offset in that mapping is
//! also the offset in the artifact's memory section. These addresses are part of every snapshot:
//! changing one makes old snapshots unusable.

/// Bytes of a page, and the unit of memory chunks.
pub const PAGE: u64 = 4096;

/// The least guest memory, in bytes: a kernel, its initrd and this layout need it.
pub const MIN_MEMORY: u64 = 2 << 20;

/// The most guest memory, in bytes; keeps all sums of addresses far from overflow.
pub const MAX_MEMORY: u64 = 1 << 40;

/// The most virtual CPUs.
pub const MAX_CPUS: u32 = 32;

/// First byte of the hole for devices.
pub const HOLE_START: u64 = 3 << 30;

/// First byte after the hole.
pub const HOLE_END: u64 = 4 << 30;

/// The segment descriptors the boot CPU starts with.
pub const GDT: u64 = 0x500;

/// An empty interrupt table beside them.
pub const IDT: u64 = 0x540;

/// The zero page (`struct boot_params`), handed to the kernel in `rsi`.
pub const ZERO_PAGE: u64 = 0x7000;

/// Stack pointer at entry; the kernel sets its own at once.
pub const BOOT_STACK: u64 = 0x8ff0;

/// Page tables that map the first GiB onto itself: PML4, PDPT and one page directory.
pub const PML4: u64 = 0x9000;
/// Second level.
pub const PDPT: u64 = 0xa000;
/// Third level, 512 large pages.
pub const PAGE_DIRECTORY: u64 = 0xb000;

/// The kernel command line.
pub const CMDLINE: u64 = 0x2_0000;

/// Room for the command line, its final zero included.
pub const CMDLINE_MAX: usize = 0x1_0000;

/// End of the low memory handed to the guest as usable; above lies what a BIOS would own.
pub const LOW_MEMORY_END: u64 = 0x9_fc00;

/// The ACPI root pointer, where a kernel that searches would find it; the tables follow it.
pub const ACPI: u64 = 0xe_0000;

/// Room for root pointer and tables.
pub const ACPI_SIZE: u64 = 0x1_f000;

/// The page with the VM generation identifier, reserved in the memory map.
pub const VMGENID: u64 = 0xf_f000;

/// Interrupt line of the VM generation identifier: an I/O APIC pin no legacy device shares.
pub const VMGENID_GSI: u32 = 16;

/// Where kernels are loaded to at the least.
pub const HIGH_MEMORY_START: u64 = 1 << 20;

/// First virtio-mmio window.
pub const VIRTIO_MMIO: u64 = 0xd000_0000;

/// Bytes between two windows, and the size of each.
pub const VIRTIO_MMIO_STRIDE: u64 = 0x1000;

/// The most windows: one interrupt line each, 5 to 15.
pub const VIRTIO_MMIO_MAX: usize = 11;

/// Interrupt line of the first window; each next one has the next line.
pub const VIRTIO_MMIO_GSI: u32 = 5;

/// The serial console's first I/O port (COM1).
pub const SERIAL_PORT: u16 = 0x3f8;

/// Interrupt line of the serial console.
pub const SERIAL_GSI: u32 = 4;

/// The keyboard controller's command port: writing 0xfe there resets the machine.
pub const I8042_COMMAND: u16 = 0x64;

/// ACPI sleep control register: how the guest switches itself off.
pub const SLEEP_CONTROL: u16 = 0x600;

/// ACPI sleep status register; reads as nothing pending.
pub const SLEEP_STATUS: u16 = 0x601;

/// What the DSDT declares as the sleep type of "off" (S5).
pub const SLEEP_TYPE_OFF: u8 = 5;

/// The I/O APIC's registers.
pub const IOAPIC: u32 = 0xfec0_0000;

/// The local APICs' registers.
pub const LAPIC: u32 = 0xfee0_0000;

/// One page Intel hosts need for real mode under KVM.
pub const KVM_IDENTITY_MAP: u64 = 0xfffb_c000;

/// Three pages Intel hosts need for real mode under KVM.
pub const KVM_TSS: u64 = 0xfffb_d000;

/// One contiguous piece of guest RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamRange {
    /// Guest physical address of its first byte.
    pub address: u64,
    /// Offset of its first byte in RAM with the hole left out.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The one or two pieces `memory` bytes of RAM are laid out in.
#[must_use]
pub fn ram(memory: u64) -> Vec<RamRange> {
    let low = memory.min(HOLE_START);
    let mut ranges = vec![RamRange { address: 0, offset: 0, len: low }];
    if memory > low {
        ranges.push(RamRange { address: HOLE_END, offset: low, len: memory - low });
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_stays_clear_of_the_hole_and_loses_no_byte() {
        for gib in [1_u64, 2, 3, 4, 5, 8] {
            let ranges = ram(gib << 30);
            assert_eq!(ranges.iter().map(|r| r.len).sum::<u64>(), gib << 30, "{gib} GiB");
            assert!(
                ranges.iter().all(|r| r.address + r.len <= HOLE_START || r.address >= HOLE_END),
                "{gib} GiB"
            );
        }
        assert_eq!(ram(3 << 30).len(), 1);
        assert_eq!(ram(5 << 30)[1], RamRange { address: 4 << 30, offset: 3 << 30, len: 2 << 30 });
    }

    #[test]
    fn devices_lie_in_the_hole() {
        let end = VIRTIO_MMIO + VIRTIO_MMIO_STRIDE * VIRTIO_MMIO_MAX as u64;
        assert!(VIRTIO_MMIO >= HOLE_START && end < u64::from(IOAPIC));
        const { assert!(ACPI + ACPI_SIZE <= VMGENID && VMGENID + PAGE <= HIGH_MEMORY_START) }
    }
}
