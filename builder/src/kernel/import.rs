//! From a file somebody has to a kernel that can be kept: vmlinux, version, modules, what is missing.

use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use smolpack_format::open_file;

use super::codec::{self, Codec};
use super::drivers;
use super::error::KernelError;
use super::image::Image;
use super::modules::{self, Module, ModuleFault, Modules, Selection};
use crate::debian::{Entry, Package, PackageError};

/// No module is larger, compressed or not.
const MAX_MODULE: u64 = 256 << 20;

/// A kernel in memory, checked to have what every machine needs.
#[derive(Debug)]
pub(super) struct Imported {
    pub(super) image: Image,
    pub(super) modules: Vec<Module>,
    pub(super) missing: Vec<String>,
}

/// Reads a vmlinux, a bzImage or a Debian package; `scratch` is a folder for temporary files.
pub(super) fn import(path: &Path, scratch: &Path) -> Result<Imported, KernelError> {
    let mut file = open_file(path).map_err(|e| KernelError::io("open", path, e))?;
    let meta = file.metadata().map_err(|e| KernelError::io("read", path, e))?;
    let mut magic = [0; 8];
    let got = codec::read_up_to(&mut file, &mut magic).map_err(|e| KernelError::io("read", path, e))?;
    if Package::is_one(&magic[..got]) {
        return from_package(path, scratch);
    }
    file.seek(SeekFrom::Start(0)).map_err(|e| KernelError::io("read", path, e))?;
    bare(path, file, meta.len(), "import a Debian linux-image package, which brings its modules")
}

/// A kernel without modules: everything must be built in.
fn bare(path: &Path, source: impl Read, len: u64, hint: &'static str) -> Result<Imported, KernelError> {
    let image =
        Image::read(source, len).map_err(|fault| KernelError::Image { path: path.to_owned(), fault })?;
    let missing = drivers::missing_from(&image.vmlinux);
    finish(path, image, Selection { modules: Vec::new(), missing }, hint)
}

fn from_package(path: &Path, scratch: &Path) -> Result<Imported, KernelError> {
    let package = Package::open(path, scratch)
        .map_err(|source: PackageError| KernelError::Package { path: path.to_owned(), source })?;
    let boot = boot_image(path, &package)?;
    let image = Image::read(package.reader(boot), boot.len)
        .map_err(|fault| KernelError::Image { path: path.to_owned(), fault })?;
    let Some(source) = PackageModules::find(path, &package, &image.version)? else {
        let hint = "the package has no modules: import one that has both (Debian's linux-image packages)";
        let missing = drivers::missing_from(&image.vmlinux);
        return finish(path, image, Selection { modules: Vec::new(), missing }, hint);
    };
    let selection = modules::select(&source).map_err(|ModuleFault { module, why }| KernelError::Module {
        path: path.to_owned(),
        module,
        why,
    })?;
    finish(path, image, selection, "import another kernel, such as Debian's cloud kernel")
}

/// The one `boot/vmlinuz-*` of a package.
fn boot_image(path: &Path, package: &Package) -> Result<Entry, KernelError> {
    let images: Vec<_> = package.files().iter().filter(|(name, _)| name.starts_with("boot/vmlinu")).collect();
    match images[..] {
        [(_, entry)] => Ok(*entry),
        [] => Err(KernelError::NoKernelInside { path: path.to_owned(), found: "no boot/vmlinuz".into() }),
        _ => Err(KernelError::NoKernelInside {
            path: path.to_owned(),
            found: format!("{} kernels", images.len()),
        }),
    }
}

fn finish(path: &Path, image: Image, found: Selection, hint: &'static str) -> Result<Imported, KernelError> {
    if let Some(drivers) = drivers::essential_names(&found.missing) {
        let (path, version) = (path.to_owned(), image.version);
        return Err(KernelError::MissingDriver { path, version, drivers, hint });
    }
    let missing = found.missing.iter().map(|driver| driver.module.to_owned()).collect();
    Ok(Imported { image, modules: found.modules, missing })
}

/// The modules of a package, by normal name.
struct PackageModules<'a> {
    package: &'a Package,
    built_in: BTreeSet<String>,
    /// Path and place of each module; the first of a name in path order counts.
    files: std::collections::BTreeMap<String, (&'a str, Entry)>,
}

impl<'a> PackageModules<'a> {
    /// The modules for one version; `None` where the package has none. Newer distributions have them
    /// under `usr/`.
    fn find(path: &Path, package: &'a Package, version: &str) -> Result<Option<Self>, KernelError> {
        let folders = [format!("lib/modules/{version}/"), format!("usr/lib/modules/{version}/")];
        let mut files = std::collections::BTreeMap::new();
        let mut built_in = BTreeSet::new();
        for (name, entry) in package.files() {
            let Some(inside) = folders.iter().find_map(|folder| name.strip_prefix(folder.as_str())) else {
                continue;
            };
            if inside == "modules.builtin" {
                built_in = read_built_in(path, package, *entry)?;
            } else if let Some(module) = module_name(name) {
                files.entry(module).or_insert((name.as_str(), *entry));
            }
        }
        Ok((!files.is_empty() || !built_in.is_empty()).then_some(Self { package, built_in, files }))
    }
}

/// `modules.builtin` lists a path a line: `kernel/fs/ext4/ext4.ko`.
fn read_built_in(path: &Path, package: &Package, entry: Entry) -> Result<BTreeSet<String>, KernelError> {
    let mut text = String::new();
    package.reader(entry).take(MAX_MODULE).read_to_string(&mut text).map_err(|e| KernelError::Module {
        path: path.to_owned(),
        module: "modules.builtin".into(),
        why: format!("unreadable: {e}"),
    })?;
    Ok(text.lines().filter_map(module_name).collect())
}

/// The module's normal name, of a path that ends in `NAME.ko` or `NAME.ko.xz` and the like.
fn module_name(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    let (name, ending) = file.split_once(".ko")?;
    matches!(ending, "" | ".xz" | ".zst" | ".gz").then(|| modules::normal_name(name))
}

impl Modules for PackageModules<'_> {
    fn is_built_in(&self, name: &str) -> bool {
        self.built_in.contains(name)
    }

    fn load(&self, name: &str) -> Result<Option<Vec<u8>>, ModuleFault> {
        let Some((path, entry)) = self.files.get(name) else { return Ok(None) };
        let fault = |why: String| ModuleFault { module: (*path).to_owned(), why };
        if entry.len > MAX_MODULE {
            return Err(fault(format!("larger than {MAX_MODULE} bytes")));
        }
        let mut data = Vec::new();
        self.package.reader(*entry).read_to_end(&mut data).map_err(|e| fault(format!("unreadable: {e}")))?;
        match Codec::sniff(&data) {
            Some(codec) => codec.decompress(&data, MAX_MODULE).map(Some).map_err(|e| fault(e.to_string())),
            None => Ok(Some(data)),
        }
    }
}
