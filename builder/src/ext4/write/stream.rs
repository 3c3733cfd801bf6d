//! The stream of slots, with the fixed structures put in where the disk has them.

use super::fixed::FixedWriter;
use super::out::Out;
use super::{BLOCK_BYTES, Ext4Error};
use crate::ext4::layout::Layout;
use crate::ext4::layout::geometry::Fixed;
use crate::sink::BlockSink;

/// Takes the blocks of all slots in order.
pub(super) struct Stream<'l, 's> {
    writer: FixedWriter<'l>,
    /// Fixed structures not written yet.
    fixed: &'l [Fixed],
    /// The end of the file system, bytes.
    end: u64,
    out: Out<'s>,
}

impl<'l, 's> Stream<'l, 's> {
    pub(super) fn new(layout: &'l Layout<'l>, writer: FixedWriter<'l>, sink: &'s mut dyn BlockSink) -> Self {
        let end = layout.geometry.blocks * BLOCK_BYTES;
        Self { writer, fixed: &layout.geometry.fixed, end, out: Out::new(sink) }
    }

    /// The next slots' contents, in whole blocks.
    pub(super) fn blocks(&mut self, mut bytes: &[u8]) -> Result<(), Ext4Error> {
        while !bytes.is_empty() {
            let room = self.room()?;
            let len = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
            self.out.data(&bytes[..len])?;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    /// The next `slots` slots are zero.
    pub(super) fn zeros(&mut self, slots: u64) -> Result<(), Ext4Error> {
        let mut left = slots * BLOCK_BYTES;
        while left > 0 {
            let len = self.room()?.min(left);
            self.out.zeros(len);
            left -= len;
        }
        Ok(())
    }

    /// Writes the fixed structures here, if any, and says how many bytes there are to the next.
    ///
    /// There is room: a layout ends within its space.
    fn room(&mut self) -> Result<u64, Ext4Error> {
        while let Some((first, rest)) = self.fixed.split_first() {
            let start = first.at.0 * BLOCK_BYTES;
            if start > self.out.at() {
                return Ok(start - self.out.at());
            }
            self.writer.write(first, &mut self.out)?;
            self.fixed = rest;
        }
        Ok(self.end - self.out.at())
    }

    /// Writes the fixed structures left, and zeros up to a disk of `size` bytes.
    pub(super) fn finish(mut self, size: u64) -> Result<(), Ext4Error> {
        while !self.fixed.is_empty() {
            let room = self.room()?;
            if !self.fixed.is_empty() {
                self.out.zeros(room);
            }
        }
        self.out.zeros(size - self.out.at());
        self.out.flush()
    }
}
