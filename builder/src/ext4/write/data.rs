//! Files' data, read ahead on a thread of its own: opening and reading one file overlaps with whatever
//! the sink does with the last ones (hashing, compressing, writing).

use super::buffers::{Filler, Unwanted};
use super::inodes::Inodes;
use crate::ext4::Ext4Error;
use crate::ext4::error::path_of;
use crate::ext4::layout::Layout;
use crate::ext4::layout::mapping::{Run, data_runs};
use crate::ext4::layout::survey::Survey;
use crate::ext4::spec::BLOCK_BYTES;
use crate::tree::{Extent, Kind, SourceId, Tree};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Reads the data of all files in the order of their slots, extent trees included.
///
/// Stops early at an error, which it passes on, or when nobody wants the data any more.
pub(super) fn read_all(layout: &Layout<'_>, inodes: Inodes<'_>, filler: Filler) {
    let mut reader = Reader { tree: layout.survey.tree, filler, open: None };
    match reader.read_files(layout, inodes) {
        Ok(()) => reader.filler.finish(),
        Err(Stop::Failed(error)) => reader.filler.fail(error),
        Err(Stop::Unwanted) => {}
    }
}

/// Why reading ends early.
enum Stop<E> {
    /// Nobody wants the data any more.
    Unwanted,
    Failed(E),
}

impl<E> From<Unwanted> for Stop<E> {
    fn from(_: Unwanted) -> Self {
        Self::Unwanted
    }
}

impl<E> Stop<E> {
    fn map<F>(self, map: impl FnOnce(E) -> F) -> Stop<F> {
        match self {
            Self::Unwanted => Stop::Unwanted,
            Self::Failed(error) => Stop::Failed(map(error)),
        }
    }
}

struct Reader<'t> {
    tree: &'t Tree,
    filler: Filler,
    /// The source read last: the files of one archive share it.
    open: Option<(SourceId, Arc<File>)>,
}

impl Reader<'_> {
    fn read_files(&mut self, layout: &Layout<'_>, inodes: Inodes<'_>) -> Result<(), Stop<Ext4Error>> {
        let survey = layout.survey;
        for (place, member) in survey.members.iter().enumerate() {
            let Kind::File { extents, .. } = &survey.node(place).kind else { continue };
            self.read_file(extents).map_err(|stop| {
                let path = member.node.map_or_else(String::new, |id| path_of(self.tree, id));
                stop.map(|source| Ext4Error::Read { path, source })
            })?;
            let runs = data_runs(extents);
            let tree = inodes.extent_blocks(Survey::ino(place), layout.starts[place], member.blocks, runs);
            self.filler.copy(&tree)?;
        }
        Ok(())
    }

    /// Reads the blocks that have data, with zeros where the extents leave part of one out.
    fn read_file(&mut self, extents: &[Extent]) -> Result<(), Stop<io::Error>> {
        let mut rest = extents;
        for Run { first, len } in data_runs(extents) {
            let end = (first + len) * BLOCK_BYTES;
            let mut at = first * BLOCK_BYTES;
            while let Some((extent, next)) = rest.split_first().filter(|(extent, _)| extent.at < end) {
                self.filler.zeros(extent.at - at)?;
                self.read(*extent)?;
                at = extent.at + extent.len;
                rest = next;
            }
            self.filler.zeros(end - at)?;
        }
        Ok(())
    }

    fn read(&mut self, extent: Extent) -> Result<(), Stop<io::Error>> {
        let file = self.source(extent.source).map_err(Stop::Failed)?;
        let mut offset = extent.offset;
        let mut left = extent.len;
        while left > 0 {
            let room = self.filler.room(left)?;
            file.read_exact_at(room, offset).map_err(Stop::Failed)?;
            offset += room.len() as u64;
            left -= room.len() as u64;
        }
        Ok(())
    }

    fn source(&mut self, id: SourceId) -> io::Result<Arc<File>> {
        if let Some((open, file)) = &self.open
            && *open == id
        {
            return Ok(Arc::clone(file));
        }
        let file = self.tree.open(id)?;
        self.open = Some((id, Arc::clone(&file)));
        Ok(file)
    }
}
