//! Archives: an OCI layout in a tar, what `docker save` writes, or a root file system. Which it is, and
//! whether it is compressed, its contents say.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use smolpack_format::open_file;

use super::cache::Shelf;
use super::config::{self, ImageConfig, check_platform};
use super::error::ImageError;
use super::layers::{self, Layer, tar_error};
use super::layout::{Files, is_named, no_match, read_json};
use super::manifest::Blob;
use super::region::Region;
use super::source::{ROOT_NAMES, not_a_root};
use super::spool::{self, Compression, Inflate, check_digest, digest_of, sniff};
use super::tar::{EndMark, Entry, EntryKind, Reader};
use super::{Context, Parts, layout};
use smolpack_registry::Digest;

/// Symbolic links followed to a member: docker-save archives share layers by one.
const MAX_LINKS: usize = 8;

/// Reads an image from an archive on disk.
pub(super) fn load_file(path: &Path, tag: Option<&str>, context: &Context<'_>) -> Result<Parts, ImageError> {
    let open = || open_file(path).and_then(Region::whole);
    let file = open().map_err(|e| ImageError::io(path, "cannot open", e))?;
    load(&file, &path.display().to_string(), tag, context)
}

/// Reads an image from an archive that comes in a stream, such as standard input.
pub(super) fn load_stream(input: &mut dyn Read, context: &Context<'_>) -> Result<Parts, ImageError> {
    const PLACE: &str = "standard input";
    let limit = context.options.limits.inflated_bytes;
    let file = spool::store(input, context.cache, PLACE, limit, context.reporter)?;
    load(&file, PLACE, None, context)
}

fn load(file: &Region, place: &str, tag: Option<&str>, context: &Context<'_>) -> Result<Parts, ImageError> {
    let Plain { tar, digest } = decompressed(file, place, context)?;
    let entries = read_entries(&tar, place, context)?;
    let members = Members::new(&entries, &tar);
    if members.has("oci-layout") && members.has("index.json") {
        return layout::load_from(&members, place, tag, context);
    }
    if let Some(images) = docker_images(&members, place, context)? {
        return load_docker(&members, &images, place, tag, context);
    }
    if !looks_like_root(&entries) {
        return Err(not_a_root(place, "archive"));
    }
    if let Some(tag) = tag {
        return Err(no_match(place, format!("it is a root file system, which has no tag {tag:?}"))
            .with_hint("name the archive alone"));
    }
    let digest = digest.map_or_else(|| digest_of(file, None, place, context.reporter), Ok)?;
    let tree = layers::root(entries, &tar, place, context)?;
    Ok(Parts { digest: Some(digest), config: ImageConfig::default(), tree })
}

/// An archive's tar, and the digest of the archive as given where that was needed.
struct Plain {
    tar: Region,
    digest: Option<Digest>,
}

fn decompressed(file: &Region, place: &str, context: &Context<'_>) -> Result<Plain, ImageError> {
    let compression = sniff(file, place)?;
    if compression == Compression::None {
        return Ok(Plain { tar: file.clone(), digest: None });
    }
    let digest = digest_of(file, None, place, context.reporter)?;
    if let Some(tar) = context.cache.find(Shelf::Archives, &digest)? {
        return Ok(Plain { tar, digest: Some(digest) });
    }
    let limit = context.options.limits.inflated_bytes;
    let inflate = Inflate { input: file, compression, blob: Some(&digest), diff_id: None, limit, place };
    let tar =
        inflate.run(context.cache, context.reporter)?.publish(context.cache, Shelf::Archives, &digest)?;
    Ok(Plain { tar, digest: Some(digest) })
}

fn read_entries(tar: &Region, place: &str, context: &Context<'_>) -> Result<Vec<Entry>, ImageError> {
    let limits = context.options.limits;
    let mut reader = Reader::new(tar.clone(), limits, EndMark::Required);
    let mut entries = Vec::new();
    while let Some(entry) = reader.next().map_err(|e| tar_error(place, e))? {
        entries.push(entry);
        if entries.len() as u64 > limits.entries {
            return Err(ImageError::limit(place, format!("more than {} entries", limits.entries)));
        }
    }
    Ok(entries)
}

fn looks_like_root(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| {
        let path = entry.path.strip_prefix(b"./").or(entry.path.strip_prefix(b"/")).unwrap_or(&entry.path);
        let first = path.split(|b| *b == b'/').next().unwrap_or_default();
        ROOT_NAMES.iter().any(|name| name.as_bytes() == first)
    })
}

/// An archive's members by name.
struct Members {
    by_name: HashMap<String, Member>,
}

enum Member {
    File(Region),
    /// To the first of these names that leads to a file.
    Link(Vec<String>),
}

impl Members {
    fn new(entries: &[Entry], tar: &Region) -> Self {
        let member = |entry: &Entry| {
            let name = std::str::from_utf8(&entry.path).ok()?.trim_start_matches("./").to_owned();
            let text = |target: &[u8]| String::from_utf8(target.to_vec()).ok();
            let member = match &entry.kind {
                EntryKind::File { size, data } => Member::File(region(tar, *size, data)?),
                // Some archives name it from their root, which docker loads.
                EntryKind::Symlink(target) => {
                    let target = text(target)?;
                    Member::Link(vec![beside(&name, &target), beside("", &target)])
                }
                EntryKind::HardLink(target) => Member::Link(vec![beside("", &text(target)?)]),
                _ => return None,
            };
            Some((name, member))
        };
        Self { by_name: entries.iter().filter_map(member).collect() }
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn get(&self, name: &str) -> Option<Region> {
        self.resolve(name, MAX_LINKS)
    }

    fn resolve(&self, name: &str, links: usize) -> Option<Region> {
        match self.by_name.get(name)? {
            Member::File(region) => Some(region.clone()),
            Member::Link(names) => {
                let links = links.checked_sub(1)?;
                names.iter().find_map(|name| self.resolve(name, links))
            }
        }
    }
}

impl Files for Members {
    fn file(&self, name: &str) -> Result<Option<Region>, ImageError> {
        Ok(self.get(name))
    }
}

/// A file that lies in one piece.
fn region(tar: &Region, size: u64, data: &[super::tar::Stored]) -> Option<Region> {
    match data {
        [] if size == 0 => Some(Region { file: tar.file.clone(), start: tar.start, len: 0 }),
        [one] if one.len == size => {
            Some(Region { file: tar.file.clone(), start: tar.start + one.offset, len: size })
        }
        _ => None,
    }
}

/// The name that `target` means when a link named `name` has it.
fn beside(name: &str, target: &str) -> String {
    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// An image of `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// The images of a docker-save archive; `None` where it is none. A root file system may have a file
/// `manifest.json` of its own.
fn docker_images(
    members: &Members,
    place: &str,
    context: &Context<'_>,
) -> Result<Option<Vec<DockerImage>>, ImageError> {
    if !members.has("manifest.json") {
        return Ok(None);
    }
    let bytes = read_json(members, "manifest.json", place, &context.options.limits)?;
    let images: Option<Vec<DockerImage>> = serde_json::from_slice(&bytes).ok();
    Ok(images.filter(|images| !images.is_empty()))
}

fn load_docker(
    members: &Members,
    images: &[DockerImage],
    place: &str,
    tag: Option<&str>,
    context: &Context<'_>,
) -> Result<Parts, ImageError> {
    let image = select(images, tag, place)?;
    let limits = &context.options.limits;
    let bytes = read_json(members, &image.config, place, limits)?;
    let config_place = format!("{place}, {}", image.config);
    check_config(&image.config, &bytes, &config_place)?;
    let (config, diff_ids) = config::parse(&bytes, &config_place)?;
    check_platform(&config, &context.options.platform, &config_place)?;
    if image.layers.len() != diff_ids.len() || diff_ids.len() > limits.layers {
        let what = format!("it names {} layers, manifest.json {}", diff_ids.len(), image.layers.len());
        return Err(ImageError::corrupt(config_place, what));
    }
    let opened = (1..).zip(image.layers.iter().zip(&diff_ids)).map(|(number, (name, diff_id))| {
        let layer_place = format!("layer {number} ({name})");
        let blob = || member_blob(members, name, place);
        Layer { diff_id, blob: None, place: &layer_place }.open(&blob, context)
    });
    let tars = opened.collect::<Result<Vec<_>, _>>()?;
    Ok(Parts { digest: Some(Digest::of(&bytes)), config, tree: layers::merge(&tars, context)? })
}

/// The configuration's name is its digest, with `.json` or in `blobs/`, in what docker and skopeo write.
fn check_config(name: &str, bytes: &[u8], place: &str) -> Result<(), ImageError> {
    let last = name.rsplit('/').next().unwrap_or(name);
    let named = Digest::parse(&format!("sha256:{}", last.strip_suffix(".json").unwrap_or(last)));
    named.map_or(Ok(()), |digest| check_digest("it", &Digest::of(bytes), &digest, place))
}

fn member_blob(members: &Members, name: &str, place: &str) -> Result<Blob, ImageError> {
    let missing = || ImageError::corrupt(place, format!("layer {name} is missing from it"));
    Ok(Blob { region: members.get(name).ok_or_else(missing)?, verified: false })
}

fn select<'a>(
    images: &'a [DockerImage],
    tag: Option<&str>,
    place: &str,
) -> Result<&'a DockerImage, ImageError> {
    let tags = |image: &'a DockerImage| image.repo_tags.iter().flatten().map(String::as_str);
    let found = match (images, tag) {
        ([only], None) => Some(only),
        (_, None) => None,
        (_, Some(tag)) => images.iter().find(|image| tags(image).any(|name| is_named(name, tag))),
    };
    found.ok_or_else(|| {
        let names: Vec<&str> = images.iter().flat_map(tags).collect();
        let wanted = tag.map_or_else(|| "several images".to_owned(), |tag| format!("no image named {tag:?}"));
        no_match(place, format!("it holds {wanted}; there are {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::super::cache::Cache;
    use super::super::progress::Reporter;
    use super::super::{ErrorKind, Limits, LoadOptions, Platform, RegistryAccess};
    use super::*;
    use crate::progress::Silent;

    fn stream(bytes: &[u8], limits: Limits) -> Result<Parts, ImageError> {
        let folder = tempfile::tempdir().unwrap();
        let registry = RegistryAccess::default();
        let options =
            LoadOptions { platform: Platform::host(), cache: folder.path(), registry: &registry, limits };
        let (cache, mut silent) = (Cache::open(folder.path()), Silent);
        let reporter = Reporter::new(&mut silent);
        let context = Context { options: &options, cache: &cache, reporter: &reporter };
        load_stream(&mut &bytes[..], &context)
    }

    fn root_tar() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_cksum();
        builder.append_data(&mut header, "etc/motd", &b"hi\n"[..]).unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn a_stream_is_an_archive_like_any_other() {
        let plain = root_tar();
        let zstd = zstd::encode_all(&plain[..], 1).unwrap();
        for bytes in [plain, zstd] {
            let parts = stream(&bytes, Limits::default()).unwrap();
            assert_eq!(parts.tree.len(), 3);
            assert_eq!(parts.digest, Some(Digest::of(&bytes)));
        }
    }

    #[test]
    fn a_stream_that_does_not_end_is_bounded() {
        let limits = Limits { inflated_bytes: 1000, ..Limits::default() };
        let error = stream(&root_tar(), limits).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.to_string().starts_with("standard input"), "{error}");
    }

    #[test]
    fn beside_resolves_links_inside_the_archive() {
        assert_eq!(beside("a/layer.tar", "../b.tar"), "b.tar");
        assert_eq!(beside("a/b/c", "./d"), "a/b/d");
        assert_eq!(beside("a", "../../b"), "b");
    }
}
