//! The boot CPU at the kernel's entry: long mode, flat segments, memory mapped onto itself.

use super::{BootError, write};
use crate::kvm::msr::{self, Msr};
use crate::kvm::{KvmError, Vcpu};
use crate::layout;
use crate::memory::GuestMemory;
use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment};

/// Selectors the boot protocol asks for: `__BOOT_CS` and `__BOOT_DS`.
const CODE: u16 = 0x10;
const DATA: u16 = 0x18;
const TASK: u16 = 0x20;

/// Descriptors: null, null, 64-bit code, data, task state.
const GDT: [u64; 5] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x008f_8b00_0000_ffff];

/// Present and writable.
const TABLE: u64 = 0b11;
/// Present, writable, 2 MiB.
const LARGE_PAGE: u64 = 0b1000_0011;

const CR0_PROTECTED: u64 = 1;
const CR0_EXTENSION_TYPE: u64 = 1 << 4;
const CR0_PAGING: u64 = 1 << 31;
const CR0_CACHE_OFF: u64 = 0b11 << 29; // "cache disable" and "not write-through", set by a reset
const CR4_PHYSICAL_ADDRESS_EXTENSION: u64 = 1 << 5;
const EFER_LONG_MODE: u64 = 0b101 << 8; // enabled and active

/// Writes descriptor table and page tables.
pub(super) fn write_tables(guest: &GuestMemory) -> Result<(), BootError> {
    let bytes = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    write(guest, layout::GDT, &bytes(&GDT), "the descriptor table")?;
    write(guest, layout::IDT, &bytes(&[0]), "the interrupt table")?;
    write(guest, layout::PML4, &bytes(&[layout::PDPT | TABLE]), "the page tables")?;
    write(guest, layout::PDPT, &bytes(&[layout::PAGE_DIRECTORY | TABLE]), "the page tables")?;
    let pages: Vec<u64> = (0..512).map(|i| (i << 21) | LARGE_PAGE).collect();
    write(guest, layout::PAGE_DIRECTORY, &bytes(&pages), "the page tables")
}

/// What firmware would have set up: memory is write-back, string instructions are fast.
pub(super) fn set_memory_types(vcpu: &Vcpu) -> Result<(), KvmError> {
    const ENABLED_WRITE_BACK: u64 = (1 << 11) | 6;
    const FAST_STRINGS: u64 = 1;
    let msrs = [
        Msr { index: msr::MISC_ENABLE, value: FAST_STRINGS },
        Msr { index: msr::MTRR_DEF_TYPE, value: ENABLED_WRITE_BACK },
    ];
    msr::write(vcpu.fd(), &msrs)
}

/// Sets the registers so that the next instruction is the kernel's first.
pub(super) fn enter_at(vcpu: &Vcpu, entry: u64) -> Result<(), KvmError> {
    let (_, mut sregs) = vcpu.registers()?;
    let code = segment(CODE);
    let data = segment(DATA);
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.tr = segment(TASK);
    sregs.gdt =
        kvm_dtable { base: layout::GDT, limit: size_of_val(&GDT) as u16 - 1, ..kvm_dtable::default() };
    sregs.idt = kvm_dtable { base: layout::IDT, limit: 7, ..kvm_dtable::default() };
    sregs.cr3 = layout::PML4;
    sregs.cr4 |= CR4_PHYSICAL_ADDRESS_EXTENSION;
    sregs.cr0 &= !CR0_CACHE_OFF;
    sregs.cr0 |= CR0_PROTECTED | CR0_EXTENSION_TYPE | CR0_PAGING;
    sregs.efer |= EFER_LONG_MODE;
    let regs = kvm_regs {
        rip: entry,
        rsi: layout::ZERO_PAGE,
        rsp: layout::BOOT_STACK,
        rbp: layout::BOOT_STACK,
        rflags: 2, // the bit that is always set
        ..kvm_regs::default()
    };
    vcpu.set_registers(&regs, &sregs)
}

/// The hidden part of a segment register, from its descriptor.
fn segment(selector: u16) -> kvm_segment {
    let entry = GDT[usize::from(selector / 8)];
    let field = |at: u32, bits: u32| ((entry >> at) & ((1 << bits) - 1)) as u8;
    let granular = field(55, 1);
    let limit = ((entry & 0xffff) | (((entry >> 48) & 0xf) << 16)) as u32;
    kvm_segment {
        base: 0,
        limit: if granular == 1 { (limit << 12) | 0xfff } else { limit },
        selector,
        type_: field(40, 4),
        present: field(47, 1),
        dpl: field(45, 2),
        db: field(54, 1),
        s: field(44, 1),
        l: field(53, 1),
        g: granular,
        avl: field(52, 1),
        unusable: 0,
        padding: 0,
    }
}
