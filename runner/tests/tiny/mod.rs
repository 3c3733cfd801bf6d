//! Guests of a few instructions, which run on any `/dev/kvm`, and artifacts made of them.

#![allow(dead_code, reason = "not every test uses every guest")]

pub(crate) mod machine;

use smolpack_format::manifest::Kind;
use smolpack_format::{Artifact, Manifest, SectionKind, SectionOptions, Writer};
use smolpack_runner::bus::Bus;
use smolpack_runner::control::Ended;
use std::path::Path;

/// Where the guests' code is loaded and entered.
pub(crate) const ENTRY: u64 = 1 << 20;

/// Where [`COMPUTE`] finds the base of their window.
pub(crate) const WINDOW_BASE: u64 = 0x1f_fff0;

/// Where it finds the size in words, minus one; a power of two minus one.
pub(crate) const WINDOW_MASK: u64 = 0x1f_fff8;

/// Where [`AP`] must lie.
pub(crate) const AP_CODE: u64 = 0x3_0000;

/// Where [`AP`] writes: 16 KiB.
pub(crate) const AP_WINDOW: u64 = 0x4_0000;

/// Writes an ever growing count to changing places of a window, for ever.
///
/// ```asm
///        mov  rbx, [0x1ffff0]
///        mov  ebp, [0x1ffff8]
/// again: inc  rax
///        mov  rdx, rax
///        imul rdx, rdx, 0x1e3779b1
///        and  rdx, rbp
///        mov  [rbx+rdx*8], rax
///        jmp  again
/// ```
pub(crate) const COMPUTE: &[u8] = &[
    0x48, 0x8b, 0x1c, 0x25, 0xf0, 0xff, 0x1f, 0x00, 0x8b, 0x2c, 0x25, 0xf8, 0xff, 0x1f, 0x00, 0x48, 0xff,
    0xc0, 0x48, 0x89, 0xc2, 0x48, 0x69, 0xd2, 0xb1, 0x79, 0x37, 0x1e, 0x48, 0x21, 0xea, 0x48, 0x89, 0x04,
    0xd3, 0xeb, 0xea,
];

/// What CPU 1 does, in real mode: counts through its own window.
///
/// ```asm
///        mov  ax, 0x4000
///        mov  ds, ax
/// again: inc  ecx
///        mov  bx, cx
///        and  bx, 0x3ffc
///        mov  [bx], ecx
///        jmp  again
/// ```
pub(crate) const AP: &[u8] = &[
    0xb8, 0x00, 0x40, 0x8e, 0xd8, 0x66, 0x41, 0x89, 0xcb, 0x81, 0xe3, 0xfc, 0x3f, 0x66, 0x89, 0x0f, 0xeb,
    0xf3,
];

/// Writes `a` to `p` to the serial port, over and over, with a pause after each.
///
/// ```asm
///        mov  dx, 0x3f8
///        xor  ebx, ebx
/// again: mov  ecx, 2000
/// pause: dec  ecx
///        jnz  pause
///        mov  al, bl
///        and  al, 15
///        add  al, 'a'
///        out  dx, al
///        inc  ebx
///        jmp  again
/// ```
pub(crate) const LETTERS: &[u8] = &[
    0x66, 0xba, 0xf8, 0x03, 0x31, 0xdb, 0xb9, 0xd0, 0x07, 0x00, 0x00, 0xff, 0xc9, 0x75, 0xfc, 0x88, 0xd8,
    0x24, 0x0f, 0x04, 0x61, 0xee, 0xff, 0xc3, 0xeb, 0xec,
];

/// Switches the machine off: `mov dx, 0x600; mov al, 0x34; out dx, al; hlt`.
pub(crate) const OFF: &[u8] = &[0x66, 0xba, 0x00, 0x06, 0xb0, 0x34, 0xee, 0xf4];

/// Resets the machine: `mov al, 0xfe; out 0x64, al; hlt`.
pub(crate) const RESET: &[u8] = &[0xb0, 0xfe, 0xe6, 0x64, 0xf4];

/// An undefined instruction without an interrupt table: a triple fault. `ud2`.
pub(crate) const TRIPLE_FAULT: &[u8] = &[0x0f, 0x0b];

/// The smallest ELF image whose code lies at [`ENTRY`].
pub(crate) fn elf(code: &[u8]) -> Vec<u8> {
    let mut image = Vec::new();
    image.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    image.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]); // executable, x86-64, version 1
    image.extend_from_slice(&ENTRY.to_le_bytes());
    image.extend_from_slice(&64_u64.to_le_bytes()); // program headers
    image.extend_from_slice(&[0; 12]); // section headers, flags
    for field in [64_u16, 56, 1, 0, 0, 0] {
        image.extend_from_slice(&field.to_le_bytes());
    }
    image.extend_from_slice(&[1, 0, 0, 0, 7, 0, 0, 0]); // load; read, write, execute
    for field in [120, ENTRY, ENTRY, code.len() as u64, code.len() as u64, 4096] {
        image.extend_from_slice(&field.to_le_bytes());
    }
    image.extend_from_slice(code);
    image
}

/// Writes an artifact with this code as its kernel and an empty disk of 1 MiB.
pub(crate) fn artifact(path: &Path, code: &[u8], cpus: u32, memory_mib: u64) -> Artifact {
    let mut writer = Writer::create(path).unwrap();
    let mut kernel = writer.section(SectionKind::Kernel, SectionOptions::blob()).unwrap();
    kernel.data(&elf(code)).unwrap();
    kernel.finish().unwrap();
    let mut disk = writer.section(SectionKind::Disk, SectionOptions::disk()).unwrap();
    disk.zeros(1 << 20).unwrap();
    disk.finish().unwrap();
    writer.finish(Manifest::new(Kind::Machine, cpus, memory_mib, 1 << 20)).unwrap();
    Artifact::open(path).unwrap()
}

/// No devices at all; a write to port 0x64 ends the machine.
pub(crate) struct NoDevices;

impl Bus for NoDevices {
    fn mmio_read(&self, _: u64, _: &mut [u8]) {}
    fn mmio_write(&self, _: u64, _: &[u8]) {}
    fn pio_read(&self, _: u16, _: &mut [u8]) {}
    fn pio_write(&self, port: u16, _: &[u8]) -> Option<Ended> {
        (port == 0x64).then_some(Ended::Reset)
    }
}

/// Joins a machine and a checkpoint of it into a machine with a snapshot, as a build does.
pub(crate) fn pack(machine: &Artifact, checkpoint: &Artifact, path: &Path) -> Artifact {
    let mut writer = Writer::create(path).unwrap();
    for kind in [SectionKind::Kernel, SectionKind::Disk] {
        writer.copy_section(machine, kind).unwrap();
    }
    for kind in [SectionKind::VmState, SectionKind::Memory, SectionKind::Overlay] {
        if checkpoint.section(kind).unwrap().is_some() {
            writer.copy_section(checkpoint, kind).unwrap();
        }
    }
    let mut manifest = machine.manifest().clone();
    manifest.snapshot.clone_from(&checkpoint.manifest().snapshot);
    writer.finish(manifest).unwrap();
    Artifact::open(path).unwrap()
}
