//! OCI layouts: `oci-layout`, `index.json` and `blobs/`, in a folder or in an archive.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use smolpack_format::open_file;

use super::error::{ErrorKind, ImageError};
use super::limits::Limits;
use super::manifest::{Blob, Blobs, Descriptor, Index, check_size, choose, json, read_small};
use super::platform::Platform;
use super::region::Region;
use super::{Context, Parts, layers};

/// Where a layout's files are.
pub(super) trait Files {
    /// The file of a name such as `index.json`; `None` where there is none.
    fn file(&self, name: &str) -> Result<Option<Region>, ImageError>;
}

/// Reads an image from a layout folder.
pub(super) fn load(path: &Path, tag: Option<&str>, context: &Context<'_>) -> Result<Parts, ImageError> {
    let folder = Folder { root: path.to_owned() };
    load_from(&folder, &path.display().to_string(), tag, context)
}

/// Reads an image from a layout, wherever its files are.
pub(super) fn load_from(
    files: &dyn Files,
    place: &str,
    tag: Option<&str>,
    context: &Context<'_>,
) -> Result<Parts, ImageError> {
    let limits = context.options.limits;
    check_version(files, place, &limits)?;
    let bytes = read_json(files, "index.json", place, &limits)?;
    let index: Index = json(&bytes, &format!("{place}, index.json"))?;
    let start = select(&index.manifests, tag, &context.options.platform, place)?;
    layers::load(&Layout { files, place, limits }, start, context)
}

fn check_version(files: &dyn Files, place: &str, limits: &Limits) -> Result<(), ImageError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Mark {
        image_layout_version: String,
    }
    let mark: Mark = json(&read_json(files, "oci-layout", place, limits)?, &format!("{place}, oci-layout"))?;
    if mark.image_layout_version.starts_with("1.") {
        return Ok(());
    }
    let what = format!("an OCI layout of version {:?}, only 1.x is read", mark.image_layout_version);
    Err(ImageError::unsupported(place, what))
}

/// A file of the layout that is JSON, whole.
pub(super) fn read_json(
    files: &dyn Files,
    name: &str,
    place: &str,
    limits: &Limits,
) -> Result<Vec<u8>, ImageError> {
    let region = files.file(name)?.ok_or_else(|| {
        ImageError::corrupt(place, format!("{name} is missing from it"))
            .with_hint("the image was copied in part; copy or make it again")
    })?;
    let place = format!("{place}, {name}");
    if region.len > limits.json_bytes {
        return Err(ImageError::limit(
            place,
            format!("{} bytes of JSON (at most {})", region.len, limits.json_bytes),
        ));
    }
    let mut bytes = vec![0; region.len as usize];
    region.read_at(&mut bytes, 0).map_err(|e| ImageError::io_at(place, "cannot read", e))?;
    Ok(bytes)
}

/// The image of a name, or the only one.
fn select<'a>(
    entries: &'a [Descriptor],
    tag: Option<&str>,
    platform: &Platform,
    place: &str,
) -> Result<&'a Descriptor, ImageError> {
    let mut names: Vec<&str> = entries.iter().flat_map(names_of).collect();
    names.sort_unstable();
    names.dedup();
    let Some(tag) = tag else {
        let distinct = entries
            .iter()
            .filter_map(|entry| names_of(entry).next())
            .collect::<std::collections::BTreeSet<_>>();
        if distinct.len() > 1 {
            return Err(no_match(place, format!("it holds several images: {}", names.join(", "))));
        }
        return choose(entries, platform, place);
    };
    let mut fitting = entries.iter().filter(|entry| names_of(entry).any(|name| is_named(name, tag)));
    let first = fitting.next().ok_or_else(|| {
        let what = match names.as_slice() {
            [] => format!("it holds no image named {tag:?}, its images have no names"),
            names => format!("it holds no image named {tag:?}, only {}", names.join(", ")),
        };
        no_match(place, what)
    })?;
    // The same name for several platforms: the best one.
    let best = std::iter::once(first).chain(fitting).min_by_key(|entry| {
        entry.platform.as_ref().map_or(Some(9), |offered| platform.rank(offered)).unwrap_or(u8::MAX)
    });
    Ok(best.unwrap_or(first))
}

/// Tags and full names, as the tools that write layouts annotate them.
fn names_of(entry: &Descriptor) -> impl Iterator<Item = &str> {
    ["org.opencontainers.image.ref.name", "io.containerd.image.name"]
        .into_iter()
        .filter_map(|key| entry.annotation(key))
}

/// Whether `name`, a tag or a full name, is what the user calls `wanted`.
pub(super) fn is_named(name: &str, wanted: &str) -> bool {
    let is = |wanted: &str| {
        name.strip_suffix(wanted).is_some_and(|rest| rest.is_empty() || rest.ends_with(['/', ':']))
    };
    is(wanted) || (!wanted.contains(':') && is(&format!("{wanted}:latest")))
}

pub(super) fn no_match(place: &str, what: String) -> ImageError {
    ImageError::new(ErrorKind::NoMatch, place, what).with_hint("name one of them as PATH:TAG")
}

/// The blobs of a layout.
struct Layout<'a> {
    files: &'a dyn Files,
    place: &'a str,
    limits: Limits,
}

impl Layout<'_> {
    fn region(&self, blob: &Descriptor) -> Result<Region, ImageError> {
        let name = format!("blobs/{}/{}", blob.digest.algorithm(), blob.digest.hex());
        self.files.file(&name)?.ok_or_else(|| {
            ImageError::new(ErrorKind::NotFound, self.place, format!("{name} is missing from it"))
                .with_hint("the image was copied in part, or for other platforms only; copy or make it again")
        })
    }
}

impl Blobs for Layout<'_> {
    fn small(&self, blob: &Descriptor) -> Result<Vec<u8>, ImageError> {
        read_small(&self.region(blob)?, blob, &self.limits)
    }

    fn prepare(&self, _: &[&Descriptor]) -> Result<(), ImageError> {
        Ok(())
    }

    fn open(&self, blob: &Descriptor) -> Result<Blob, ImageError> {
        let region = self.region(blob)?;
        check_size(&region, blob, &format!("blob {}", blob.digest.short()))?;
        Ok(Blob { region, verified: false })
    }
}

/// A layout folder's files.
struct Folder {
    root: PathBuf,
}

impl Files for Folder {
    fn file(&self, name: &str) -> Result<Option<Region>, ImageError> {
        let path = self.root.join(name);
        match open_file(&path).and_then(Region::whole) {
            Ok(region) => Ok(Some(region)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ImageError::io(&path, "cannot open", error)),
        }
    }
}
