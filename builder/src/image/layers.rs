//! From a manifest and its blobs to the merged tree.

use super::cache::Shelf;
use super::config::{self, check_platform};
use super::error::{ErrorKind, ImageError};
use super::manifest::{Blob, Blobs, Descriptor, resolve};
use super::merge::{Dialect, MergeError, Merger};
use super::region::Region;
use super::spool::{Compression, Inflate, check_digest, digest_of, sniff};
use super::tar::{EndMark, Entry, Reader, TarError};
use super::{Context, Parts};
use crate::tree::{Source, Tree};
use smolpack_registry::Digest;

/// Reads the image that `start` leads to.
pub(super) fn load(
    blobs: &dyn Blobs,
    start: &Descriptor,
    context: &Context<'_>,
) -> Result<Parts, ImageError> {
    let options = context.options;
    let (digest, manifest) = resolve(blobs, start, &options.platform, &options.limits)?;
    let place = format!("config {}", manifest.config.digest.short());
    let (config, diff_ids) = config::parse(&blobs.small(&manifest.config)?, &place)?;
    check_platform(&config, &options.platform, &place)?;
    if manifest.layers.len() != diff_ids.len() {
        let what = format!("it names {} layers, the manifest {}", diff_ids.len(), manifest.layers.len());
        return Err(ImageError::corrupt(place, what));
    }
    let missing = |diff_id: &Digest| context.cache.find(Shelf::Layers, diff_id).map(|found| found.is_none());
    let mut to_open = Vec::new();
    for (layer, diff_id) in manifest.layers.iter().zip(&diff_ids) {
        if missing(diff_id)? {
            to_open.push(layer);
        }
    }
    blobs.prepare(&to_open)?;
    let opened = manifest.layers.iter().zip(&diff_ids).enumerate().map(|(number, (layer, diff_id))| {
        let place = format!("layer {} ({})", number + 1, layer.digest.short());
        let open = || blobs.open(layer);
        Layer { diff_id, blob: Some(&layer.digest), place: &place }.open(&open, context)
    });
    let tars = opened.collect::<Result<Vec<_>, _>>()?;
    Ok(Parts { digest: Some(digest), config, tree: merge(&tars, context)? })
}

/// A layer to get at.
pub(super) struct Layer<'a> {
    /// What its tar hashes to.
    pub(super) diff_id: &'a Digest,
    /// What its blob hashes to, where that is known.
    pub(super) blob: Option<&'a Digest>,
    pub(super) place: &'a str,
}

impl Layer<'_> {
    /// The layer's verified tar: from the cache, where the blob is, or decompressed.
    pub(super) fn open(
        &self,
        blob: &dyn Fn() -> Result<Blob, ImageError>,
        context: &Context<'_>,
    ) -> Result<Region, ImageError> {
        if let Some(region) = context.cache.find(Shelf::Layers, self.diff_id)? {
            return Ok(region);
        }
        let Blob { region, verified } = blob()?;
        match sniff(&region, self.place)? {
            Compression::None if verified && self.blob == Some(self.diff_id) => Ok(region),
            Compression::None => self.verify(region, context),
            compression => self.inflate(&region, compression, verified, context),
        }
    }

    fn verify(&self, region: Region, context: &Context<'_>) -> Result<Region, ImageError> {
        let digest = digest_of(&region, Some(self.diff_id), self.place, context.reporter)?;
        check_digest("its data", &digest, self.diff_id, self.place)?;
        Ok(region)
    }

    fn inflate(
        &self,
        input: &Region,
        compression: Compression,
        verified: bool,
        context: &Context<'_>,
    ) -> Result<Region, ImageError> {
        let inflate = Inflate {
            input,
            compression,
            blob: self.blob.filter(|_| !verified),
            diff_id: Some(self.diff_id),
            limit: context.options.limits.inflated_bytes,
            place: self.place,
        };
        let draft = inflate.run(context.cache, context.reporter)?;
        draft.publish(context.cache, Shelf::Layers, self.diff_id)
    }
}

/// Merges layers, lowest first.
pub(super) fn merge(tars: &[Region], context: &Context<'_>) -> Result<Tree, ImageError> {
    let limits = context.options.limits;
    context.reporter.phase("merge", None);
    let mut merger = Merger::new(limits, Dialect::Layer);
    for (number, tar) in (0..).zip(tars) {
        let place = format!("layer {}", number + 1);
        merger.begin(number, Source::File(tar.file.clone()));
        let mut reader = Reader::new(tar.clone(), limits, EndMark::Optional);
        while let Some(entry) = reader.next().map_err(|e| tar_error(&place, e))? {
            merger.apply(entry, tar.start).map_err(|e| merge_error(&place, e))?;
        }
    }
    Ok(merger.into_tree())
}

/// Makes a tree of a root file system's entries, whose data lies in `tar`.
pub(super) fn root(
    entries: Vec<Entry>,
    tar: &Region,
    place: &str,
    context: &Context<'_>,
) -> Result<Tree, ImageError> {
    context.reporter.phase("merge", None);
    let mut merger = Merger::new(context.options.limits, Dialect::Root);
    merger.begin(0, Source::File(tar.file.clone()));
    for entry in entries {
        merger.apply(entry, tar.start).map_err(|e| merge_error(place, e))?;
    }
    Ok(merger.into_tree())
}

/// A tar's error, with the layer or archive it is of.
pub(super) fn tar_error(place: &str, error: TarError) -> ImageError {
    let of = |entry: Option<String>| {
        entry.map_or_else(|| place.to_owned(), |entry| format!("{place}, entry {entry}"))
    };
    match error {
        TarError::Corrupt { entry, offset, what } => {
            ImageError::corrupt(of(entry), format!("{what} (at byte {offset})"))
        }
        TarError::Unsupported { entry, what } => {
            ImageError::unsupported(of(Some(entry)), format!("{what} is not supported"))
        }
        TarError::Limit { entry, what } => ImageError::limit(of(entry), what),
        TarError::Io(error) => ImageError::io_at(place, "cannot read", error),
    }
}

/// As [`tar_error`], for an entry that cannot be merged.
pub(super) fn merge_error(place: &str, error: MergeError) -> ImageError {
    let (kind, entry, what) = match error {
        MergeError::Corrupt(entry, what) => (ErrorKind::Corrupt, entry, what),
        MergeError::Limit(entry, what) => (ErrorKind::Limit, entry, what),
    };
    ImageError::new(kind, format!("{place}, entry {entry}"), what)
}
