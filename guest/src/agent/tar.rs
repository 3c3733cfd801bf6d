//! A folder as a PAX tar (POSIX.1-2017, pax), the same bytes for the same files.
//!
//! Entries are in order of names, a folder before what is in it. Owners are numbers; access and change times
//! are left out. Holes of files are those the file system reports, in GNU's sparse format 1.0.

use rustix::fs::{
    AtFlags, Dir, FileType, OFlags, SeekFrom, Stat, getxattr, listxattr, open, openat, readlinkat, seek,
    statat,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::Mode;

/// Attributes that overlayfs keeps for itself.
pub(super) const OVERLAY: &[u8] = b"trusted.overlay.";
/// The one of them that says something of the folder: nothing of lower layers shows in it.
const OPAQUE: &[u8] = b"trusted.overlay.opaque";
const BLOCK: usize = 512;
/// The largest number in a header's fields for owners; larger ones, and sizes from 8 GiB, go into records.
const MAX_OWNER: u32 = 0o7_777_777;
const MAX_SIZE: u64 = 0o77_777_777_777;

/// Writes the folder at `root`, itself as `./`. Times of modification after `latest` are written as that.
///
/// # Errors
/// Says which file cannot be read, or that the output fails.
pub(super) fn write(root: &Path, latest: (i64, u32), output: &mut impl Write) -> Result<(), String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(root, flags, Mode::empty()).map_err(|e| format!("{}: {e}", root.display()))?;
    let mut archive = Archive { output, latest, links: HashMap::new(), path: b"./".to_vec() };
    let done = archive.folder(&folder).and_then(|()| archive.output.write_all(&[0; 2 * BLOCK]));
    done.map_err(|e| format!("cannot pack {}: {e}", String::from_utf8_lossy(&archive.path)))
}

/// The names of a file's attributes, in order.
pub(super) fn xattr_names(path: impl rustix::path::Arg + Copy) -> rustix::io::Result<Vec<Box<[u8]>>> {
    let mut buffer = vec![0_u8; listxattr(path, &mut [0_u8; 0][..])?];
    let len = listxattr(path, &mut buffer[..])?;
    let mut names: Vec<Box<[u8]>> =
        buffer[..len].split(|b| *b == 0).filter(|name| !name.is_empty()).map(Into::into).collect();
    names.sort();
    Ok(names)
}

struct Archive<'a, W> {
    output: &'a mut W,
    latest: (i64, u32),
    /// Files of several names, by device and inode.
    links: HashMap<(u64, u64), Vec<u8>>,
    /// The entry at hand.
    path: Vec<u8>,
}

/// What an entry's header says beside its path and the records.
struct Head<'a> {
    kind: u8,
    stat: &'a Stat,
    /// Bytes that follow the header.
    size: u64,
    link: &'a [u8],
}

impl<W: Write> Archive<'_, W> {
    /// A folder and what is in it. A path in the kernel is at most 4,096 bytes, so the depth is bounded.
    fn folder(&mut self, folder: &OwnedFd) -> io::Result<()> {
        let stat = rustix::fs::fstat(folder)?;
        self.entry(&Head { kind: b'5', stat: &stat, size: 0, link: b"" }, folder.as_fd(), &mut Vec::new())?;
        let mut names = Vec::new();
        for entry in Dir::read_from(folder)? {
            let name = entry?.file_name().to_owned();
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name);
            }
        }
        names.sort();
        let length = self.path.len();
        for name in names {
            self.path.extend_from_slice(name.to_bytes());
            self.node(folder, &name)?;
            self.path.truncate(length);
        }
        Ok(())
    }

    fn node(&mut self, folder: &OwnedFd, name: &CString) -> io::Result<()> {
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            self.path.push(b'/');
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            return self.folder(&openat(folder, name, flags, Mode::empty())?);
        }
        // A socket means nothing without the process that made it.
        if kind == FileType::Socket {
            return Ok(());
        }
        let handle = openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        // overlayfs gives all whiteouts of a folder one inode; they are no files of several names.
        let whiteout = kind == FileType::CharacterDevice && stat.st_rdev == 0;
        if stat.st_nlink > 1 && !whiteout {
            if let Some(first) = self.links.get(&(stat.st_dev, stat.st_ino)).cloned() {
                let head = Head { kind: b'1', stat: &stat, size: 0, link: &first };
                return self.entry(&head, handle.as_fd(), &mut Vec::new());
            }
            self.links.insert((stat.st_dev, stat.st_ino), self.path.clone());
        }
        let plain = |kind| Head { kind, stat: &stat, size: 0, link: b"" };
        match kind {
            FileType::RegularFile => self.file(folder, name, &stat),
            FileType::Symlink => {
                let target = readlinkat(folder, name, Vec::new())?;
                let head = Head { link: target.to_bytes(), ..plain(b'2') };
                self.entry(&head, handle.as_fd(), &mut Vec::new())
            }
            FileType::CharacterDevice => self.entry(&plain(b'3'), handle.as_fd(), &mut Vec::new()),
            FileType::BlockDevice => self.entry(&plain(b'4'), handle.as_fd(), &mut Vec::new()),
            FileType::Fifo => self.entry(&plain(b'6'), handle.as_fd(), &mut Vec::new()),
            _ => Err(io::Error::other("a file of unknown type")),
        }
    }

    fn file(&mut self, folder: &OwnedFd, name: &CString, stat: &Stat) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(folder, name, flags, Mode::empty())?);
        let size = stat.st_size as u64;
        let mut records = Vec::new();
        let extents =
            if (stat.st_blocks as u64) * 512 < size { extents(&file, size)? } else { vec![(0, size)] };
        let data: u64 = extents.iter().map(|(_, len)| len).sum();
        let mut map = Vec::new();
        if data < size {
            record(&mut records, b"GNU.sparse.major", b"1");
            record(&mut records, b"GNU.sparse.minor", b"0");
            record(&mut records, b"GNU.sparse.name", &self.path);
            record(&mut records, b"GNU.sparse.realsize", size.to_string().as_bytes());
            map = sparse_map(&extents);
        }
        let length = map.len() as u64 + data;
        self.entry(&Head { kind: b'0', stat, size: length, link: b"" }, file.as_fd(), &mut records)?;
        self.output.write_all(&map)?;
        for (at, len) in extents {
            seek(&file, SeekFrom::Start(at))?;
            if io::copy(&mut (&file).take(len), self.output)? != len {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "it became shorter while it was read",
                ));
            }
        }
        self.pad(length)
    }

    /// One header, with the records it needs before it.
    fn entry(&mut self, head: &Head<'_>, file: BorrowedFd<'_>, records: &mut Vec<u8>) -> io::Result<()> {
        let Head { kind, stat, size, link } = *head;
        if kind != b'1' {
            Self::xattrs(file, records)?;
        }
        let mtime = (stat.st_mtime, stat.st_mtime_nsec as u32).min(self.latest);
        if mtime.1 != 0 || !(0..=MAX_SIZE as i64).contains(&mtime.0) {
            record(records, b"mtime", decimal(mtime).as_bytes());
        }
        for (name, value, field) in
            [(b"path".as_slice(), self.path.as_slice(), 100), (b"linkpath", link, 100)]
        {
            if value.len() > field {
                record(records, name, value);
            }
        }
        for (name, value) in [(b"uid", stat.st_uid), (b"gid", stat.st_gid)] {
            if value > MAX_OWNER {
                record(records, name, value.to_string().as_bytes());
            }
        }
        if size > MAX_SIZE {
            record(records, b"size", size.to_string().as_bytes());
        }
        if !records.is_empty() {
            let length = records.len() as u64;
            self.output.write_all(&header(b"x", b'x', length, b""))?;
            self.output.write_all(records)?;
            self.pad(length)?;
        }
        let mut block = header(&self.path, kind, size, link);
        octal(&mut block[100..108], u64::from(stat.st_mode & 0o7777));
        octal(&mut block[108..116], u64::from(stat.st_uid.min(MAX_OWNER)));
        octal(&mut block[116..124], u64::from(stat.st_gid.min(MAX_OWNER)));
        octal(&mut block[136..148], mtime.0.clamp(0, MAX_SIZE as i64) as u64);
        if matches!(kind, b'3' | b'4') {
            octal(&mut block[329..337], u64::from(rustix::fs::major(stat.st_rdev)));
            octal(&mut block[337..345], u64::from(rustix::fs::minor(stat.st_rdev)));
        }
        checksum(&mut block);
        self.output.write_all(&block)
    }

    /// Records of a file's attributes, as star and GNU tar write them.
    fn xattrs(file: BorrowedFd<'_>, records: &mut Vec<u8>) -> io::Result<()> {
        // A descriptor opened with O_PATH, as that of a link has to be, has none but by way of its name.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let names = match xattr_names(path.as_str()) {
            Err(Errno::OPNOTSUPP) => return Ok(()),
            names => names?,
        };
        for name in names.iter().filter(|name| !name.starts_with(OVERLAY) || ***name == *OPAQUE) {
            let mut value = vec![0_u8; getxattr(path.as_str(), &**name, &mut [0_u8; 0][..])?];
            let len = getxattr(path.as_str(), &**name, &mut value[..])?;
            record(records, &[b"SCHILY.xattr.", &**name].concat(), &value[..len]);
        }
        Ok(())
    }

    fn pad(&mut self, length: u64) -> io::Result<()> {
        let over = (length % BLOCK as u64) as usize;
        self.output.write_all(&[0; BLOCK][..(BLOCK - over) % BLOCK])
    }
}

/// The parts of a file that are no holes: offsets and lengths.
fn extents(file: &File, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        at = seek(file, SeekFrom::Hole(start))?.min(size);
        extents.push((start, at.saturating_sub(start)));
    }
    if extents.last().is_none_or(|(start, len)| start + len < size) {
        // So GNU tar writes a hole at the end.
        extents.push((size, 0));
    }
    Ok(extents)
}

/// GNU's map, sparse format 1.0: decimal numbers a line, padded to a block.
fn sparse_map(extents: &[(u64, u64)]) -> Vec<u8> {
    let mut map = format!("{}\n", extents.len()).into_bytes();
    for (at, len) in extents {
        map.extend_from_slice(format!("{at}\n{len}\n").as_bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

/// A record, `LENGTH NAME=VALUE\n`, whose length counts itself.
fn record(records: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let rest = name.len() + value.len() + 3;
    let mut digits = 1;
    while (rest + digits).to_string().len() != digits {
        digits += 1;
    }
    records.extend_from_slice((rest + digits).to_string().as_bytes());
    for part in [b" ", name, b"=", value, b"\n"] {
        records.extend_from_slice(part);
    }
}

/// Seconds with nine decimals. Before 1970 the nanoseconds count towards the present, the text away from it.
fn decimal((seconds, nanoseconds): (i64, u32)) -> String {
    if seconds < 0 && nanoseconds > 0 {
        format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds)
    } else {
        format!("{seconds}.{nanoseconds:09}")
    }
}

fn header(path: &[u8], kind: u8, size: u64, link: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| {
        let bytes = &bytes[..bytes.len().min(100)];
        block[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, path);
    put(100, b"0000644\0");
    put(156, &[kind]);
    put(157, link);
    put(257, b"ustar\x0000");
    for field in [108..116, 116..124, 136..148] {
        octal(&mut block[field], 0);
    }
    octal(&mut block[124..136], size.min(MAX_SIZE));
    checksum(&mut block);
    block
}

/// A number in octal digits that fill all of a field but its last byte.
fn octal(field: &mut [u8], value: u64) {
    let width = field.len() - 1;
    field[..width].copy_from_slice(format!("{value:0width$o}").as_bytes());
    field[width] = 0;
}

fn checksum(block: &mut [u8; BLOCK]) {
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    octal(&mut block[148..155], sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::process::Command;

    fn pack(folder: &Path, latest: (i64, u32)) -> Vec<u8> {
        let mut tar = Vec::new();
        write(folder, latest, &mut tar).unwrap();
        tar
    }

    #[test]
    fn what_gnu_tar_unpacks_is_the_same_and_packs_to_the_same_bytes() {
        let made = tempfile::tempdir().unwrap();
        let root = made.path();
        let long = root.join("d".repeat(200)).join("e".repeat(200));
        fs::create_dir_all(&long).unwrap();
        fs::write(long.join("f".repeat(200)), b"long").unwrap();
        fs::hard_link(long.join("f".repeat(200)), root.join("again")).unwrap();
        symlink("t".repeat(300), root.join("link")).unwrap();
        symlink("short", root.join("link of few")).unwrap();
        fs::write(root.join("empty"), b"").unwrap();
        fs::write(root.join("x\ny=1 \u{e9}"), vec![7; 700]).unwrap();
        let sparse = File::create(root.join("sparse")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"end", 1 << 20).unwrap();
        sparse.set_len(2 << 20).unwrap();
        sparse.sync_all().unwrap();
        File::create(root.join("hole")).unwrap().set_len(1 << 16).unwrap();
        let fifo = CString::new(root.join("fifo").as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the path is a string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o640) }, 0);
        let old = std::time::UNIX_EPOCH - std::time::Duration::new(5, 250_000_000);
        File::open(root.join("empty")).unwrap().set_modified(old).unwrap();

        let now = (i64::MAX, 0);
        let tar = pack(root, now);
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &tar).unwrap();
        let copy = tempfile::tempdir().unwrap();
        let unpacked = Command::new("tar").arg("-xpf").arg(file.path()).arg("-C").arg(copy.path()).output();
        let unpacked = unpacked.unwrap();
        assert!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
        assert!(tar == pack(copy.path(), now), "the copy packs to other bytes");
        let stat = |name: &str| fs::symlink_metadata(copy.path().join(name)).unwrap();
        assert_eq!(stat("again").nlink(), 2);
        assert_eq!((stat("empty").mtime(), stat("empty").mtime_nsec()), (-6, 750_000_000));
        assert!(stat("sparse").size() == 2 << 20 && stat("sparse").blocks() < 64);
        assert!(tar.len() < 40_000, "holes take no room: {} bytes", tar.len());
    }

    #[test]
    fn later_times_are_written_as_the_latest() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("new"), b"").unwrap();
        let one = pack(folder.path(), (1_000_000, 5));
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(folder.path().join("new"), b"").unwrap();
        assert!(one == pack(folder.path(), (1_000_000, 5)));
        assert!(one.windows(24).any(|window| window == b"mtime=1000000.000000005\n"));
    }

    #[test]
    fn numbers_too_large_for_a_field_and_lengths_that_count_themselves() {
        let mut records = Vec::new();
        record(&mut records, b"path", &[b'x'; 90]);
        assert!(records.starts_with(b"99 path=x"), "{}", String::from_utf8_lossy(&records));
        let mut records = Vec::new();
        record(&mut records, b"path", &[b'x'; 92]);
        assert!(records.starts_with(b"102 path=x"));
        assert_eq!(records.len(), 102);
        assert_eq!(decimal((-6, 750_000_000)), "-5.250000000");
        assert_eq!(decimal((-1, 500_000_000)), "-0.500000000");
    }
}
