//! What set-up commands changed, kept in the cache, and laid on top of an image as one more layer each.
//!
//! A step's key is a digest of all that its result depends on. Under it lies the digest of the result: the
//! tar of an overlay's upper folder, kept as layers are. The key also names the log of the step's output.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::Image;
use super::cache::{Cache, Draft, Shelf};
use super::error::{ImageError, show};
use super::layers::{merge_error, tar_error};
use super::limits::Limits;
use super::merge::{Dialect, Merger};
use super::region::Region;
use super::tar::{EndMark, Entry, EntryKind, Reader};
use crate::tree::{Source, Timestamp};
use smolpack_registry::{Digest, Hasher};

/// The part of the cache that belongs to set-up commands.
#[derive(Clone, Debug)]
pub struct StepCache {
    cache: Cache,
}

/// What a step changed.
#[derive(Debug)]
pub struct Changes {
    /// Of the tar.
    pub digest: Digest,
    tar: Region,
}

impl StepCache {
    /// The cache at `root`, which need not exist yet.
    #[must_use]
    pub fn open(root: &Path) -> Self {
        Self { cache: Cache::open(root) }
    }

    /// What the step of this key changed when it last ran, where that is kept.
    ///
    /// # Errors
    /// A file of the cache cannot be read.
    pub fn find(&self, key: &Digest) -> Result<Option<Changes>, ImageError> {
        let Some(record) = self.cache.find(Shelf::Steps, key)? else { return Ok(None) };
        let Some(digest) = read_record(&record.file).ok().flatten() else { return Ok(None) };
        let tar = self.cache.find(Shelf::Layers, &digest)?;
        Ok(tar.map(|tar| Changes { digest, tar }))
    }

    /// A file for what a step changed, or for its log.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn draft(&self) -> Result<StepDraft, ImageError> {
        Ok(StepDraft { draft: self.cache.draft()?, hasher: Hasher::sha256() })
    }

    /// Keeps what the step of this key changed.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn publish(&self, key: &Digest, draft: StepDraft) -> Result<Changes, ImageError> {
        let digest = draft.hasher.finish();
        let tar = draft.draft.publish(&self.cache, Shelf::Layers, &digest)?;
        let mut record = self.cache.draft()?;
        writeln!(record, "{digest}").map_err(|e| ImageError::io(&record.place(), "cannot write", e))?;
        record.publish(&self.cache, Shelf::Steps, key)?;
        Ok(Changes { digest, tar })
    }

    /// Keeps the log of the step of this key, whatever became of it, and gives its path.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn publish_log(&self, key: &Digest, log: StepDraft) -> Result<PathBuf, ImageError> {
        log.draft.publish(&self.cache, Shelf::Logs, key)?;
        Ok(self.log_path(key))
    }

    /// Where the log of the step of this key lies, if it is still kept.
    #[must_use]
    pub fn log_path(&self, key: &Digest) -> PathBuf {
        self.cache.path(Shelf::Logs, key)
    }
}

/// The digest that a record holds, where it is a record.
pub(super) fn read_record(file: &File) -> io::Result<Option<Digest>> {
    use std::os::unix::fs::FileExt;
    let mut text = [0; 200];
    let len = file.read_at(&mut text, 0)?;
    let text = std::str::from_utf8(&text[..len]).ok().and_then(|text| text.strip_suffix('\n'));
    Ok(text.and_then(|text| Digest::parse(text).ok()))
}

/// What a step changed, or its log, being written.
#[derive(Debug)]
pub struct StepDraft {
    draft: Draft,
    hasher: Hasher,
}

impl StepDraft {
    /// The path of the file whose entry in the tar holds byte `at`.
    #[must_use]
    pub fn file_at(self, at: u64) -> Option<String> {
        let tar = self.draft.into_unnamed().ok()?;
        let mut reader = Reader::new(tar, Limits::default(), EndMark::Optional);
        while let Some(Entry { path, kind, .. }) = reader.next().ok()? {
            let ends = match kind {
                EntryKind::File { data, .. } => data.last().map_or(0, |stored| stored.offset + stored.len),
                _ => continue,
            };
            if at < ends {
                return Some(format!("/{}", show(path.strip_prefix(b"./").unwrap_or(&path))));
            }
        }
        None
    }
}

impl Write for StepDraft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.draft.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.draft.flush()
    }
}

/// Lays what a step changed on top of the image; times after `latest` become that.
///
/// # Errors
/// The tar is damaged or passes a bound; `place` says whose it is.
pub fn lay_on(
    image: &mut Image,
    changes: &Changes,
    latest: Timestamp,
    limits: Limits,
    place: &str,
) -> Result<(), ImageError> {
    let mut merger = Merger::on(std::mem::take(&mut image.tree), limits, Dialect::Upper);
    merger.set_source(Source::File(changes.tar.file.clone()));
    let mut reader = Reader::new(changes.tar.clone(), limits, EndMark::Required);
    while let Some(mut entry) = reader.next().map_err(|e| tar_error(place, e))? {
        entry.meta.mtime = entry.meta.mtime.min(latest);
        merger.apply(entry, changes.tar.start).map_err(|e| merge_error(place, e))?;
    }
    image.tree = merger.into_tree();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Kind, NodeId, Tree};

    /// Entries of a tar: path, type, attribute.
    type Entries<'a> = &'a [(&'a str, u8, Option<(&'a str, &'a [u8])>)];

    fn changes(cache: &StepCache, key: &Digest, entries: Entries<'_>) -> Changes {
        let mut builder = tar::Builder::new(cache.draft().unwrap());
        for (path, kind, xattr) in entries {
            if let Some((name, value)) = xattr {
                builder.append_pax_extensions([(format!("SCHILY.xattr.{name}").as_str(), *value)]).unwrap();
            }
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(tar::EntryType::new(*kind));
            header.set_mode(0o750);
            header.set_mtime(2_000_000_000);
            header.set_device_major(0).unwrap();
            header.set_device_minor(0).unwrap();
            header.set_size(0);
            builder.append_data(&mut header, path, io::empty()).unwrap();
        }
        cache.publish(key, builder.into_inner().unwrap()).unwrap()
    }

    fn names(tree: &Tree, id: NodeId, path: &str, found: &mut Vec<String>) {
        for (name, child) in tree.entries(id).into_iter().flatten() {
            let path = format!("{path}/{}", String::from_utf8_lossy(name));
            names(tree, *child, &path, found);
            found.push(path);
        }
    }

    #[test]
    fn an_upper_folder_hides_replaces_and_adds_and_leaves_no_marks() {
        let folder = tempfile::tempdir().unwrap();
        let cache = StepCache::open(folder.path());
        let latest = Timestamp { seconds: 1_000_000_000, nanoseconds: 0 };
        let mut image = Image {
            reference: "x".into(),
            digest: None,
            config: crate::image::ImageConfig::default(),
            tree: Tree::new(),
        };
        let opaque = Some(("trusted.overlay.opaque", b"y".as_slice()));
        let steps: [Entries<'_>; 2] = [
            &[
                ("a", b'0', None),
                ("b/c", b'0', None),
                ("b/d", b'0', None),
                ("e/f", b'0', None),
                ("g", b'5', None),
            ],
            &[
                ("a", b'3', None),
                ("b/", b'5', Some(("trusted.overlay.origin", b"z"))),
                ("b/c", b'3', None),
                ("b/.wh.d", b'0', None),
                ("e/", b'5', opaque),
                ("e/new", b'0', Some(("user.kept", b"1"))),
                ("g", b'0', None),
                ("nowhere", b'3', None),
            ],
        ];
        for (number, entries) in steps.iter().enumerate() {
            let key = Digest::of(&[number as u8]);
            assert!(cache.find(&key).unwrap().is_none());
            let made = changes(&cache, &key, entries);
            let found = cache.find(&key).unwrap().unwrap();
            assert_eq!(made.digest, found.digest);
            lay_on(&mut image, &found, latest, Limits::default(), "step").unwrap();
        }
        let mut found = Vec::new();
        names(&image.tree, Tree::ROOT, "", &mut found);
        // A name that means something in a layer means nothing here.
        assert_eq!(found, ["/b/.wh.d", "/b/d", "/b", "/e/new", "/e", "/g"]);
        let at =
            |path: &[&[u8]]| path.iter().fold(Tree::ROOT, |id, name| image.tree.entries(id).unwrap()[*name]);
        let meta = |path: &[&[u8]]| image.tree.node(at(path)).meta.clone();
        assert!(meta(&[b"b"]).xattrs.is_empty() && meta(&[b"e"]).xattrs.is_empty());
        assert_eq!(meta(&[b"e", b"new"]).xattrs.len(), 1);
        assert_eq!(meta(&[b"b"]).mtime, latest);
        assert!(matches!(image.tree.node(at(&[b"g"])).kind, Kind::File { .. }));
    }

    #[test]
    fn a_result_that_is_gone_or_whose_record_is_damaged_is_not_found() {
        let folder = tempfile::tempdir().unwrap();
        let cache = StepCache::open(folder.path());
        let key = Digest::of(b"key");
        let made = changes(&cache, &key, &[("a", b'0', None)]);
        let record = cache.cache.path(Shelf::Steps, &key);
        let text = std::fs::read(&record).unwrap();
        std::fs::write(&record, "sha256:no\n").unwrap();
        assert!(cache.find(&key).unwrap().is_none());
        std::fs::write(&record, text).unwrap();
        assert!(cache.find(&key).unwrap().is_some());
        std::fs::remove_file(cache.cache.path(Shelf::Layers, &made.digest)).unwrap();
        assert!(cache.find(&key).unwrap().is_none());
    }
}
