//! A written image and what its judges say.

use crate::manifest::{Manifest, of_folder, of_tree};
use smolpack_builder::ext4::{self, Options, Summary};
use smolpack_builder::sink::{BlockSink, FileSink};
use smolpack_builder::tree::{Timestamp, Tree};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Fixed options for a disk of `size` bytes.
pub(crate) fn options(size: u64) -> Options {
    Options {
        size,
        uuid: *b"\x5dsmolpack-uuid-\x01",
        hash_seed: *b"smolpack seed 16",
        label: Some("root".to_owned()),
        created: Timestamp { seconds: 1_650_000_000, nanoseconds: 0 },
    }
}

/// Passes data on in blocks, and those that are zero as such.
struct Hollow(FileSink);

impl BlockSink for Hollow {
    fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes
            .chunks(4096)
            .try_for_each(|block| if block == [0; 4096] { self.zeros(4096) } else { self.0.data(block) })
    }

    fn zeros(&mut self, len: u64) -> io::Result<()> {
        self.0.zeros(len)
    }
}

/// An image in a temporary folder.
pub(crate) struct Image {
    folder: TempDir,
    pub(crate) summary: Summary,
}

impl Image {
    pub(crate) fn write(tree: &Tree, options: &Options) -> Self {
        Self::write_through(tree, options, |sink| Box::new(sink))
    }

    /// Leaves holes for data that is zero: for files too large to lie on this machine.
    pub(crate) fn write_hollow(tree: &Tree, options: &Options) -> Self {
        Self::write_through(tree, options, |sink| Box::new(Hollow(sink)))
    }

    fn write_through(tree: &Tree, options: &Options, wrap: fn(FileSink) -> Box<dyn BlockSink>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("disk.ext4")).unwrap();
        let mut sink = wrap(FileSink::new(file.try_clone().unwrap()));
        let summary = ext4::write(tree, options, &mut *sink).unwrap();
        let at = std::io::Seek::stream_position(&mut &file).unwrap();
        assert_eq!(at, options.size, "the sink takes exactly the disk's size");
        file.set_len(options.size).unwrap();
        Self { folder, summary }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("disk.ext4")
    }

    /// e2fsck finds nothing to say.
    pub(crate) fn check(&self) {
        let output = run("e2fsck", &["-fn".as_ref(), &self.path()]);
        let warnings: Vec<&str> = output
            .lines()
            .skip_while(|line| !line.starts_with("Pass 1"))
            .filter(|line| {
                !line.starts_with("Pass ") && !line.contains(" files (") && !line.starts_with("e2fsck ")
            })
            .collect();
        assert!(warnings.is_empty(), "{output}");
    }

    /// What the kernel reads from it.
    pub(crate) fn manifest(&self) -> Manifest {
        let mounted = Mounted::new(&self.path(), "ro");
        of_folder(mounted.0.path())
    }

    /// Where the image's bytes are.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }
}

/// Writes a tree; e2fsck must find it clean and the kernel read the same tree back.
pub(crate) fn judge(tree: &Tree, size: u64) -> Image {
    let image = Image::write(tree, &options(size));
    image.check();
    assert_same(&of_tree(tree), &image.manifest());
    image
}

/// Fails with the first differences.
pub(crate) fn assert_same(wanted: &Manifest, found: &Manifest) {
    let keys = wanted.keys().chain(found.keys());
    let differences: Vec<String> = keys
        .filter(|key| wanted.get(*key) != found.get(*key))
        .take(5)
        .map(|key| format!("{}:\n {:?}\n {:?}", key.escape_ascii(), wanted.get(key), found.get(key)))
        .collect();
    assert!(differences.is_empty(), "wanted, then found:\n{}", differences.join("\n"));
}

/// An image mounted over a loop device, until dropped.
pub(crate) struct Mounted(pub(crate) TempDir);

impl Mounted {
    pub(crate) fn new(image: &Path, mode: &str) -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests mount images: run them as root");
        let folder = tempfile::tempdir().unwrap();
        let options = format!("loop,{mode}");
        run("mount", &["-o".as_ref(), options.as_ref(), image, folder.path()]);
        Self(folder)
    }
}

impl Drop for Mounted {
    /// Tries again while busy: a process that another test has just forked holds our files until it
    /// runs its program.
    fn drop(&mut self) {
        let unmount =
            || Command::new("umount").arg(self.0.path()).output().is_ok_and(|output| output.status.success());
        let pauses = [1, 5, 20, 100, 500, 2000];
        let done = pauses.into_iter().any(|pause| {
            unmount() || {
                thread::sleep(Duration::from_millis(pause));
                false
            }
        });
        assert!(done || unmount() || thread::panicking(), "cannot unmount {}", self.0.path().display());
    }
}

/// Runs a tool that must be there and succeed; its output.
pub(crate) fn run(tool: &str, args: &[&Path]) -> String {
    let output = Command::new(tool)
        .args(args)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap_or_else(|error| panic!("these tests need {tool}: {error}"));
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{tool} {args:?}: {}\n{text}", output.status);
    text
}
