//! As much of ELF as a guest kernel and its modules need: a vmlinux's header and segments, and a
//! module's `.modinfo` section. All input is hostile. Offsets are those of the ELF-64 structures.

use super::error::ImageFault;

/// Length of the ELF-64 file header; Linux puts the program headers right behind it.
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const PT_LOAD: u32 = 1;
const ET_REL: u16 = 1;
const ET_EXEC: u16 = 2;
const EM_X86_64: u16 = 62;
/// A section that takes no room in the file.
const SHT_NOBITS: u32 = 8;

/// Whether a file that begins so is ELF of any kind.
pub(crate) fn is_elf(head: &[u8]) -> bool {
    head.starts_with(b"\x7FELF")
}

/// How much of a vmlinux that begins with `head` belongs to its segments, in bytes. What follows
/// (symbols, debug data, the relocations a bzImage appends) is not loaded by anyone.
///
/// # Errors
/// Where it is for another machine, no executable, has no segments, or segments past `file_len`.
pub(crate) fn loaded_length(head: &[u8], file_len: u64) -> Result<u64, ImageFault> {
    check_machine(head)?;
    if u16_at(head, 16) != Some(ET_EXEC) {
        return Err(ImageFault::NotAKernel("an ELF file, but no executable kernel".into()));
    }
    let (start, count) = program_headers(head)?;
    let mut end = (start + count * PROGRAM_HEADER) as u64;
    let mut loads = 0;
    for header in head[start..].chunks_exact(PROGRAM_HEADER).take(count) {
        end = end.max(segment_end(header)?);
        loads += usize::from(u32_at(header, 0) == Some(PT_LOAD));
    }
    if loads == 0 {
        return Err(ImageFault::Malformed("an ELF file without a segment to load"));
    }
    if end > file_len {
        return Err(ImageFault::Truncated { part: "the ELF segments", need: end, have: file_len });
    }
    Ok(end)
}

/// Makes an image that was cut to its segments say that it has no sections.
pub(crate) fn forget_sections(image: &mut [u8]) {
    for field in [40..48, 58..64] {
        if let Some(bytes) = image.get_mut(field) {
            bytes.fill(0);
        }
    }
}

fn check_machine(head: &[u8]) -> Result<(), ImageFault> {
    let cut =
        || ImageFault::Truncated { part: "the ELF header", need: HEADER as u64, have: head.len() as u64 };
    let machine = u16_at(head, 18).filter(|_| head.len() >= HEADER).ok_or_else(cut)?;
    match (head[4], head[5], machine) {
        (2, 1, EM_X86_64) => Ok(()),
        (1, ..) => Err(ImageFault::NotAKernel("a 32-bit ELF file".into())),
        (_, 1, other) => Err(ImageFault::NotAKernel(format!("an ELF file for {}", machine_name(other)))),
        _ => Err(ImageFault::NotAKernel("an ELF file of the wrong byte order".into())),
    }
}

fn machine_name(machine: u16) -> String {
    match machine {
        183 => "arm64".into(),
        243 => "RISC-V".into(),
        21 => "PowerPC".into(),
        258 => "LoongArch".into(),
        other => format!("machine type {other}"),
    }
}

/// Where the program headers start and how many there are, all within `head`.
fn program_headers(head: &[u8]) -> Result<(usize, usize), ImageFault> {
    let bad = ImageFault::Malformed("ELF program headers that do not follow the header");
    let (Some(start), Some(size), Some(count)) = (u64_at(head, 32), u16_at(head, 54), u16_at(head, 56))
    else {
        return Err(bad);
    };
    let (start, count) = (usize::try_from(start).unwrap_or(usize::MAX), usize::from(count));
    let end = start.checked_add(count * PROGRAM_HEADER);
    if usize::from(size) != PROGRAM_HEADER || start < HEADER || end.is_none_or(|end| end > head.len()) {
        return Err(bad);
    }
    Ok((start, count))
}

fn segment_end(header: &[u8]) -> Result<u64, ImageFault> {
    let (offset, len) = (u64_at(header, 8), u64_at(header, 32));
    offset
        .zip(len)
        .and_then(|(offset, len)| offset.checked_add(len))
        .ok_or(ImageFault::Malformed("an ELF segment that wraps around"))
}

/// The `key=value` strings of a module's `.modinfo` section.
///
/// # Errors
/// Says what is wrong with the module.
pub(crate) fn modinfo(module: &[u8]) -> Result<Vec<&[u8]>, &'static str> {
    if !is_elf(module) || u16_at(module, 18) != Some(EM_X86_64) || module.get(4..6) != Some(&[2, 1]) {
        return Err("no ELF file for x86-64");
    }
    if u16_at(module, 16) != Some(ET_REL) {
        return Err("an ELF file, but no relocatable one");
    }
    let sections = sections(module).ok_or("section headers outside the file")?;
    let names = u16_at(module, 62).and_then(|n| sections.get(usize::from(n))).ok_or("no section names")?;
    let names = names.data(module).ok_or("section names outside the file")?;
    let info = sections.iter().find(|s| name_at(names, s.name) == Some(b".modinfo"));
    let data = info.and_then(|s| s.data(module)).ok_or("no .modinfo section")?;
    Ok(data.split(|&b| b == 0).filter(|entry| !entry.is_empty()).collect())
}

struct Section {
    name: u32,
    kind: u32,
    offset: u64,
    len: u64,
}

impl Section {
    fn data<'a>(&self, file: &'a [u8]) -> Option<&'a [u8]> {
        let start = usize::try_from(self.offset).ok()?;
        let len = usize::try_from(self.len).ok()?;
        (self.kind != SHT_NOBITS).then(|| file.get(start..start.checked_add(len)?))?
    }
}

fn sections(file: &[u8]) -> Option<Vec<Section>> {
    let start = usize::try_from(u64_at(file, 40)?).ok()?;
    let count = usize::from(u16_at(file, 60)?);
    if usize::from(u16_at(file, 58)?) != SECTION_HEADER {
        return None;
    }
    let table = file.get(start..start.checked_add(count * SECTION_HEADER)?)?;
    table.chunks_exact(SECTION_HEADER).map(section).collect()
}

fn section(header: &[u8]) -> Option<Section> {
    Some(Section {
        name: u32_at(header, 0)?,
        kind: u32_at(header, 4)?,
        offset: u64_at(header, 24)?,
        len: u64_at(header, 32)?,
    })
}

fn name_at(names: &[u8], at: u32) -> Option<&[u8]> {
    names.get(at as usize..)?.split(|&b| b == 0).next()
}

/// Little-endian 16 bits at a byte offset; `None` past the end.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

/// Little-endian 32 bits at a byte offset; `None` past the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}
