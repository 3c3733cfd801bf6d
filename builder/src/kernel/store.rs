//! The folder that kernels are kept in.
//!
//! ```text
//! kernels/DIGEST/kernel.json      what it is ([`KernelRecord`])
//!               /vmlinux          the ELF image, cut to its segments
//!               /modules/00-….ko  in load order
//! kernels/.tmp-…                  being made, or being removed
//! ```
//! A kernel appears and disappears by one rename, so several processes may use the folder at once and
//! a killed one leaves nothing but a `.tmp-` folder, which is swept when it is a day old.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::error::KernelError;
use super::import::{self, Imported};
use super::modules::Module;
use super::record::{KernelFile, KernelRecord};
use super::{METAPACKAGE, initrd};
use crate::debian::Apt;
use crate::progress::Progress;

const RECORD: &str = "kernel.json";
const VMLINUX: &str = "vmlinux";
const MODULES: &str = "modules";
const TEMPORARY: &str = ".tmp-";
/// No import or fetch takes so long; what is older was left by a process that died.
const ABANDONED: Duration = Duration::from_hours(24);
/// Fewer digits of a digest are taken for a version.
const MIN_PREFIX: usize = 4;

/// The kernels of one user.
#[derive(Clone, Debug)]
pub struct KernelStore {
    root: PathBuf,
}

/// A kept kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    folder: PathBuf,
    vmlinux: PathBuf,
    record: KernelRecord,
}

impl KernelStore {
    /// Opens the kernels in a data folder, made if need be.
    ///
    /// # Errors
    /// Where the folder cannot be made or read.
    pub fn open(data_dir: &Path) -> Result<Self, KernelError> {
        let root = data_dir.join("kernels");
        fs::create_dir_all(&root).map_err(|e| KernelError::io("create the folder", &root, e))?;
        let store = Self { root };
        store.sweep()?;
        Ok(store)
    }

    /// Keeps the kernel in a file: an ELF vmlinux, a bzImage, or a Debian kernel package with its
    /// modules. One that is kept already counts as added now.
    ///
    /// # Errors
    /// Where the file is no x86-64 kernel, lacks a driver that machines need, or the disk refuses.
    pub fn import(&self, file: &Path) -> Result<Kernel, KernelError> {
        let imported = import::import(file, &self.root)?;
        let source = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        self.keep(&imported, &source)
    }

    /// Downloads Debian's cloud kernel through apt, which verifies it, and keeps it.
    ///
    /// # Errors
    /// Where there is no apt, no network, or no such package; says what to do instead.
    pub fn fetch(&self, progress: &mut dyn Progress) -> Result<Kernel, KernelError> {
        let scratch = self.temporary()?;
        let package = Apt::new(scratch.path())
            .download_dependency(METAPACKAGE, "linux-image-", progress)
            .map_err(KernelError::Fetch)?;
        progress.phase("unpack the kernel", None);
        self.import(&package)
    }

    /// All kernels, the newest first.
    ///
    /// # Errors
    /// Where the folder cannot be read, or a kernel is damaged; names it.
    pub fn list(&self) -> Result<Vec<Kernel>, KernelError> {
        let mut kernels = Vec::new();
        for name in self.names()? {
            kernels.extend(self.load(&name)?);
        }
        kernels.sort_by(|a, b| b.record.added.cmp(&a.record.added).then(a.digest().cmp(b.digest())));
        Ok(kernels)
    }

    /// The kernel that builds use unless told otherwise: the one imported or fetched last.
    ///
    /// # Errors
    /// As [`KernelStore::list`].
    pub fn default_kernel(&self) -> Result<Option<Kernel>, KernelError> {
        Ok(self.list()?.into_iter().next())
    }

    /// The kernel of a digest (`sha256:` and the last digits may be left out) or a version.
    ///
    /// # Errors
    /// Where none or several match, or it is damaged.
    pub fn find(&self, reference: &str) -> Result<Kernel, KernelError> {
        let unknown = || KernelError::Unknown { reference: reference.to_owned() };
        self.load(&self.resolve(reference)?)?.ok_or_else(unknown)
    }

    /// Removes a kernel and gives its digest. A damaged one goes by its digest.
    ///
    /// # Errors
    /// Where none or several match, or the disk refuses.
    pub fn remove(&self, reference: &str) -> Result<String, KernelError> {
        let digest = self.resolve(reference)?;
        let grave = self.temporary()?;
        let folder = self.root.join(&digest);
        match fs::rename(&folder, grave.path().join("kernel")) {
            // Another process was faster.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            result => result.map_err(|e| KernelError::io("remove", &folder, e))?,
        }
        grave.close().map_err(|e| KernelError::io("remove", &folder, e))?;
        Ok(digest)
    }

    /// The digest that a reference means, by folder name first: damaged kernels can be named so too.
    fn resolve(&self, reference: &str) -> Result<String, KernelError> {
        let wanted = reference.strip_prefix("sha256:").unwrap_or(reference);
        let mut matching = self.names()?;
        if wanted.len() >= MIN_PREFIX {
            matching.retain(|name| name.starts_with(wanted));
        } else {
            matching.clear();
        }
        if matching.is_empty() {
            matching = self.digests_of_version(reference)?;
        }
        match &matching[..] {
            [one] => Ok(one.clone()),
            [] => Err(KernelError::Unknown { reference: reference.to_owned() }),
            many => Err(KernelError::Ambiguous {
                reference: reference.to_owned(),
                candidates: many.iter().map(|digest| &digest[..12]).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    fn digests_of_version(&self, version: &str) -> Result<Vec<String>, KernelError> {
        let kernels = self.list()?;
        Ok(kernels.iter().filter(|k| k.version() == version).map(|k| k.digest().to_owned()).collect())
    }

    /// The names of the kernels' folders: digests.
    fn names(&self) -> Result<Vec<String>, KernelError> {
        let unreadable = |e| KernelError::io("read", &self.root, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            names.extend(name.into_string().ok().filter(|name| is_digest(name)));
        }
        names.sort();
        Ok(names)
    }

    /// The kernel in a folder; `None` where it is being removed.
    fn load(&self, digest: &str) -> Result<Option<Kernel>, KernelError> {
        let folder = self.root.join(digest);
        let damaged = |why: String| KernelError::Damaged { digest: digest.to_owned(), why };
        let text = match fs::read(folder.join(RECORD)) {
            Err(_) if !folder.exists() => return Ok(None),
            text => text.map_err(|e| damaged(format!("{RECORD} cannot be read: {e}")))?,
        };
        let record: KernelRecord =
            serde_json::from_slice(&text).map_err(|e| damaged(format!("{RECORD}: {e}")))?;
        if record.digest != digest || !record.is_consistent() {
            return Err(damaged(format!("{RECORD} describes another kernel")));
        }
        let vmlinux = folder.join(VMLINUX);
        match fs::metadata(&vmlinux) {
            Ok(meta) if meta.len() == record.vmlinux.size => Ok(Some(Kernel { folder, vmlinux, record })),
            Ok(_) => Err(damaged(format!("{VMLINUX} has another length"))),
            Err(_) if !folder.exists() => Ok(None),
            Err(e) => Err(damaged(format!("{VMLINUX} cannot be read: {e}"))),
        }
    }

    fn keep(&self, imported: &Imported, source: &str) -> Result<Kernel, KernelError> {
        let Imported { image, modules, missing } = imported;
        let mut record = KernelRecord::new(image.version.clone(), source, &image.vmlinux, modules);
        record.missing_drivers.clone_from(missing);
        let making = self.temporary()?;
        write_kernel(making.path(), &record, &image.vmlinux, modules)?;
        let folder = self.root.join(&record.digest);
        if let Err(e) = fs::rename(making.path(), &folder) {
            if !matches!(e.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) {
                return Err(KernelError::io("create", &folder, e));
            }
            replace(&making, &folder)?;
        }
        sync(&self.root)?;
        let unknown = KernelError::Unknown { reference: record.digest.clone() };
        self.load(&record.digest)?.ok_or(unknown)
    }

    fn temporary(&self) -> Result<tempfile::TempDir, KernelError> {
        tempfile::Builder::new()
            .prefix(TEMPORARY)
            .tempdir_in(&self.root)
            .map_err(|e| KernelError::io("create a folder in", &self.root, e))
    }

    /// Removes what processes that died have left.
    fn sweep(&self) -> Result<(), KernelError> {
        let unreadable = |e| KernelError::io("read", &self.root, e);
        for entry in fs::read_dir(&self.root).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes()) && is_abandoned(&entry)
            {
                // Another process may be at it too; what stays is swept next time.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        Ok(())
    }
}

/// Puts a kernel that was just written in the place of the same one from before, which may be damaged.
/// The old one goes away with the temporary folder.
fn replace(making: &tempfile::TempDir, folder: &Path) -> Result<(), KernelError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, making.path(), CWD, folder, RenameFlags::EXCHANGE)
        .map_err(|e| KernelError::io("replace", folder, e.into()))
}

fn is_abandoned(entry: &fs::DirEntry) -> bool {
    let age =
        entry.metadata().and_then(|meta| meta.modified()).map(|at| SystemTime::now().duration_since(at));
    matches!(age, Ok(Ok(age)) if age > ABANDONED)
}

fn is_digest(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn write_kernel(
    folder: &Path,
    record: &KernelRecord,
    vmlinux: &[u8],
    modules: &[Module],
) -> Result<(), KernelError> {
    // Temporary folders are private; kernels are no secret.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
        .map_err(|e| KernelError::io("set the mode of", folder, e))?;
    write_synced(&folder.join(VMLINUX), vmlinux)?;
    let module_folder = folder.join(MODULES);
    fs::create_dir(&module_folder).map_err(|e| KernelError::io("create the folder", &module_folder, e))?;
    for (at, module) in modules.iter().enumerate() {
        write_synced(&module_folder.join(initrd::file_name(at, &module.name)), &module.data)?;
    }
    let mut text =
        serde_json::to_vec_pretty(record).map_err(|e| KernelError::io("write", folder, e.into()))?;
    text.push(b'\n');
    write_synced(&folder.join(RECORD), &text)?;
    sync(&module_folder)?;
    sync(folder)
}

fn write_synced(path: &Path, data: &[u8]) -> Result<(), KernelError> {
    let written = File::create_new(path).and_then(|mut file| {
        file.write_all(data)?;
        file.sync_all()
    });
    written.map_err(|e| KernelError::io("write", path, e))
}

fn sync(folder: &Path) -> Result<(), KernelError> {
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| KernelError::io("write", folder, e))
}

impl Kernel {
    /// What is written down of it: version, source, time, files.
    #[must_use]
    pub fn record(&self) -> &KernelRecord {
        &self.record
    }

    /// Its name: a SHA-256 over the image and the modules, 64 hexadecimal digits.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.record.digest
    }

    /// As `uname -r` prints it: `6.1.0-57-cloud-amd64`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.record.version
    }

    /// The ELF image. It stays until the kernel is removed.
    #[must_use]
    pub fn vmlinux(&self) -> &Path {
        &self.vmlinux
    }

    /// Makes the initrd: `init` as `/init`, and the modules that the devices need in load order.
    /// The same inputs give the same bytes.
    ///
    /// # Errors
    /// Where a module cannot be read or is not what was imported.
    pub fn initrd(&self, init: &[u8]) -> Result<Vec<u8>, KernelError> {
        let modules = self.record.modules.iter().enumerate();
        let modules: Result<Vec<_>, _> = modules.map(|(at, file)| self.module(at, file)).collect();
        initrd::write(init, &modules?)
    }

    /// Reads the image and checks that it is what was imported.
    ///
    /// # Errors
    /// Where it cannot be read or is damaged.
    pub fn read_vmlinux(&self) -> Result<Vec<u8>, KernelError> {
        self.read(&self.vmlinux, &self.record.vmlinux)
    }

    fn module(&self, at: usize, file: &KernelFile) -> Result<Module, KernelError> {
        let path = self.folder.join(MODULES).join(initrd::file_name(at, &file.name));
        Ok(Module { name: file.name.clone(), data: self.read(&path, file)? })
    }

    fn read(&self, path: &Path, file: &KernelFile) -> Result<Vec<u8>, KernelError> {
        let data = fs::read(path).map_err(|e| KernelError::io("read", path, e))?;
        match file.mismatch(&data) {
            Some(why) => Err(KernelError::Damaged { digest: self.digest().to_owned(), why }),
            None => Ok(data),
        }
    }
}
