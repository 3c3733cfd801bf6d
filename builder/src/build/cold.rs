//! The artifact without its snapshot: kernel, initrd, disk.

use sha2::{Digest as _, Sha256};
use smolpack_format::manifest::{self, Manifest};
use smolpack_format::{Digest, SectionKind, SectionOptions, SectionWriter, Writer};
use std::io;

use super::{BuildError, Request};
use crate::ext4;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::progress::Progress;
use crate::sink::BlockSink;

/// Writes the three sections and finishes the artifact.
pub(super) fn write(
    mut writer: Writer,
    request: &Request,
    kernel: &Kernel,
    image: &Image,
    progress: &mut dyn Progress,
) -> Result<Digest, BuildError> {
    let manifest = describe(request, kernel, image)?;
    progress.phase("kernel", None);
    blob(&mut writer, SectionKind::Kernel, &kernel.read_vmlinux()?)?;
    blob(&mut writer, SectionKind::Initrd, &kernel.initrd(request.agent)?)?;
    disk(&mut writer, request, image, &manifest, progress)?;
    Ok(writer.finish(manifest)?)
}

fn blob(writer: &mut Writer, kind: SectionKind, bytes: &[u8]) -> Result<(), BuildError> {
    let mut section = writer.section(kind, SectionOptions::blob())?;
    section.data(bytes)?;
    Ok(section.finish()?)
}

/// The machine's manifest, before it has a snapshot.
pub(super) fn describe(request: &Request, kernel: &Kernel, image: &Image) -> Result<Manifest, BuildError> {
    let digest = format!("sha256:{}", kernel.digest())
        .parse()
        .map_err(|_| BuildError::Internal("a kernel's digest is none"))?;
    let cmdline = request.spec.smolfile.kernel.cmdline.clone().unwrap_or_default();
    let kernel = manifest::Kernel { version: kernel.version().to_owned(), digest, cmdline };
    let mut manifest = request.spec.resolve(&image.config, kernel);
    manifest.image = Some(manifest::Image {
        reference: image.reference.clone(),
        // A digest by another algorithm is not one the manifest can hold.
        digest: image.digest.as_ref().and_then(|digest| digest.as_str().parse().ok()),
    });
    manifest.inputs.insert("agent".to_owned(), Digest::of(request.agent));
    Ok(manifest)
}

fn disk(
    writer: &mut Writer,
    request: &Request,
    image: &Image,
    manifest: &Manifest,
    progress: &mut dyn Progress,
) -> Result<(), BuildError> {
    progress.phase("disk", Some(manifest.disk_bytes));
    let (uuid, hash_seed) = identity(&image.reference);
    let options = ext4::Options {
        size: manifest.disk_bytes,
        uuid,
        hash_seed,
        label: None,
        created: request.time(image),
    };
    let mut sink =
        SectionSink { section: writer.section(SectionKind::Disk, SectionOptions::disk())?, progress };
    let summary = ext4::write(&image.tree, &options, &mut sink)?;
    let SectionSink { section, progress } = sink;
    section.finish()?;
    for (name, files) in &summary.foreign_xattrs {
        let name = String::from_utf8_lossy(name);
        progress
            .note(&format!("left out the attribute {name} of {files} files: Linux has no such namespace"));
    }
    Ok(())
}

/// UUID and hash seed. They depend on the image's name alone, so that a new version of an image changes
/// only what it changes: both go into the checksum of every piece of metadata.
fn identity(reference: &str) -> ([u8; 16], [u8; 16]) {
    let hash: [u8; 32] = Sha256::digest(format!("smolpack disk 1\n{reference}\n")).into();
    let (mut uuid, mut seed) = ([0; 16], [0; 16]);
    uuid.copy_from_slice(&hash[..16]);
    seed.copy_from_slice(&hash[16..]);
    // RFC 9562, section 5.8: version 8 is for values of one's own making.
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    (uuid, seed)
}

/// A section that takes a disk.
struct SectionSink<'w, 'p> {
    section: SectionWriter<'w>,
    progress: &'p mut dyn Progress,
}

impl BlockSink for SectionSink<'_, '_> {
    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.progress.advance(bytes.len() as u64);
        Ok(self.section.data(bytes)?)
    }

    fn zeros(&mut self, len: u64) -> io::Result<()> {
        self.progress.advance(len);
        Ok(self.section.zeros(len)?)
    }
}
