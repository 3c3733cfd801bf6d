//! Streams a layout's bytes, in block order.

mod buffers;
mod data;
mod fixed;
mod inodes;
mod out;
mod stream;

use super::layout::Layout;
use super::layout::folder::Folder;
use super::layout::mapping::whole;
use super::layout::survey::Survey;
use super::spec::checksum::Checksum;
use super::spec::dir::Entry;
use super::spec::hash::HashSeed;
use super::spec::{BLOCK_BYTES, BLOCK_SIZE, Put, journal, xattr};
use super::{Ext4Error, Options};
use crate::sink::BlockSink;
use crate::tree::Kind;
use fixed::FixedWriter;
use inodes::Inodes;
use std::thread;
use stream::Stream;

/// What all checksums and hashes start from.
#[derive(Clone, Copy, Debug)]
struct Seeds {
    checksum: Checksum,
    hash: HashSeed,
}

/// Writes a layout; says how many blocks and inodes are free in it.
pub(super) fn write(
    layout: &Layout<'_>,
    options: &Options,
    sink: &mut dyn BlockSink,
) -> Result<(u64, u32), Ext4Error> {
    let seeds = Seeds { checksum: Checksum::of_uuid(&options.uuid), hash: HashSeed::new(&options.hash_seed) };
    let inodes = Inodes::new(layout, seeds, options.created);
    let fixed = FixedWriter::new(layout, inodes, seeds, options);
    let free = fixed.free();
    thread::scope(|scope| {
        let (filler, data) = buffers::pair();
        let read = move || data::read_all(layout, inodes, filler);
        thread::Builder::new().spawn_scoped(scope, read).map_err(Ext4Error::Thread)?;
        let mut writer = Writer { layout, inodes, seeds, stream: Stream::new(layout, fixed, sink) };
        writer.write_journal()?;
        writer.write_resize_map()?;
        writer.write_small_contents()?;
        writer.write_attribute_blocks()?;
        writer.write_values()?;
        writer.stream.zeros(layout.spare.end - layout.spare.start)?;
        while let Some(buffer) = data.next()? {
            writer.stream.blocks(&buffer)?;
            data.done(buffer);
        }
        writer.stream.finish(options.size)
    })?;
    Ok(free)
}

/// Writes what lies before files' data, in the order of [`Layout`].
struct Writer<'l, 's> {
    layout: &'l Layout<'l>,
    inodes: Inodes<'l>,
    seeds: Seeds,
    stream: Stream<'l, 's>,
}

impl Writer<'_, '_> {
    fn write_journal(&mut self) -> Result<(), Ext4Error> {
        let blocks = self.layout.geometry.journal_blocks;
        self.stream.blocks(&journal::superblock(blocks))?;
        self.stream.zeros(u64::from(blocks) - 1)
    }

    /// The double-indirect block of the resize inode: a pointer at each reserved block, at the place
    /// that its number among all descriptor blocks gives.
    fn write_resize_map(&mut self) -> Result<(), Ext4Error> {
        let geometry = &self.layout.geometry;
        let mut block = [0; BLOCK_SIZE];
        for reserved in geometry.gdt_blocks..geometry.gdt_blocks + geometry.reserved_gdt_blocks {
            block.put32(4 * reserved as usize % BLOCK_SIZE, 1 + reserved);
        }
        self.stream.blocks(&block)
    }

    /// Folders and long symlinks, each with its extent tree if it has one.
    fn write_small_contents(&mut self) -> Result<(), Ext4Error> {
        for place in 0..self.layout.survey.members.len() {
            let bytes = match &self.layout.survey.node(place).kind {
                Kind::Directory(_) => self.encode_folder(place),
                Kind::Symlink(target) if self.layout.survey.members[place].blocks > 0 => {
                    let mut block = vec![0; BLOCK_SIZE];
                    block.put(0, target);
                    block
                }
                _ => continue,
            };
            self.stream.blocks(&bytes)?;
            let blocks = (bytes.len() / BLOCK_SIZE) as u64;
            let slot = self.layout.starts[place];
            let tree = self.inodes.extent_blocks(Survey::ino(place), slot, blocks, whole(blocks));
            self.stream.blocks(&tree)?;
        }
        Ok(())
    }

    fn encode_folder(&self, place: usize) -> Vec<u8> {
        let survey = self.layout.survey;
        let ino = Survey::ino(place);
        let entries = survey.entries(place);
        let entries = entries.map(|(name, ino, file_type)| Entry { name, ino, file_type }).collect();
        let folder = Folder { ino, parent: survey.ino_of(survey.members[place].parent), entries };
        folder.encode(self.seeds.hash, self.seeds.checksum.of_inode(ino))
    }

    fn write_attribute_blocks(&mut self) -> Result<(), Ext4Error> {
        for &(place, slot) in &self.layout.attribute_blocks {
            let mut block = [0; BLOCK_SIZE];
            let at = self.layout.space.block(slot);
            let attributes = &self.layout.survey.attributes[&place].block;
            xattr::put_block(&mut block, attributes, 1, at, self.seeds.checksum);
            self.stream.blocks(&block)?;
        }
        Ok(())
    }

    fn write_values(&mut self) -> Result<(), Ext4Error> {
        for value in &self.layout.survey.values {
            let mut blocks = value.bytes.to_vec();
            blocks.resize(blocks.len().next_multiple_of(BLOCK_SIZE), 0);
            self.stream.blocks(&blocks)?;
        }
        Ok(())
    }
}
