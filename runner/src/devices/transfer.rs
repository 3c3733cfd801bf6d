//! Moving bytes between a file and guest memory without a copy in between.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use vm_memory::GuestMemoryBackend;

use super::GuestMemory;
use super::chain::Segment;

/// Most pieces of memory in one system call. Requests of more take several.
const BATCH: usize = 64;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the file.
    ToGuest,
    /// To the file.
    FromGuest,
}

/// Moves the bytes of `segments`, which lie in `mem`, from or to the run of `file` that starts at `at`.
///
/// # Errors
/// The file's own; `UnexpectedEof` where it ends before the segments do. Some bytes may have been moved.
pub(crate) fn transfer(
    file: &File,
    mem: &GuestMemory,
    segments: impl Iterator<Item = Segment>,
    at: u64,
    direction: Direction,
) -> io::Result<()> {
    let mut batch = Batch::new(at);
    for segment in segments {
        for slice in mem.get_slices(segment.addr, segment.len) {
            let slice = slice.map_err(io::Error::other)?;
            if batch.used == BATCH {
                batch.flush(file, direction)?;
            }
            let guard = slice.ptr_guard_mut();
            batch.vectors[batch.used] = libc::iovec { iov_base: guard.as_ptr().cast(), iov_len: slice.len() };
            batch.used += 1;
        }
    }
    batch.flush(file, direction)
}

/// Memory that follows one another in the file.
///
/// The pointers come from slices of guest memory whose regions stay mapped for as long as the
/// `GuestMemory` that `transfer` borrows. Nothing here makes a Rust reference of them: the guest
/// writes to that memory at any time.
struct Batch {
    vectors: [libc::iovec; BATCH],
    used: usize,
    at: u64,
}

impl Batch {
    fn new(at: u64) -> Self {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { vectors: [empty; BATCH], used: 0, at }
    }

    fn flush(&mut self, file: &File, direction: Direction) -> io::Result<()> {
        let mut first = 0;
        while first < self.used {
            let n = self.call(first, file, direction)?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.at += n as u64;
            first = self.advance(first, n);
        }
        self.used = 0;
        Ok(())
    }

    /// One system call over the vectors from `first` on; how many bytes it moved.
    fn call(&self, first: usize, file: &File, direction: Direction) -> io::Result<usize> {
        let vectors = &self.vectors[first..self.used];
        let at = i64::try_from(self.at).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (fd, pointer, count) = (file.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32);
        loop {
            // SAFETY: `vectors` are `count` valid entries, each a run of mapped guest memory (see `Batch`)
            // that the kernel may read and write at any time, as the guest does.
            let n = unsafe {
                match direction {
                    Direction::ToGuest => libc::preadv64(fd, pointer, count, at),
                    Direction::FromGuest => libc::pwritev64(fd, pointer, count, at),
                }
            };
            if let Ok(n) = usize::try_from(n) {
                return Ok(n);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Takes `n` moved bytes off the vectors from `first` on; the first that is not done.
    fn advance(&mut self, mut first: usize, mut n: usize) -> usize {
        while first < self.used {
            let vector = &mut self.vectors[first];
            if n < vector.iov_len {
                vector.iov_base = vector.iov_base.cast::<u8>().wrapping_add(n).cast();
                vector.iov_len -= n;
                break;
            }
            n -= vector.iov_len;
            first += 1;
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use vm_memory::{Bytes, GuestAddress};

    #[test]
    fn many_segments_across_two_regions_come_over_in_order() {
        let regions = [(GuestAddress(0), 0x1000), (GuestAddress(0x1000), 0x1000)];
        let mem = GuestMemory::from_ranges(&regions).unwrap();
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..4000u32).map(|i| (i % 251) as u8).collect();
        file.write_all_at(&bytes, 100).unwrap();
        // 200 segments of 20 bytes, some across the border of the regions, and more than one batch.
        let segments = || (0..200).map(|i| Segment { addr: GuestAddress(0x13 + 20 * i), len: 20 });
        transfer(&file, &mem, segments(), 100, Direction::ToGuest).unwrap();
        let mut seen = vec![0; 4000];
        mem.read_slice(&mut seen, GuestAddress(0x13)).unwrap();
        assert_eq!(seen, bytes);

        transfer(&file, &mem, segments(), 8192, Direction::FromGuest).unwrap();
        file.read_exact_at(&mut seen, 8192).unwrap();
        assert_eq!(seen, bytes);
    }

    #[test]
    fn a_file_that_ends_too_early_is_an_error() {
        let mem = GuestMemory::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 10], 0).unwrap();
        let segment = Segment { addr: GuestAddress(0), len: 20 };
        let error = transfer(&file, &mem, [segment].into_iter(), 0, Direction::ToGuest).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
