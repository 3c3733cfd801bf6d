//! What a user may name as an image: a path or a registry reference.

use std::fs;
use std::path::{Path, PathBuf};

use smolpack_registry::Reference;

use super::error::{ErrorKind, ImageError};

/// Where an image comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageSource {
    /// As the user gave it; of an absolute path only the last part, so that no folder of the building
    /// machine reaches an artifact.
    pub reference: String,
    /// Where that is.
    pub location: Location,
}

/// The sorts of places.
#[derive(Clone, Debug, PartialEq)]
pub enum Location {
    /// A folder that is the root of a file system.
    Folder(PathBuf),
    /// A folder with `oci-layout` in it.
    OciLayout {
        /// The folder.
        path: PathBuf,
        /// Which image of several.
        tag: Option<String>,
    },
    /// A tar, compressed or not: an OCI archive, a docker-save archive or a root file system. Which,
    /// its contents say.
    Archive {
        /// The file.
        path: PathBuf,
        /// Which image of several.
        tag: Option<String>,
    },
    /// An archive that comes on standard input.
    Stdin,
    /// An image in a registry.
    Registry(Reference),
}

/// What one of these is in, a root file system has.
pub(super) const ROOT_NAMES: [&str; 7] = ["bin", "sbin", "usr", "etc", "lib", "init", "var"];

/// Finds out what `text` names; relative paths are of `base`.
///
/// `-` is standard input. What begins with `/`, `./` or `../` is a path and may end in `:TAG`. Anything
/// else is a path where it exists and is an image, else a registry reference.
///
/// # Errors
/// Where a path does not exist or is no image, or the text is no reference.
pub fn detect(text: &str, base: &Path) -> Result<ImageSource, ImageError> {
    let location = match text {
        "-" => Location::Stdin,
        _ if is_explicit_path(text) => explicit_path(text, base)?,
        _ => match local(&base.join(text), None) {
            Ok(location) => location,
            Err(error) => {
                registry(text).map_err(|bad| if error.kind() == ErrorKind::NotFound { bad } else { error })?
            }
        },
    };
    Ok(ImageSource { reference: portable(text), location })
}

fn is_explicit_path(text: &str) -> bool {
    text.starts_with('/') || text == "." || text == ".." || text.starts_with("./") || text.starts_with("../")
}

/// Absolute paths lose all but their last part.
fn portable(text: &str) -> String {
    let last = Path::new(text).file_name().map(|name| name.to_string_lossy().into_owned());
    if text.starts_with('/') { last.unwrap_or_else(|| "/".to_owned()) } else { text.to_owned() }
}

/// A path, or where that does not exist, a path and a tag.
fn explicit_path(text: &str, base: &Path) -> Result<Location, ImageError> {
    let whole = base.join(text);
    let not_found = match local(&whole, None) {
        Err(error) if error.kind() == ErrorKind::NotFound => error,
        other => return other,
    };
    // A docker-save tag may itself hold a colon, so the first one that leaves a path counts.
    let colons = text.match_indices(':').map(|(at, _)| (&text[..at], &text[at + 1..]));
    let tagged = colons.filter(|(path, _)| base.join(path).exists()).find(|(_, tag)| !tag.is_empty());
    let Some((path, tag)) = tagged else { return Err(not_found) };
    match local(&base.join(path), Some(tag.to_owned()))? {
        Location::Folder(path) => Err(ImageError::new(
            ErrorKind::NoMatch,
            path.display().to_string(),
            format!("it is a root folder, which has no tag {tag:?}"),
        )
        .with_hint("name the folder alone")),
        location => Ok(location),
    }
}

fn local(path: &Path, tag: Option<String>) -> Result<Location, ImageError> {
    let metadata = fs::metadata(path).map_err(|e| ImageError::io(path, "cannot find the image", e))?;
    if !metadata.is_dir() {
        return Ok(Location::Archive { path: path.to_owned(), tag });
    }
    if path.join("oci-layout").is_file() {
        return Ok(Location::OciLayout { path: path.to_owned(), tag });
    }
    let is_root = ROOT_NAMES.iter().any(|name| fs::symlink_metadata(path.join(name)).is_ok());
    if is_root {
        return Ok(Location::Folder(path.to_owned()));
    }
    Err(not_a_root(&path.display().to_string(), "folder"))
}

/// The error for a folder or tar that holds something, but no machine.
pub(super) fn not_a_root(place: &str, what: &str) -> ImageError {
    let text = format!(
        "this {what} is no image: it is no OCI layout, and none of {} is in it, as in the root of a system",
        ROOT_NAMES.join(", ")
    );
    ImageError::new(ErrorKind::NotAnImage, place, text).with_hint(
        "name an OCI layout, an archive made by `docker save` or `skopeo copy`, or a root file system; \
         if it is one all the same, make an empty `etc` in it",
    )
}

fn registry(text: &str) -> Result<Location, ImageError> {
    text.parse::<Reference>().map(Location::Registry).map_err(|error| {
        ImageError::new(
            ErrorKind::BadReference,
            text,
            format!("it is neither a path that exists nor a registry reference: {error}"),
        )
        .with_hint("write a reference as debian:12 or ghcr.io/owner/name:tag, a path as ./name")
    })
}
