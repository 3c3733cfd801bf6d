//! Reading a kernel out of a file: an ELF vmlinux as it is, or the one inside a bzImage.
//!
//! A bzImage is decompressed here, once, so that no machine spends its boot on it. Its layout is the
//! Linux boot protocol's (`Documentation/arch/x86/boot.rst`); the field offsets below are from there.
//! Either way the image is cut to its segments: what nobody loads is not carried around.

use std::io::Read;

use memchr::memmem;

use super::codec::{self, Codec};
use super::elf::{self, u16_at, u32_at};
use super::error::ImageFault;

/// More than any vmlinux's segments or any bzImage: an allyesconfig build stays below it.
const LIMIT: u64 = 512 << 20;
/// How much of a file decides what it is; a kernel's ELF program headers lie within it.
const HEAD: usize = 64 << 10;

/// A kernel that can be booted: x86-64 ELF, cut to its segments.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) vmlinux: Vec<u8>,
    /// As `uname -r` prints it.
    pub(crate) version: String,
}

impl Image {
    /// Reads an ELF vmlinux or a bzImage of `len` bytes.
    pub(crate) fn read(mut source: impl Read, len: u64) -> Result<Self, ImageFault> {
        let mut bytes = vec![0; HEAD];
        let got = codec::read_up_to(&mut source, &mut bytes)?;
        bytes.truncate(got);
        if elf::is_elf(&bytes) {
            // Debug data can be ten times the kernel and lies behind it: read what is loaded, no more.
            let wanted = bounded(elf::loaded_length(&bytes, len)?)?;
            read_rest(source, &mut bytes, wanted)?;
            return Self::from_elf(bytes);
        }
        if !is_bzimage(&bytes) {
            return Err(ImageFault::NotAKernel(guess(&bytes)));
        }
        read_rest(source, &mut bytes, bounded(len)?)?;
        Self::from_bzimage(&bytes)
    }

    /// `bytes` hold at least the loaded segments.
    fn from_elf(mut bytes: Vec<u8>) -> Result<Self, ImageFault> {
        let end = elf::loaded_length(&bytes, bytes.len() as u64)?;
        bytes.truncate(usize::try_from(end).unwrap_or(usize::MAX));
        elf::forget_sections(&mut bytes);
        let version = banner_version(&bytes)
            .ok_or_else(|| ImageFault::NotAKernel("an ELF program without a Linux version in it".into()))?;
        Ok(Self { vmlinux: bytes, version })
    }

    fn from_bzimage(image: &[u8]) -> Result<Self, ImageFault> {
        let kernel = Self::from_elf(unpack(payload(image)?)?)?;
        match header_version(image) {
            Some(version) if version != kernel.version => {
                Err(ImageFault::Malformed("the boot header and the kernel inside name different versions"))
            }
            _ => Ok(kernel),
        }
    }
}

fn bounded(len: u64) -> Result<u64, ImageFault> {
    if len > LIMIT { Err(ImageFault::TooLarge { limit: LIMIT }) } else { Ok(len) }
}

/// Reads on until `bytes` has `wanted` of them.
fn read_rest(source: impl Read, bytes: &mut Vec<u8>, wanted: u64) -> Result<(), ImageFault> {
    source.take(wanted.saturating_sub(bytes.len() as u64)).read_to_end(bytes)?;
    let have = bytes.len() as u64;
    if have < wanted {
        return Err(ImageFault::Truncated { part: "the file", need: wanted, have });
    }
    Ok(())
}

fn is_bzimage(head: &[u8]) -> bool {
    head.get(0x202..0x206) == Some(b"HdrS") && u16_at(head, 0x1FE) == Some(0xAA55)
}

/// The payload of a bzImage, without the length that the kernel's build puts behind it.
fn payload(image: &[u8]) -> Result<&[u8], ImageFault> {
    const SHORT: ImageFault = ImageFault::Malformed("the boot header is cut short");
    // 2.08 (Linux 2.6.26) brought the payload's place, 2.12 (Linux 3.8) the flag for 64-bit kernels.
    if u16_at(image, 0x206).ok_or(SHORT)? < 0x020C || image.get(0x236).ok_or(SHORT)? & 1 == 0 {
        return Err(ImageFault::NotAKernel("a 32-bit bzImage, or one from before Linux 3.8".into()));
    }
    let setup_sectors = u64::from(*image.get(0x1F1).ok_or(SHORT)?);
    let setup_sectors = if setup_sectors == 0 { 4 } else { setup_sectors };
    let offset = u64::from(u32_at(image, 0x248).ok_or(SHORT)?);
    let len = u64::from(u32_at(image, 0x24C).ok_or(SHORT)?);
    let start = (setup_sectors + 1) * 512 + offset;
    let have = image.len() as u64;
    if start + len > have {
        return Err(ImageFault::Truncated { part: "the payload", need: start + len, have });
    }
    // In range of `image`, so in range of usize.
    Ok(&image[start as usize..(start + len) as usize])
}

/// The ELF image in a payload. All formats but gzip, which ends in it anyway, and none at all, get
/// their plain length appended: 4 bytes, little-endian.
fn unpack(payload: &[u8]) -> Result<Vec<u8>, ImageFault> {
    if elf::is_elf(payload) {
        return Ok(payload.to_vec());
    }
    let Some(codec) = Codec::sniff(payload) else {
        return Err(codec::unsupported(payload)
            .map_or(ImageFault::Malformed("the payload is in no known format"), ImageFault::Compression));
    };
    let (body, size) =
        payload.split_last_chunk::<4>().ok_or(ImageFault::Malformed("a payload of less than 4 bytes"))?;
    let claimed = u64::from(u32::from_le_bytes(*size));
    let plain = codec.decompress(if codec == Codec::Gzip { payload } else { body }, bounded(claimed)?)?;
    if plain.len() as u64 != claimed {
        return Err(ImageFault::Payload(format!("{} bytes, where {claimed} are announced", plain.len())));
    }
    Ok(plain)
}

/// The version in a bzImage's boot header, where it has one.
fn header_version(image: &[u8]) -> Option<String> {
    let at = match u16_at(image, 0x20E)? {
        0 => return None,
        at => usize::from(at) + 0x200,
    };
    version_word(image.get(at..)?)
}

/// The version in the kernel's banner, `Linux version 6.1.0 (…`.
fn banner_version(vmlinux: &[u8]) -> Option<String> {
    const BANNER: &[u8] = b"Linux version ";
    memmem::find_iter(vmlinux, BANNER).find_map(|at| version_word(&vmlinux[at + BANNER.len()..]))
}

/// What stands before the first space: a digit, then printable characters.
fn version_word(text: &[u8]) -> Option<String> {
    let word = text.iter().take(65).take_while(|b| b.is_ascii_graphic()).copied().collect::<Vec<u8>>();
    let ends = text.get(word.len()).is_some_and(|&b| b == b' ' || b == 0);
    (ends && word.first()?.is_ascii_digit()).then(|| String::from_utf8(word).ok())?
}

/// What a file that is no x86 kernel seems to be.
fn guess(head: &[u8]) -> String {
    if head.is_empty() {
        return "an empty file".into();
    }
    if head.get(56..60) == Some(b"ARM\x64") {
        return "an arm64 Image".into();
    }
    if head.starts_with(b"MZ") && head.get(4..8) == Some(b"zimg") {
        return "a compressed EFI image, which x86 kernels never are".into();
    }
    match Codec::sniff(head) {
        Some(codec) => format!("a file compressed with {codec}; if a kernel is in it, decompress it first"),
        None => "none of the known formats".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_end_at_a_space_and_begin_with_a_digit() {
        for (text, version) in [
            (&b"6.1.0-57-cloud-amd64 (debian"[..], Some("6.1.0-57-cloud-amd64")),
            (b"%s (%s)", None),
            (b"6.1.0", None),
            (b"6.1\n ", None),
            (b"", None),
        ] {
            assert_eq!(version_word(text).as_deref(), version, "{text:?}");
        }
    }
}
