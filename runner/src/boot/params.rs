//! The zero page and the command line.

use super::kernel::Initrd;
use super::{BootError, write};
use crate::layout;
use crate::memory::GuestMemory;
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use vm_memory::GuestAddress;

/// `COMMAND_LINE_SIZE` of x86 kernels, the final zero included.
const KERNEL_CMDLINE_MAX: usize = 2048;

/// Memory map types.
const USABLE: u32 = 1;
const RESERVED: u32 = 2;

/// Places the command line; the answer is its length without the final zero.
pub(super) fn write_cmdline(guest: &GuestMemory, cmdline: &str) -> Result<u32, BootError> {
    let cmdline = cmdline.trim_end();
    if cmdline.len() >= KERNEL_CMDLINE_MAX {
        return Err(BootError::Cmdline(format!(
            "{} bytes with the runner's part; a kernel takes {}",
            cmdline.len(),
            KERNEL_CMDLINE_MAX - 1
        )));
    }
    if let Some(bad) = cmdline.chars().find(|c| c.is_control()) {
        return Err(BootError::Cmdline(format!("it contains the control character {bad:?}")));
    }
    let bytes = [cmdline.as_bytes(), b"\0"].concat();
    write(guest, layout::CMDLINE, &bytes, "the command line")?;
    Ok(cmdline.len() as u32)
}

/// Places the zero page: memory map, command line, initrd and the ACPI root.
pub(super) fn write_zero_page(
    guest: &GuestMemory,
    memory: u64,
    cmdline: u32,
    initrd: Option<Initrd>,
) -> Result<(), BootError> {
    let mut params = boot_params::default();
    params.hdr.boot_flag = 0xaa55;
    params.hdr.header = u32::from_le_bytes(*b"HdrS");
    params.hdr.type_of_loader = 0xff;
    params.hdr.kernel_alignment = 0x0100_0000;
    params.hdr.cmd_line_ptr = layout::CMDLINE as u32;
    params.hdr.cmdline_size = cmdline;
    if let Some(initrd) = initrd {
        params.hdr.ramdisk_image = initrd.address;
        params.hdr.ramdisk_size = initrd.len;
    }
    params.acpi_rsdp_addr = layout::ACPI;
    let map = memory_map(memory);
    params.e820_entries = map.len() as u8;
    params.e820_table[..map.len()].copy_from_slice(&map);
    let params = BootParams::new(&params, GuestAddress(layout::ZERO_PAGE));
    LinuxBootConfigurator::write_bootparams(&params, guest).map_err(|_| BootError::Write("the zero page"))
}

fn memory_map(memory: u64) -> Vec<boot_e820_entry> {
    let entry = |start: u64, end: u64, kind| boot_e820_entry { addr: start, size: end - start, r#type: kind };
    let mut map = vec![
        entry(0, layout::LOW_MEMORY_END, USABLE),
        entry(layout::ACPI, layout::HIGH_MEMORY_START, RESERVED),
        entry(layout::HIGH_MEMORY_START, memory.min(layout::HOLE_START), USABLE),
    ];
    if memory > layout::HOLE_START {
        map.push(entry(layout::HOLE_END, layout::HOLE_END + memory - layout::HOLE_START, USABLE));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_map_gives_all_ram_but_the_first_mib_s_upper_part() {
        for gib in [1_u64, 2, 3, 5] {
            let usable: u64 =
                memory_map(gib << 30).iter().filter(|e| e.r#type == USABLE).map(|e| e.size).sum();
            assert_eq!(
                usable,
                (gib << 30) - (layout::HIGH_MEMORY_START - layout::LOW_MEMORY_END),
                "{gib} GiB"
            );
        }
    }
}
