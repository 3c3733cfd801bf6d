//! OCI and Docker JSON: indexes, manifests, and what leads from one to the other.
//!
//! The types here hold only what is used, so that an image is not refused for a field that nobody
//! reads. What a document is, its contents say; the media type is only checked where it forbids.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::error::{ErrorKind, ImageError};
use super::limits::Limits;
use super::platform::Platform;
use super::region::Region;
use super::spool::check_digest;
use smolpack_registry::{Digest, Hasher};

/// Indexes within indexes.
const MAX_NESTING: usize = 8;

/// A reference to a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    #[serde(default)]
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it is a manifest or an index, as its media type says.
    pub(super) fn is_manifest(&self) -> bool {
        self.is_index()
            || self.media_type.contains("image.manifest")
            || self.media_type.ends_with("distribution.manifest.v2+json")
    }

    fn is_index(&self) -> bool {
        self.media_type.contains("image.index") || self.media_type.contains("manifest.list")
    }

    /// Attestations and signatures that ride in an index beside the images.
    fn is_attachment(&self) -> bool {
        self.annotation("vnd.docker.reference.type").is_some()
            || self.platform.as_ref().is_some_and(|p| p.os == "unknown" && p.architecture == "unknown")
    }
}

/// An image's configuration and layers.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
}

/// A list of images or of further lists.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Index {
    pub(super) manifests: Vec<Descriptor>,
}

/// Either, as its contents say.
#[derive(Debug)]
pub(super) enum Document {
    Manifest(Manifest),
    Index(Index),
}

impl Document {
    /// # Errors
    /// Where it is no JSON, neither of the two, both, or of Docker's first schema.
    pub(super) fn parse(bytes: &[u8], place: &str) -> Result<Self, ImageError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Keys {
            manifests: Option<serde::de::IgnoredAny>,
            layers: Option<serde::de::IgnoredAny>,
            fs_layers: Option<serde::de::IgnoredAny>,
        }
        let keys: Keys = json(bytes, place)?;
        match (keys.manifests, keys.layers, keys.fs_layers) {
            (Some(_), None, None) => json(bytes, place).map(Self::Index),
            (None, Some(_), None) => json(bytes, place).map(Self::Manifest),
            (None, None, Some(_)) => {
                Err(ImageError::unsupported(place, "it is an image of Docker's schema 1")
                    .with_hint("push it again with a current tool"))
            }
            (None, None, None) => {
                Err(ImageError::corrupt(place, "it is neither an image index nor an image manifest"))
            }
            _ => Err(ImageError::corrupt(place, "it claims to be an image index and a manifest at once")),
        }
    }
}

/// Reads JSON, saying where it is wrong.
pub(super) fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8], place: &str) -> Result<T, ImageError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ImageError::corrupt(place, format!("its JSON is not as it should be: {error}")))
}

/// Where blobs come from: a folder, an archive or a registry.
pub(super) trait Blobs {
    /// A blob of JSON, of at most [`Limits::json_bytes`], checked against its digest.
    fn small(&self, blob: &Descriptor) -> Result<Vec<u8>, ImageError>;

    /// Says which blobs will be opened, so that they can be fetched at once.
    fn prepare(&self, blobs: &[&Descriptor]) -> Result<(), ImageError>;

    /// A blob of the size that its descriptor says.
    fn open(&self, blob: &Descriptor) -> Result<Blob, ImageError>;
}

/// A blob's bytes.
#[derive(Debug)]
pub(super) struct Blob {
    pub(super) region: Region,
    /// Whether they have been checked against their digest.
    pub(super) verified: bool,
}

/// Reads a blob that is JSON whole, and checks it: what [`Blobs::small`] does where bytes are at hand.
pub(super) fn read_small(region: &Region, blob: &Descriptor, limits: &Limits) -> Result<Vec<u8>, ImageError> {
    let place = format!("blob {}", blob.digest.short());
    check_small(blob, limits)?;
    check_size(region, blob, &place)?;
    let mut bytes = vec![0; region.len as usize];
    region.read_at(&mut bytes, 0).map_err(|e| ImageError::io_at(place.as_str(), "cannot read", e))?;
    let mut hasher = Hasher::like(&blob.digest);
    hasher.update(&bytes);
    check_digest("it", &hasher.finish(), &blob.digest, &place)?;
    Ok(bytes)
}

/// Checks that a blob that is JSON is not too large to be read whole.
pub(super) fn check_small(blob: &Descriptor, limits: &Limits) -> Result<(), ImageError> {
    if blob.size <= limits.json_bytes {
        return Ok(());
    }
    let what = format!("{} bytes of JSON (at most {})", blob.size, limits.json_bytes);
    Err(ImageError::limit(format!("blob {}", blob.digest.short()), what))
}

/// Checks that a blob is as long as its descriptor says.
pub(super) fn check_size(region: &Region, blob: &Descriptor, place: &str) -> Result<(), ImageError> {
    if region.len == blob.size {
        return Ok(());
    }
    let what = format!("it has {} bytes, but should have {}", region.len, blob.size);
    Err(ImageError::new(ErrorKind::DigestMismatch, place, what)
        .with_hint("the data was cut short or replaced; fetch or make the image again"))
}

/// Follows a descriptor to the image for `platform`; gives its manifest and the manifest's digest.
pub(super) fn resolve(
    blobs: &dyn Blobs,
    start: &Descriptor,
    platform: &Platform,
    limits: &Limits,
) -> Result<(Digest, Manifest), ImageError> {
    let mut at = start.clone();
    for _ in 0..MAX_NESTING {
        let place = format!("manifest {}", at.digest.short());
        match Document::parse(&blobs.small(&at)?, &place)? {
            Document::Manifest(manifest) => {
                check(&manifest, &place, limits)?;
                return Ok((at.digest, manifest));
            }
            Document::Index(index) => at = choose(&index.manifests, platform, &place)?.clone(),
        }
    }
    Err(ImageError::limit(
        format!("index {}", start.digest.short()),
        format!("indexes lie within indexes more than {MAX_NESTING} deep"),
    ))
}

fn check(manifest: &Manifest, place: &str, limits: &Limits) -> Result<(), ImageError> {
    const CONFIGS: [&str; 3] =
        ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json", ""];
    if !CONFIGS.contains(&manifest.config.media_type.as_str()) {
        let what = format!("it holds {:?}, not the root of a machine", manifest.config.media_type);
        return Err(ImageError::new(ErrorKind::NotAnImage, place, what)
            .with_hint("name a container image; Helm charts, policies and the like cannot be booted"));
    }
    if manifest.layers.len() > limits.layers {
        let what = format!("{} layers (at most {})", manifest.layers.len(), limits.layers);
        return Err(ImageError::limit(place, what));
    }
    let encrypted = manifest.layers.iter().find(|layer| layer.media_type.ends_with("+encrypted"));
    encrypted.map_or(Ok(()), |layer| {
        Err(ImageError::unsupported(place, format!("layer {} is encrypted", layer.digest.short()))
            .with_hint("decrypt the image first, for example with skopeo copy --decryption-key"))
    })
}

/// The entry of an index that suits `platform` best; among equals the first.
pub(super) fn choose<'a>(
    entries: &'a [Descriptor],
    platform: &Platform,
    place: &str,
) -> Result<&'a Descriptor, ImageError> {
    let images = || entries.iter().filter(|entry| !entry.is_attachment());
    let rank = |entry: &&Descriptor| match &entry.platform {
        Some(offered) => platform.rank(offered),
        // A list within the list may hold it; a lone image without a word may be it.
        None if entry.is_index() => Some(10),
        None => Some(11),
    };
    let ranked = images().filter_map(|entry| Some((rank(&entry)?, entry)));
    let best = ranked.min_by_key(|(rank, _)| *rank).map(|(_, entry)| entry);
    best.ok_or_else(|| {
        let offered: Vec<String> =
            images().filter_map(|e| e.platform.as_ref()).map(Platform::to_string).collect();
        let what = match offered.as_slice() {
            [] => "its index is empty".to_owned(),
            offered => format!("there is no image for {platform}, only for {}", offered.join(", ")),
        };
        ImageError::new(ErrorKind::NoMatch, place, what)
            .with_hint("ask for another platform, or name another image")
    })
}
