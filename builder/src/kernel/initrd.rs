//! The initial RAM disk: a newc cpio archive (the kernel's `buffer-format.rst`), uncompressed, because
//! a few hundred KiB cost more to inflate than to copy, and the same bytes from the same inputs.

use super::KernelError;
use super::modules::Module;

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const REGULAR: u32 = 0o100_644;
const CONSOLE: u32 = 0o020_600;
/// Device number of `/dev/console`.
const CONSOLE_RDEV: (u32, u32) = (5, 1);

/// An initrd with `init` as `/init` and the modules as `/modules/00-NAME.ko`, `01-…`.
///
/// # Errors
/// Where a file is larger than the format can say (4 GiB).
pub(crate) fn write(init: &[u8], modules: &[Module]) -> Result<Vec<u8>, KernelError> {
    let room = modules.iter().map(|m| m.data.len() + 256).sum::<usize>() + init.len() + 4096;
    let mut cpio = Cpio { out: Vec::with_capacity(room), inode: 0 };
    cpio.directory("dev")?;
    cpio.entry("dev/console", CONSOLE, CONSOLE_RDEV, &[])?;
    cpio.entry("init", EXECUTABLE, (0, 0), init)?;
    cpio.directory("modules")?;
    for (at, module) in modules.iter().enumerate() {
        cpio.entry(&format!("modules/{}", file_name(at, &module.name)), REGULAR, (0, 0), &module.data)?;
    }
    for name in ["newroot", "proc", "sys"] {
        cpio.directory(name)?;
    }
    cpio.finish()
}

/// The file name of the module that is loaded as number `at`: names sort in load order.
pub(crate) fn file_name(at: usize, module: &str) -> String {
    format!("{at:02}-{module}.ko")
}

struct Cpio {
    out: Vec<u8>,
    inode: u32,
}

impl Cpio {
    fn directory(&mut self, name: &str) -> Result<(), KernelError> {
        self.entry(name, DIRECTORY, (0, 0), &[])
    }

    fn entry(&mut self, name: &str, mode: u32, rdev: (u32, u32), data: &[u8]) -> Result<(), KernelError> {
        self.inode += 1;
        self.header(name, mode, rdev, data.len())?;
        self.out.extend_from_slice(data);
        self.pad(4);
        Ok(())
    }

    /// Magic, then 13 fields of 8 hexadecimal digits, then the name and its NUL.
    fn header(&mut self, name: &str, mode: u32, rdev: (u32, u32), len: usize) -> Result<(), KernelError> {
        let len = u32::try_from(len)
            .map_err(|_| KernelError::Initrd(format!("{name} is {len} bytes, the limit is 4 GiB")))?;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let (uid, gid, mtime, dev, check) = (0, 0, 0, (0, 0), 0);
        let name_len = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        let fields =
            [self.inode, mode, uid, gid, links, mtime, len, dev.0, dev.1, rdev.0, rdev.1, name_len, check];
        self.out.extend_from_slice(b"070701");
        for field in fields {
            self.out.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.out.extend_from_slice(name.as_bytes());
        self.out.push(0);
        self.pad(4);
        Ok(())
    }

    fn pad(&mut self, to: usize) {
        self.out.resize(self.out.len().next_multiple_of(to), 0);
    }

    fn finish(mut self) -> Result<Vec<u8>, KernelError> {
        self.inode = 0;
        self.header("TRAILER!!!", 0, (0, 0), 0)?;
        self.pad(512);
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn list(cpio: &[u8]) -> String {
        let mut child = Command::new("cpio")
            .args(["-itvn", "--quiet"])
            .env("TZ", "UTC")
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("cpio is needed for this test");
        child.stdin.take().unwrap().write_all(cpio).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success());
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ") + "\n").collect()
    }

    #[test]
    fn cpio_reads_back_what_was_written() {
        let modules: Vec<_> = ["virtio", "virtio_blk"]
            .map(|name| Module { name: name.into(), data: name.as_bytes().to_vec() })
            .into();
        let cpio = write(b"#!init", &modules).unwrap();
        let expected = "\
drwxr-xr-x 2 0 0 0 Jan 1 1970 dev
crw------- 1 0 0 5, 1 Jan 1 1970 dev/console
-rwxr-xr-x 1 0 0 6 Jan 1 1970 init
drwxr-xr-x 2 0 0 0 Jan 1 1970 modules
-rw-r--r-- 1 0 0 6 Jan 1 1970 modules/00-virtio.ko
-rw-r--r-- 1 0 0 10 Jan 1 1970 modules/01-virtio_blk.ko
drwxr-xr-x 2 0 0 0 Jan 1 1970 newroot
drwxr-xr-x 2 0 0 0 Jan 1 1970 proc
drwxr-xr-x 2 0 0 0 Jan 1 1970 sys
";
        assert_eq!(list(&cpio), expected);
        assert!(write(b"#!init", &modules).unwrap() == cpio, "the same inputs give the same bytes");
        assert_eq!(cpio.len() % 512, 0);
    }
}
