//! What can be wrong with a file, where, and what to call it.

use std::{fmt, io};

use crate::SectionKind;

/// Why a container was refused, or could not be written.
///
/// `code` is stable and documented in FORMAT.md; `what` is for people.
#[derive(Debug, thiserror::Error)]
#[error("{}", Place(self))]
pub struct FormatError {
    /// The stable name of the fault.
    pub code: Code,
    /// The part of the file it is in.
    pub part: Part,
    /// The byte of the file (absolute, not relative to the header) it was noticed at.
    pub offset: Option<u64>,
    /// What was expected and what was found.
    pub what: String,
    /// The operating system's error, where there is one.
    pub source: Option<io::Error>,
}

/// The operating system's error where there is one, so that its kind is not lost on the way.
impl From<FormatError> for io::Error {
    fn from(error: FormatError) -> Self {
        match error.source {
            Some(source) => source,
            None => Self::other(error),
        }
    }
}

impl FormatError {
    pub(crate) fn new(
        code: Code,
        part: Part,
        offset: impl Into<Option<u64>>,
        what: impl Into<String>,
    ) -> Self {
        Self { code, part, offset: offset.into(), what: what.into(), source: None }
    }

    pub(crate) fn io(part: Part, offset: impl Into<Option<u64>>, what: &str, source: io::Error) -> Self {
        Self { source: Some(source), ..Self::new(Code::Io, part, offset, what) }
    }

    pub(crate) fn usage(part: Part, what: impl Into<String>) -> Self {
        Self::new(Code::Usage, part, None, what)
    }

    /// What kind of answer the fault calls for.
    #[must_use]
    pub fn class(&self) -> Class {
        self.code.class()
    }
}

/// Prints an error with its place; a type of its own because thiserror wants a format string.
struct Place<'a>(&'a FormatError);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FormatError { code, part, offset, what, .. } = self.0;
        match (part, offset) {
            (Part::File, None) => {}
            (part, None) => write!(f, "{part}: ")?,
            (part, Some(at)) => write!(f, "{part}, byte {at}: ")?,
        }
        write!(f, "{what} [{code}]")
    }
}

/// A part of a container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The file as a whole.
    File,
    /// The 4 KiB header.
    Header,
    /// The 64-byte footer.
    Footer,
    /// The section index.
    Index,
    /// The manifest.
    Manifest,
    /// A section: its index entry, tables or data.
    Section(SectionKind),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => f.write_str("file"),
            Self::Header => f.write_str("header"),
            Self::Footer => f.write_str("footer"),
            Self::Index => f.write_str("section index"),
            Self::Manifest => f.write_str("manifest"),
            Self::Section(kind) => write!(f, "section {kind}"),
        }
    }
}

/// What kind of answer a fault calls for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Not a container at all: the wrong file was named.
    NotSmolmachine,
    /// A container of a version, or with a feature, that this reader does not know: get a newer one.
    Unsupported,
    /// A damaged or ill-made container: fetch or build it again.
    Corrupt,
    /// The operating system refused.
    Io,
    /// The caller asked for what the format cannot do.
    Usage,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $class:ident;)*) => {
        /// The stable names of faults (FORMAT.md, "Error codes").
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name used in FORMAT.md, in `--json` output and in the conformance vectors.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What kind of answer the fault calls for.
            #[must_use]
            pub fn class(self) -> Class {
                match self { $(Self::$name => Class::$class,)* }
            }
        }
    };
}

codes! {
    /// Neither a header at the start nor a footer at the end.
    NotSmolmachine = "not-smolmachine", NotSmolmachine;
    /// A file of the program smolvm, which uses the same file name extension.
    SmolvmFile = "smolvm-file", NotSmolmachine;
    /// A major version this reader does not know.
    UnsupportedVersion = "unsupported-version", Unsupported;
    /// An incompatible feature bit this reader does not know.
    UnsupportedFeature = "unsupported-feature", Unsupported;
    /// The file ends before the container does.
    Truncated = "truncated", Corrupt;
    /// The file goes on after the container's end.
    TrailingData = "trailing-data", Corrupt;
    /// The header's checksum does not match.
    HeaderChecksum = "header-checksum", Corrupt;
    /// The footer does not belong to the header.
    FooterMismatch = "footer-mismatch", Corrupt;
    /// A reserved byte is not zero.
    ReservedNotZero = "reserved-not-zero", Corrupt;
    /// A length or count is over its limit.
    LimitExceeded = "limit-exceeded", Corrupt;
    /// A part reaches beyond the container.
    OutOfBounds = "out-of-bounds", Corrupt;
    /// A place or length is not a multiple of what it has to be.
    Misaligned = "misaligned", Corrupt;
    /// Two parts share bytes.
    Overlap = "overlap", Corrupt;
    /// Two parts lie further apart than alignment explains.
    GapTooLong = "gap-too-long", Corrupt;
    /// A byte between two parts is not zero.
    GapNotZero = "gap-not-zero", Corrupt;
    /// The section index does not have the digest that the header states.
    IndexDigest = "index-digest", Corrupt;
    /// Fields of an index entry contradict each other.
    IndexEntry = "index-entry", Corrupt;
    /// A section that may occur once occurs twice.
    DuplicateSection = "duplicate-section", Corrupt;
    /// The manifest does not have the digest that the header states.
    ManifestDigest = "manifest-digest", Corrupt;
    /// The manifest is not JSON.
    ManifestSyntax = "manifest-syntax", Corrupt;
    /// The manifest is JSON, but not in canonical form.
    ManifestNotCanonical = "manifest-not-canonical", Corrupt;
    /// The manifest lacks a key, or a value has the wrong type or contradicts another.
    ManifestInvalid = "manifest-invalid", Corrupt;
    /// The manifest and the section index disagree about a section.
    SectionMismatch = "section-mismatch", Corrupt;
    /// A content table does not have its digest.
    ContentDigest = "content-digest", Corrupt;
    /// A placement table does not have its digest.
    PlacementDigest = "placement-digest", Corrupt;
    /// A chunk's class or encoding is unknown.
    ChunkKind = "chunk-kind", Corrupt;
    /// A chunk's length is zero, no multiple of 4 KiB, or the sum misses the section's length.
    ChunkLength = "chunk-length", Corrupt;
    /// The stored data does not fill the section's extent as its tables say.
    ChunkPlacement = "chunk-placement", Corrupt;
    /// A zstd chunk in a file whose header does not announce zstd.
    FeatureMissing = "feature-missing", Corrupt;
    /// A parent chunk where no parent is defined.
    ParentNotAllowed = "parent-not-allowed", Corrupt;
    /// A chunk's data does not have the chunk's digest.
    ChunkDigest = "chunk-digest", Corrupt;
    /// A zstd chunk that does not decode to exactly its length.
    Decompress = "decompress", Corrupt;
    /// A read touched a parent chunk; the caller has to read it from the parent.
    NeedsParent = "needs-parent", Usage;
    /// The caller used the interface wrongly.
    Usage = "usage", Usage;
    /// The operating system refused.
    Io = "io", Io;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
