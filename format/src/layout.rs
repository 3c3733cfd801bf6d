//! Where the parts of a container lie: within it, apart from each other, and close together.
//!
//! Everything a container holds is a part: header, each section's data and tables, index, manifest,
//! footer. What lies between two parts is zero, and shorter than the largest alignment, so there is
//! no room in a container for anything that a verifier does not look at.

use crate::limits::MAX_GAP;
use crate::spec::header::Extent;
use crate::{Code, FormatError, Part};

/// A part and its place, relative to the header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) extent: Extent,
    pub(crate) part: Part,
}

impl Piece {
    pub(crate) fn new(extent: Extent, part: Part) -> Self {
        Self { extent, part }
    }
}

/// Refuses a part that does not lie within the container.
pub(crate) fn check_bounds(extent: Extent, part: Part, length: u64, base: u64) -> Result<(), FormatError> {
    let end = extent.offset.checked_add(extent.length).filter(|end| *end <= length);
    if end.is_some() {
        return Ok(());
    }
    let Extent { offset, length: len } = extent;
    let what = format!("{len} bytes at {offset} do not lie within the container's {length}");
    Err(FormatError::new(Code::OutOfBounds, part, base, what))
}

/// Sorts the parts, drops empty ones, and checks that they lie within the container, share no byte
/// and leave no long gap. The last one is the footer, which ends the container.
///
/// # Errors
/// The first part in file order that is out of place.
pub(crate) fn arrange(mut pieces: Vec<Piece>, length: u64, base: u64) -> Result<Vec<Piece>, FormatError> {
    for piece in &pieces {
        check_bounds(piece.extent, piece.part, length, base)?;
    }
    pieces.retain(|piece| piece.extent.length > 0);
    pieces.sort_by_key(|piece| piece.extent.offset);
    for pair in pieces.windows(2) {
        check_neighbours(pair[0], pair[1], base)?;
    }
    Ok(pieces)
}

fn check_neighbours(a: Piece, b: Piece, base: u64) -> Result<(), FormatError> {
    let at = base + b.extent.offset;
    let Some(gap) = b.extent.offset.checked_sub(a.extent.end()) else {
        let what = format!("shares bytes with the {} before it", a.part);
        return Err(FormatError::new(Code::Overlap, b.part, at, what));
    };
    if gap >= MAX_GAP {
        let what = format!("lies {gap} bytes after the {}", a.part);
        return Err(FormatError::new(Code::GapTooLong, b.part, at, what));
    }
    Ok(())
}
