//! A Smolfile and an image into one artifact: the whole recipe.
//!
//! [`build`] reads top to bottom. What it writes goes to files without a name until the artifact is
//! whole; then it appears under its own name at once.

mod cold;
mod error;
mod machine;
mod setup;
mod snapshot;
mod space;

pub use error::BuildError;
pub use machine::{MachineFailure, MachineOptions};
pub use setup::{SetupError, SetupOptions, SetupReport, StepReport};

use smolpack_format::{Artifact, Digest, SectionKind, Writer, folder_of, manifest};
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::compare::compare;
use crate::image::{self, CopyOptions, Image, ImageSource, LoadOptions};
use crate::kernel::{Kernel, KernelStore};
use crate::machine::MachineSpec;
use crate::progress::Progress;
use crate::smolfile::Delay;
use crate::tree::Timestamp;

/// What to build, and with what.
#[derive(Debug)]
pub struct Request<'a> {
    /// The machine: Smolfile and flags.
    pub spec: &'a MachineSpec,
    /// The folder that paths in the Smolfile are relative to.
    pub context: &'a Path,
    /// Where its files come from.
    pub source: &'a ImageSource,
    /// How images are found and fetched.
    pub images: &'a LoadOptions<'a>,
    /// Where guest kernels are kept.
    pub kernels: &'a KernelStore,
    /// The guest agent, a static x86-64 program.
    pub agent: &'a [u8],
    /// The file system's time of birth; the image's where absent (`SOURCE_DATE_EPOCH`).
    pub created: Option<Timestamp>,
    /// Where the artifact goes; replaced where it exists.
    pub output: &'a Path,
    /// Whether to build twice and compare: the same inputs give the same bytes, a snapshot's memory aside.
    pub verify: bool,
    /// How set-up commands are run.
    pub setup: &'a SetupOptions,
    /// How to boot machines, or why none can be booted here.
    pub machines: Result<MachineOptions<'a>, String>,
    /// Whether to take a snapshot. Without it the artifact is a cold one.
    pub snapshot: bool,
}

impl<'a> Request<'a> {
    /// Finds what a build would stop at before it begins, and gives the output's folder.
    ///
    /// # Errors
    /// The Smolfile wants what this version cannot do, or there is no folder for the output.
    pub fn check(&self) -> Result<&'a Path, BuildError> {
        let unsupported = self.spec.unsupported();
        if !unsupported.is_empty() {
            return Err(BuildError::Unsupported(unsupported.join(", ")));
        }
        existing_folder(self.output)
    }

    /// Where the guest's kernel comes from.
    ///
    /// # Errors
    /// The one that the Smolfile refers to is not kept.
    pub fn kernel(&self) -> Result<KernelFrom, BuildError> {
        let choice = &self.spec.smolfile.kernel;
        if let Some(path) = &choice.path {
            return Ok(KernelFrom::File(self.context.join(path)));
        }
        let kept = match &choice.reference {
            Some(reference) => Some(self.kernels.find(reference)?),
            None => self.kernels.default_kernel()?,
        };
        Ok(kept.map_or(KernelFrom::Debian, |kernel| KernelFrom::Kept(Box::new(kernel))))
    }

    /// The time of what the build itself makes.
    fn time(&self, image: &Image) -> Timestamp {
        self.created.or(image.config.created).unwrap_or_default()
    }
}

/// Where a build takes the guest's kernel.
#[derive(Debug)]
pub enum KernelFrom {
    /// A file, imported first.
    File(PathBuf),
    /// The store.
    Kept(Box<Kernel>),
    /// Debian's cloud kernel, fetched first.
    Debian,
}

/// What was built.
#[derive(Debug)]
pub struct Built {
    /// The artifact's digest.
    pub digest: Digest,
    /// Length of the file, bytes.
    pub bytes: u64,
}

/// Builds an artifact.
///
/// # Errors
/// Says what failed, on what, and what to do; the output is then as it was.
pub fn build(request: &Request, progress: &mut dyn Progress) -> Result<Built, BuildError> {
    let folder = request.check()?;
    let kernel = kernel(request, progress)?;
    let digest = if !request.snapshot && !request.verify {
        let image = load(request, &kernel, request.setup.fresh, progress)?;
        space::check(folder, &image.tree, 1)?;
        cold::write(Writer::create(request.output)?, request, &kernel, &image, progress)?
    } else {
        let cold = cold_file(request, folder, &kernel, request.setup.fresh, progress)?;
        if request.verify {
            let again = cold_file(request, folder, &kernel, true, progress)?;
            same(&Artifact::from_file(cold.try_clone()?)?, &Artifact::from_file(again)?)?;
        }
        let snapshot = match &request.machines {
            _ if !request.snapshot => None,
            Ok(options) => Some(snapshot::take(options, &cold, unnamed(folder)?, progress)?),
            Err(why) => return Err(BuildError::NoMachine(why.clone())),
        };
        merge(request, &Artifact::from_file(cold)?, snapshot.as_ref(), progress)?
    };
    let bytes = std::fs::metadata(request.output)?.len();
    Ok(Built { digest, bytes })
}

/// The folder of the output: found missing before any work is done, not after.
fn existing_folder(output: &Path) -> Result<&Path, BuildError> {
    let folder = folder_of(output);
    if output.is_dir() || output.file_name().is_none() {
        return Err(BuildError::Output(output.to_owned(), "it is a folder; name a file"));
    }
    if folder.is_dir() {
        Ok(folder)
    } else {
        Err(BuildError::Output(folder.to_owned(), "there is no such folder"))
    }
}

/// A file that is gone when it is closed, on the disk where the artifact will be.
fn unnamed(folder: &Path) -> Result<File, BuildError> {
    tempfile::tempfile_in(folder).map_err(|e| BuildError::File(folder.to_owned(), e))
}

fn kernel(request: &Request, progress: &mut dyn Progress) -> Result<Kernel, BuildError> {
    match request.kernel()? {
        KernelFrom::File(path) => Ok(request.kernels.import(&path)?),
        KernelFrom::Kept(kernel) => Ok(*kernel),
        KernelFrom::Debian => {
            progress.note("no guest kernel yet: fetching Debian's cloud kernel through apt");
            Ok(request.kernels.fetch(progress)?)
        }
    }
}

/// The image, with what the Smolfile copies and its set-up commands change on top. `fresh` runs them all.
fn load(
    request: &Request,
    kernel: &Kernel,
    fresh: bool,
    progress: &mut dyn Progress,
) -> Result<Image, BuildError> {
    progress.phase("image", None);
    let mut image = image::load(request.source, request.images, progress)?;
    let copying = CopyOptions {
        context: request.context,
        time: request.time(&image),
        output: request.output,
        limits: request.images.limits,
    };
    let top = image.tree.top_layer();
    image::copy(&mut image, &request.spec.smolfile, &copying)?;
    setup::run(request, kernel, &mut image, top, fresh, progress)?;
    Ok(image)
}

/// The cold artifact in a file without a name.
fn cold_file(
    request: &Request,
    folder: &Path,
    kernel: &Kernel,
    fresh: bool,
    progress: &mut dyn Progress,
) -> Result<File, BuildError> {
    let file = unnamed(folder)?;
    let image = load(request, kernel, fresh, progress)?;
    // It is copied from there into the artifact itself.
    space::check(folder, &image.tree, 2)?;
    cold::write(Writer::to_file(file.try_clone()?)?, request, kernel, &image, progress)?;
    Ok(file)
}

/// Fails where two builds of the same inputs differ.
fn same(one: &Artifact, two: &Artifact) -> Result<(), BuildError> {
    if one.digest() == two.digest() {
        return Ok(());
    }
    Err(BuildError::NotReproducible(compare(one, two)?.lines()))
}

/// The cold artifact and its snapshot, where there is one, under their name.
fn merge(
    request: &Request,
    cold: &Artifact,
    snapshot: Option<&Artifact>,
    progress: &mut dyn Progress,
) -> Result<Digest, BuildError> {
    progress.phase("packing", None);
    let mut writer = Writer::create(request.output)?;
    for kind in [SectionKind::Kernel, SectionKind::Initrd, SectionKind::Disk] {
        writer.copy_section(cold, kind)?;
    }
    let mut manifest = cold.manifest().clone();
    if let Some(snapshot) = snapshot {
        for kind in [SectionKind::VmState, SectionKind::Memory, SectionKind::Overlay] {
            writer.copy_section(snapshot, kind)?;
        }
        let restore_timeout = request.spec.smolfile.snapshot.restore_timeout;
        manifest.snapshot = snapshot.manifest().snapshot.clone().map(|snapshot| manifest::Snapshot {
            restore_timeout_ms: restore_timeout.map(Delay::millis),
            ..snapshot
        });
    }
    Ok(writer.finish(manifest)?)
}
