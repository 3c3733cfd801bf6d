//! The ACPI tables: how a guest finds its processors, devices, and the way to switch itself off.
//!
//! A hardware-reduced platform (ACPI 6.5, section 4.1): no legacy power registers, no system control
//! interrupt. Virtio devices are `LNRO0005`, as Linux calls virtio-mmio; the console is `PNP0501`, without
//! which a kernel on such a platform gives it no interrupt. A generic event device tells the guest when
//! its VM generation identifier changed.

use crate::layout;
use acpi_tables::Aml;
use acpi_tables::aml::{
    self, Device, EISAName, Equal, IO, If, Interrupt, Memory32Fixed, Method, Name, Notify, Package, Path,
    ResourceTemplate, Scope,
};
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;

const OEM: [u8; 6] = *b"SMOLPK";
const OEM_TABLE: [u8; 8] = *b"SMOLPACK";
const OEM_REVISION: u32 = 1;

/// What writing to the reset register does: the keyboard controller's reset pulse.
const RESET_VALUE: u8 = 0xfe;

/// The tables of a machine with `cpus` CPUs and virtio windows at these addresses and interrupt lines,
/// as bytes to be placed at [`layout::ACPI`]. The root pointer comes first.
#[must_use]
pub fn tables(cpus: u32, windows: &[(u64, u32)]) -> Vec<u8> {
    let mut tables = Tables { bytes: vec![0; Rsdp::len().next_multiple_of(16)] };
    let dsdt = tables.add(&dsdt(windows));
    let fadt = tables.add(&fadt(dsdt));
    let madt = tables.add(&madt(cpus));
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = tables.add(&xsdt);
    let mut root = Vec::new();
    Rsdp::new(OEM, xsdt).to_aml_bytes(&mut root);
    tables.bytes[..root.len()].copy_from_slice(&root);
    tables.bytes
}

/// Tables one after the other, each at a multiple of 16.
struct Tables {
    bytes: Vec<u8>,
}

impl Tables {
    /// Appends a table and gives its guest physical address.
    fn add(&mut self, table: &dyn Aml) -> u64 {
        let at = self.bytes.len();
        table.to_aml_bytes(&mut self.bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        layout::ACPI + at as u64
    }
}

fn port(address: u16) -> GAS {
    GAS::new(AddressSpace::SystemIo, 8, 0, AccessSize::ByteAccess, u64::from(address))
}

fn fadt(dsdt: u64) -> impl Aml {
    // No VGA, no CMOS clock, MSI not supported: probing for them costs time and finds nothing.
    const BOOT_FLAGS: u16 = (1 << 2) | (1 << 3) | (1 << 5);
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton)
        .flag(Flags::Headless)
        .flag(Flags::ResetRegSup);
    fadt.reset_reg = port(layout::I8042_COMMAND);
    fadt.reset_value = RESET_VALUE;
    fadt.sleep_control_reg = port(layout::SLEEP_CONTROL);
    fadt.sleep_status_reg = port(layout::SLEEP_STATUS);
    fadt.iapc_boot_arch = BOOT_FLAGS.into();
    fadt.finalize()
}

fn madt(cpus: u32) -> MADT {
    let mut madt = MADT::new(OEM, OEM_TABLE, OEM_REVISION, LocalInterruptController::Address(layout::LAPIC));
    for cpu in 0..cpus as u8 {
        madt.add_structure(ProcessorLocalApic::new(cpu, cpu, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(0, layout::IOAPIC, 0));
    madt
}

fn dsdt(windows: &[(u64, u32)]) -> Sdt {
    let mut body = Vec::new();
    for (index, (base, gsi)) in windows.iter().enumerate() {
        virtio(index, *base, *gsi, &mut body);
    }
    console(&mut body);
    generation(&mut body);
    let off = layout::SLEEP_TYPE_OFF;
    Name::new(Path::new("_S5_"), &Package::new(vec![&off, &0u8, &0u8, &0u8])).to_aml_bytes(&mut body);
    let mut dsdt = Sdt::new(*b"DSDT", 36, 6, OEM, OEM_TABLE, OEM_REVISION);
    dsdt.append_slice(&body);
    dsdt
}

/// An edge-triggered interrupt of its own.
fn interrupt(gsi: u32) -> Interrupt {
    Interrupt::new(true, true, false, false, gsi)
}

fn virtio(index: usize, base: u64, gsi: u32, to: &mut Vec<u8>) {
    let registers = Memory32Fixed::new(true, base as u32, layout::VIRTIO_MMIO_STRIDE as u32);
    let resources = ResourceTemplate::new(vec![&registers, &interrupt(gsi)]).to_bytes();
    Scope::new(
        Path::new("_SB_"),
        vec![&Device::new(
            Path::new(&format!("V{index:03}")),
            vec![
                &Name::new(Path::new("_HID"), &"LNRO0005"),
                &Name::new(Path::new("_UID"), &(index as u32)),
                &Name::new(Path::new("_CCA"), &1u8),
                &Name::new(Path::new("_CRS"), &Raw(resources)),
            ],
        )],
    )
    .to_aml_bytes(to);
}

fn console(to: &mut Vec<u8>) {
    let ports = IO::new(layout::SERIAL_PORT, layout::SERIAL_PORT, 1, 8);
    let resources = ResourceTemplate::new(vec![&ports, &interrupt(layout::SERIAL_GSI)]).to_bytes();
    Scope::new(
        Path::new("_SB_"),
        vec![&Device::new(
            Path::new("COM1"),
            vec![
                &Name::new(Path::new("_HID"), &EISAName::new("PNP0501")),
                &Name::new(Path::new("_UID"), &0u8),
                &Name::new(Path::new("_CRS"), &Raw(resources)),
            ],
        )],
    )
    .to_aml_bytes(to);
}

/// The VM generation identifier and the event device that announces its change.
fn generation(to: &mut Vec<u8>) {
    let (low, high) = (layout::VMGENID as u32, (layout::VMGENID >> 32) as u32);
    let event = ResourceTemplate::new(vec![&interrupt(layout::VMGENID_GSI)]).to_bytes();
    let line = layout::VMGENID_GSI as u8;
    Scope::new(
        Path::new("_SB_"),
        vec![
            &Device::new(
                Path::new("VGEN"),
                vec![
                    &Name::new(Path::new("_HID"), &"SMOL0001"),
                    &Name::new(Path::new("_CID"), &"VM_Gen_Counter"),
                    &Name::new(Path::new("_DDN"), &"VM_Gen_Counter"),
                    &Name::new(Path::new("ADDR"), &Package::new(vec![&low, &high])),
                ],
            ),
            &Device::new(
                Path::new("GED_"),
                vec![
                    &Name::new(Path::new("_HID"), &"ACPI0013"),
                    &Name::new(Path::new("_UID"), &0u8),
                    &Name::new(Path::new("_CRS"), &Raw(event)),
                    &Method::new(
                        Path::new("_EVT"),
                        1,
                        true,
                        vec![&If::new(
                            &Equal::new(&aml::Arg(0), &line),
                            vec![&Notify::new(&Path::new("\\_SB_.VGEN"), &0x80u8)],
                        )],
                    ),
                ],
            ),
        ],
    )
    .to_aml_bytes(to);
}

/// Bytes that are AML already.
struct Raw(Vec<u8>);

impl Aml for Raw {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        sink.vec(&self.0);
    }
}

/// Turns a resource template into bytes, so that it can be named after its parts are gone.
trait ToBytes {
    fn to_bytes(&self) -> Vec<u8>;
}

impl<T: Aml> ToBytes for T {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.to_aml_bytes(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    /// The table at a guest address, its checksum verified.
    fn table(bytes: &[u8], address: u64) -> &[u8] {
        let at = (address - layout::ACPI) as usize;
        let table = &bytes[at..at + u32_at(bytes, at + 4) as usize];
        assert_eq!(table.iter().fold(0u8, |sum, b| sum.wrapping_add(*b)), 0);
        table
    }

    #[test]
    fn every_table_is_reachable_from_the_root_pointer_and_its_checksum_holds() {
        let bytes = tables(4, &[(0xd000_0000, 5), (0xd000_1000, 6)]);
        assert_eq!(&bytes[..8], b"RSD PTR ");
        let xsdt = table(&bytes, u64_at(&bytes, 24));
        let found: Vec<_> = xsdt[36..].chunks(8).map(|c| table(&bytes, u64_at(c, 0))).collect();
        assert_eq!((&found[0][..4], &found[1][..4]), (&b"FACP"[..], &b"APIC"[..]));
        assert_eq!(&table(&bytes, u64_at(found[0], 140))[..4], b"DSDT");
        assert_eq!(found[1].len(), 44 + 4 * 8 + 12);
    }

    #[test]
    fn the_largest_machine_fits_into_its_place() {
        let windows: Vec<_> = (0..layout::VIRTIO_MMIO_MAX as u64)
            .map(|i| (layout::VIRTIO_MMIO + i * layout::VIRTIO_MMIO_STRIDE, 5 + i as u32))
            .collect();
        assert!((tables(layout::MAX_CPUS, &windows).len() as u64) < layout::ACPI_SIZE);
    }
}
