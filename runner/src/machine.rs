//! A whole machine: KVM's part and the devices, from an artifact.
//!
//! [`launch`] restores or boots cold. What it gives is paused; [`Machine::run`] starts the CPUs, and a
//! machine is saved by pausing it again.

use crate::boot::{BootError, Cold, boot_cold};
use crate::bus::Bus;
use crate::chain::chain;
use crate::control::{Launch, OnFull, Start};
use crate::devices::{Backing, DeviceConfig, DeviceError, DeviceSet, DiskConfig, WINDOWS, random};
use crate::kvm::{Host, KvmError, Stop, Vcpu, Vm};
use crate::layout;
use crate::memory::Memory;
use crate::restore::{RestoreError, read_state, restore};
use crate::snapshot::{self, SnapshotError};
use crate::timings::Timings;
use crate::vcpus::Running;
use crate::vmstate;
use kvm_ioctls::IoEventAddress;
use smolpack_format::{Artifact, FormatError, SectionKind, printable};
use std::fs::File;
use std::io;
use std::sync::Arc;

/// A machine whose CPUs do not run.
#[derive(Debug)]
pub struct Machine {
    vcpus: Vec<Vcpu>,
    devices: Devices,
    vm: Vm,
}

/// A machine whose CPUs run.
#[derive(Debug)]
pub struct Live {
    /// The CPUs; dropped first, so that nothing touches devices and memory afterwards.
    cpus: Running,
    devices: Devices,
    vm: Vm,
}

/// The devices, shared with the CPUs' threads, and the memory they work on.
struct Devices {
    set: Arc<DeviceSet>,
    _memory: Memory,
}

impl Devices {
    fn new(set: DeviceSet, vm: &Vm) -> Self {
        Self { set: Arc::new(set), _memory: vm.memory().clone() }
    }
}

impl std::fmt::Debug for Devices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Devices")
    }
}

/// A machine, and how it came up.
#[derive(Debug)]
pub struct Launched {
    /// The machine, paused.
    pub machine: Machine,
    /// Whether it was restored.
    pub restored: bool,
    /// Why not, where a restore was wanted but a cold boot would do.
    pub cold_reason: Option<String>,
}

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// It could not be booted.
    #[error("cannot boot")]
    Boot(#[from] BootError),
    /// It could not be restored.
    #[error("cannot restore")]
    Restore(#[from] RestoreError),
    /// Its devices could not be made.
    #[error("cannot make the devices")]
    Devices(#[from] DeviceError),
    /// The artifact cannot be read.
    #[error("cannot read the artifact")]
    Artifact(#[from] FormatError),
    /// The artifact has no disk.
    #[error("the artifact has no section disk")]
    NoDisk,
    /// KVM refuses something.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// The host refuses something.
    #[error("cannot {doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The host's reason.
        source: io::Error,
    },
}

impl LaunchError {
    /// What the user can do about it, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Kvm(error) | Self::Boot(BootError::Kvm(error)) => error.hint(),
            Self::Restore(RestoreError::NoSnapshot) => {
                Some("build it on a host with KVM to get a snapshot, or let it boot cold")
            }
            Self::Restore(error) if error.boots_cold() => {
                Some("let it boot cold, or build it again on this host")
            }
            Self::Restore(_) => {
                Some("get the file anew or build it again; --cold boots it without its snapshot")
            }
            _ => None,
        }
    }
}

/// What a machine is made of, apart from the request.
#[derive(Debug)]
pub struct Sources<'a> {
    /// This host.
    pub host: &'a Host,
    /// The file that holds kernel, disk and snapshot.
    pub artifact: &'a Artifact,
    /// Takes the console's output.
    pub console: &'a File,
}

/// Builds the machine the request asks for: restored where it may be and can be, else cold.
///
/// # Errors
/// There is no machine, and why.
pub fn launch(from: &Sources<'_>, request: &Launch, timings: &mut Timings) -> Result<Launched, LaunchError> {
    if request.start == Start::Cold {
        let machine = launch_cold(from, request, timings)?;
        return Ok(Launched { machine, restored: false, cold_reason: None });
    }
    match launch_restored(from, request, timings) {
        Ok(machine) => Ok(Launched { machine, restored: true, cold_reason: None }),
        Err(LaunchError::Restore(reason)) if request.start == Start::Any && reason.boots_cold() => {
            let machine = launch_cold(from, request, timings)?;
            Ok(Launched { machine, restored: false, cold_reason: Some(sentence(&reason)) })
        }
        Err(error) => Err(error),
    }
}

fn sentence(error: &RestoreError) -> String {
    let text = printable(&chain(error));
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

fn launch_cold(from: &Sources<'_>, request: &Launch, timings: &mut Timings) -> Result<Machine, LaunchError> {
    let windows: Vec<_> = (0..WINDOWS as u32)
        .map(|i| {
            let base = layout::VIRTIO_MMIO + u64::from(i) * layout::VIRTIO_MMIO_STRIDE;
            (base, layout::VIRTIO_MMIO_GSI + i)
        })
        .collect();
    let cold = Cold {
        cpus: request.cpus,
        memory: request.memory_mib.saturating_mul(1 << 20),
        cpu: from.artifact.manifest().cpu,
        cmdline: &request.cmdline,
        windows: &windows,
    };
    let (vm, vcpus) = boot_cold(from.host, from.artifact, &cold)?;
    timings.done("kernel and CPUs");
    let config = device_config(from, request, false)?;
    let devices = DeviceSet::new(vm.memory().guest(), config)?;
    wire(&vm, &devices)?;
    timings.done("devices");
    Ok(Machine { vcpus, devices: Devices::new(devices, &vm), vm })
}

/// The devices come after KVM's own state, or the interrupts they raise would be overwritten.
fn launch_restored(
    from: &Sources<'_>,
    request: &Launch,
    timings: &mut Timings,
) -> Result<Machine, LaunchError> {
    let state = read_state(from.host, from.artifact)?;
    let saved = vmstate::from_bytes("devices", &state.devices).map_err(RestoreError::from)?;
    timings.done("state and gate");
    let restored = restore(from.host, from.artifact, &state, timings)?;
    let config = device_config(from, request, true)?;
    let devices = DeviceSet::restore(restored.vm.memory().guest(), config, &saved)?;
    wire(&restored.vm, &devices)?;
    devices.resume();
    timings.done("devices");
    let devices = Devices::new(devices, &restored.vm);
    Ok(Machine { vcpus: restored.vcpus, devices, vm: restored.vm })
}

fn device_config(from: &Sources<'_>, request: &Launch, restored: bool) -> Result<DeviceConfig, LaunchError> {
    let backing = |kind| -> Result<Option<Backing>, LaunchError> {
        let section = from.artifact.section(kind)?;
        Ok(section.map(|section| Backing::new(Arc::clone(from.artifact.file()), section)))
    };
    let disk = DiskConfig {
        base: backing(SectionKind::Disk)?.ok_or(LaunchError::NoDisk)?,
        overlay: if restored { backing(SectionKind::Overlay)? } else { None },
        scratch: scratch()?,
        scratch_folder: std::env::temp_dir(),
        wait_for_room: request.on_full == OnFull::Wait,
        bytes: request.disk_bytes,
        durable: false,
    };
    let console = from.console.try_clone();
    let console = console.map_err(|source| LaunchError::Io { doing: "share the console log", source })?;
    let mut generation = [0; 16];
    random(&mut generation)?;
    Ok(DeviceConfig { disk, console, generation })
}

/// A nameless file for what the machine writes to its disk; it is gone with this process.
fn scratch() -> Result<File, LaunchError> {
    use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, memfd_create, openat};
    let folder = std::env::temp_dir();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    openat(CWD, &folder, flags, Mode::RUSR | Mode::WUSR)
        // Not every file system has nameless files.
        .or_else(|_| memfd_create("smolpack-disk", MemfdFlags::CLOEXEC))
        .map(File::from)
        .map_err(|e| LaunchError::Io { doing: "make a file for what the machine writes", source: e.into() })
}

/// Lets KVM raise the devices' interrupts and tell them of the guest's notifications by itself.
fn wire(vm: &Vm, devices: &DeviceSet) -> Result<(), KvmError> {
    for wiring in devices.wiring() {
        vm.register_interrupt(wiring.interrupt, wiring.gsi)?;
        for (queue, kick) in (0..).zip(wiring.kicks) {
            vm.register_notification(kick, &IoEventAddress::Mmio(wiring.notify), queue)?;
        }
    }
    Ok(())
}

impl Machine {
    /// Starts the CPUs.
    ///
    /// # Errors
    /// The host gives no threads.
    pub fn run(self) -> Result<Live, LaunchError> {
        let bus: Arc<dyn Bus> = self.devices.set.clone();
        let cpus = Running::start(self.vcpus, &bus);
        let cpus = cpus.map_err(|source| LaunchError::Io { doing: "start a CPU's thread", source })?;
        Ok(Live { cpus, devices: self.devices, vm: self.vm })
    }

    /// Writes a snapshot of the machine, a container of kind `checkpoint` whose parent is `artifact`,
    /// into an empty file.
    ///
    /// # Errors
    /// The state cannot be read or the file not written.
    pub fn snapshot(&self, host: &Host, artifact: &Artifact, file: File) -> Result<(), SnapshotError> {
        let devices = vmstate::to_bytes(&self.devices.set.save());
        let state = snapshot::capture(host, &self.vm, &self.vcpus, devices)?;
        // SAFETY: the CPUs do not run, `save` has completed what the devices had in flight, and the only
        // thread that works them is this one.
        unsafe { snapshot::write(file, &state, self.vm.memory(), &self.devices.set.disk(), artifact) }
    }
}

impl Live {
    /// The CPUs: readable when one stopped by itself.
    #[must_use]
    pub fn cpus(&self) -> &Running {
        &self.cpus
    }

    /// The devices: their descriptor is to be waited for, their events to be handled.
    #[must_use]
    pub fn devices(&self) -> &DeviceSet {
        &self.devices.set
    }

    /// Stops the CPUs between instructions.
    ///
    /// # Errors
    /// The machine is over.
    pub fn pause(self) -> Result<Machine, Stop> {
        let vcpus = self.cpus.pause()?;
        Ok(Machine { vcpus, devices: self.devices, vm: self.vm })
    }

    /// Stops the CPUs and writes out what they have left on the console.
    ///
    /// # Errors
    /// Some of the console's output was lost, now or before.
    pub fn finish(self) -> io::Result<()> {
        // They may have stopped by themselves.
        let _ = self.cpus.pause();
        self.devices.set.close_console()
    }
}
