//! A container's frame: all of it but the manifest and the sections' data. With these three any container can be
//! taken apart and put together again, byte for byte (FORMAT.md, "Through a registry").
//!
//! A frame is, one after the other: the header, the section index, each section's content and placement table in
//! the order of the index, the footer.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;

use crate::artifact::decode_index;
use crate::io_util::read_vec;
use crate::limits::{MAX_MANIFEST, MAX_SECTIONS};
use crate::spec::footer::FOOTER_LEN;
use crate::spec::header::{Extent, HEADER_LEN, Header, MAGIC};
use crate::spec::index::{ENTRY_LEN, Entry};
use crate::{Artifact, Code, Digest, FormatError, Part};

/// Bytes moved at once.
const STEP: u64 = 1 << 20;

impl Artifact {
    /// The manifest as it is in the file.
    ///
    /// # Errors
    /// It cannot be read any more.
    pub fn manifest_bytes(&self) -> Result<Vec<u8>, FormatError> {
        let place = self.header().manifest;
        read_vec(self.file(), self.base() + place.offset, place.length, Part::Manifest)
    }

    /// Writes the frame.
    ///
    /// # Errors
    /// `Io`: it cannot be read or written.
    pub fn write_frame(&self, out: &mut dyn Write) -> Result<(), FormatError> {
        for (extent, part) in frame_parts(self.header(), self.entries()) {
            let mut done = 0;
            while done < extent.length {
                let (at, step) = (self.base() + extent.offset + done, STEP.min(extent.length - done));
                let bytes = read_vec(self.file(), at, step, part)?;
                out.write_all(&bytes)
                    .map_err(|e| FormatError::io(part, at, "cannot write a container's frame", e))?;
                done += step;
            }
        }
        Ok(())
    }

    /// Puts a frame and a manifest into an empty file, where they belong. What comes out is a container whose
    /// data is missing: it reads as zero, and is refused wherever it is verified, until it is written at the
    /// places of the chunks.
    ///
    /// # Errors
    /// As `open`, what is wrong with them; `Io` where the file cannot be written; `Usage` where it is not empty.
    pub fn from_frame(frame: &mut dyn Read, manifest: &[u8], file: File) -> Result<Self, FormatError> {
        let size =
            file.metadata().map_err(|e| FormatError::io(Part::File, None, "cannot stat the file", e))?;
        if size.len() != 0 {
            return Err(FormatError::usage(Part::File, "a frame is laid into an empty file"));
        }
        let mut raw = [0; HEADER_LEN as usize];
        read(frame, &mut raw, 0, Part::Header)?;
        if raw[..8] != MAGIC {
            return Err(FormatError::new(
                Code::NotSmolmachine,
                Part::Header,
                0,
                "not the frame of a .smolmachine",
            ));
        }
        let (header, _) = Header::decode(&raw, 0)?;
        if header.index.length > MAX_SECTIONS * ENTRY_LEN {
            let what = format!("{} bytes of index", header.index.length);
            return Err(FormatError::new(Code::LimitExceeded, Part::Index, 104, what));
        }
        let mut index = vec![0; header.index.length as usize];
        read(frame, &mut index, header.index.offset, Part::Index)?;
        if Digest::of(&index) != header.index_digest {
            let what = "its SHA-256 is not the header's";
            return Err(FormatError::new(Code::IndexDigest, Part::Index, header.index.offset, what));
        }
        if manifest.len() as u64 != header.manifest.length || manifest.len() as u64 > MAX_MANIFEST {
            let what = format!("{} bytes, the header says {}", manifest.len(), header.manifest.length);
            return Err(FormatError::new(Code::ManifestDigest, Part::Manifest, 56, what));
        }
        let entries = decode_index(&index, header.index.offset)?;
        let write = |bytes: &[u8], at: u64, part| {
            let written = file.write_all_at(bytes, at);
            written.map_err(|e| FormatError::io(part, at, "cannot write a container's frame", e))
        };
        write(&raw, 0, Part::Header)?;
        write(&index, header.index.offset, Part::Index)?;
        write(manifest, header.manifest.offset, Part::Manifest)?;
        for (extent, part) in frame_parts(&header, &entries).skip(2) {
            let mut done = 0;
            while done < extent.length {
                let (at, mut step) = (extent.offset + done, vec![0; STEP.min(extent.length - done) as usize]);
                read(frame, &mut step, at, part)?;
                write(&step, at, part)?;
                done += step.len() as u64;
            }
        }
        if frame.read(&mut [0]).map_err(|e| FormatError::io(Part::File, None, "cannot read a frame", e))? > 0
        {
            return Err(FormatError::new(
                Code::TrailingData,
                Part::Footer,
                None,
                "bytes after a frame's end",
            ));
        }
        Self::from_file(file)
    }
}

/// The parts of a frame, in order.
fn frame_parts(header: &Header, entries: &[Entry]) -> impl Iterator<Item = (Extent, Part)> {
    let start = [(Extent { offset: 0, length: HEADER_LEN }, Part::Header), (header.index, Part::Index)];
    let footer = Extent { offset: header.length.saturating_sub(FOOTER_LEN), length: FOOTER_LEN };
    let tables = entries.iter().flat_map(|entry| {
        let part = Part::Section(entry.kind);
        [(entry.content, part), (entry.placement, part)]
    });
    start.into_iter().chain(tables).chain([(footer, Part::Footer)])
}

fn read(from: &mut dyn Read, buf: &mut [u8], at: u64, part: Part) -> Result<(), FormatError> {
    from.read_exact(buf).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            FormatError::new(Code::Truncated, part, at, "the frame ends before its last part")
        }
        _ => FormatError::io(part, at, "cannot read a frame", e),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Kind;
    use crate::{Manifest, SectionKind, SectionOptions, Writer};

    fn sample() -> Artifact {
        let file = tempfile::tempfile().unwrap();
        let mut writer = Writer::to_file(file.try_clone().unwrap()).unwrap();
        for (kind, options) in [
            (SectionKind::Kernel, SectionOptions::blob().zstd(3)),
            (SectionKind::Disk, SectionOptions::disk()),
            (SectionKind::Attachment, SectionOptions::blob().named("a")),
        ] {
            let mut section = writer.section(kind, options).unwrap();
            section.data(&b"some bytes ".repeat(50_000)).unwrap();
            section.zeros(1 << 20).unwrap();
            section.data(b"the end").unwrap();
            section.finish().unwrap();
        }
        writer.finish(Manifest::new(Kind::Machine, 1, 128, 1 << 20)).unwrap();
        Artifact::from_file(file).unwrap()
    }

    fn bytes(artifact: &Artifact) -> Vec<u8> {
        read_vec(artifact.file(), 0, artifact.extent().end, Part::File).unwrap()
    }

    #[test]
    fn frame_manifest_and_data_are_the_container_again() {
        let artifact = sample();
        let mut frame = Vec::new();
        artifact.write_frame(&mut frame).unwrap();
        let manifest = artifact.manifest_bytes().unwrap();
        let again = Artifact::from_frame(&mut &frame[..], &manifest, tempfile::tempfile().unwrap()).unwrap();
        assert!(crate::verify_artifact(&again, &mut |_, _| {}).is_err(), "data is missing");
        let whole = bytes(&artifact);
        for position in 0..artifact.sections().len() {
            let section = again.section_at(position).unwrap();
            for (i, chunk) in section.chunks().iter().enumerate() {
                let Some(place) = chunk.stored() else { continue };
                let stored = &whole[place.start as usize..place.end as usize];
                section.check_stored(i, stored).unwrap();
                let mut bad = stored.to_vec();
                bad[stored.len() / 2] ^= 1;
                assert!(section.check_stored(i, &bad).is_err());
                again.file().write_all_at(stored, place.start).unwrap();
            }
        }
        crate::verify_artifact(&again, &mut |_, _| {}).unwrap();
        assert_eq!(bytes(&again), whole);
    }

    #[test]
    fn a_frame_that_is_cut_changed_or_of_another_manifest_is_refused() {
        let artifact = sample();
        let mut frame = Vec::new();
        artifact.write_frame(&mut frame).unwrap();
        let manifest = artifact.manifest_bytes().unwrap();
        let lay = |frame: &[u8], manifest: &[u8]| {
            let again = Artifact::from_frame(&mut &*frame, manifest, tempfile::tempfile().unwrap())?;
            (0..again.sections().len()).try_for_each(|at| again.section_at(at).map(drop))
        };
        lay(&frame, &manifest).unwrap();
        for at in (0..frame.len()).step_by(61) {
            assert!(lay(&frame[..at], &manifest).is_err(), "cut at {at}");
            let mut bad = frame.clone();
            bad[at] ^= 4;
            assert!(lay(&bad, &manifest).is_err(), "changed at {at}");
        }
        assert!(lay(&[&frame[..], b"x"].concat(), &manifest).is_err());
        let mut other = manifest.clone();
        *other.last_mut().unwrap() ^= 1;
        assert!(lay(&frame, &other).is_err() && lay(&frame, &manifest[1..]).is_err());
    }
}
