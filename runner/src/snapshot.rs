//! Writing a snapshot: a container of kind `checkpoint` with the state and memory of a paused machine.

use crate::devices::Disk;
use crate::kvm::{Host, KvmError, Vcpu, Vm};
use crate::memory::{Memory, MemoryError, Run};
use crate::vmstate::{MachineState, Origin};
use smolpack_format::manifest::{self, Kind};
use smolpack_format::{Artifact, FormatError, Manifest, SectionKind, SectionOptions, Writer};
use std::fs::File;
use std::io;

/// Bytes of the disk read at a time.
const DISK_BUFFER: usize = 1 << 20;

/// Why a snapshot could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// KVM does not give the state away.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// Memory cannot be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The disk's changed blocks cannot be read.
    #[error("cannot read the disk's changed blocks")]
    Disk(#[source] io::Error),
    /// The file cannot be written.
    #[error("cannot write the snapshot")]
    Write(#[from] FormatError),
}

/// Reads the state of a paused machine; `devices` is theirs, encoded.
///
/// # Errors
/// KVM refuses one of the calls.
pub fn capture(host: &Host, vm: &Vm, vcpus: &[Vcpu], devices: Vec<u8>) -> Result<MachineState, KvmError> {
    // The CPUs come first: reading them can still move interrupts into the controllers.
    let vcpus = vcpus.iter().map(|vcpu| vcpu.save(host)).collect::<Result<_, _>>()?;
    Ok(MachineState { origin: Origin::here(host, vm), vm: vm.save()?, vcpus, devices })
}

/// Writes a whole container into an empty file: state, memory, and the disk's changed blocks.
///
/// # Safety
/// Nothing may write to guest memory meanwhile: CPUs are paused, devices have nothing in flight.
///
/// # Errors
/// Memory or disk cannot be read; the file cannot be written.
pub unsafe fn write(
    file: File,
    state: &MachineState,
    memory: &Memory,
    disk: &Disk,
    parent: &Artifact,
) -> Result<(), SnapshotError> {
    let mut writer = Writer::to_file(file)?;
    // SAFETY: nobody writes to guest memory, says the caller.
    unsafe { write_sections(&mut writer, state, memory) }?;
    write_overlay(&mut writer, disk)?;
    let cpus = state.vcpus.len() as u32;
    let mut manifest = Manifest::new(Kind::Checkpoint, cpus, memory.len() >> 20, disk.bytes());
    manifest.parent = Some(parent.digest());
    manifest.cpu = parent.manifest().cpu;
    manifest.snapshot = Some(manifest::Snapshot {
        cpu_vendor: state.origin.vendor.clone(),
        backend: state.origin.backend.name().into(),
        device_model: state.origin.device_model,
        start: manifest::SnapshotStart::default(),
        restore_timeout_ms: parent.manifest().snapshot.as_ref().and_then(|parent| parent.restore_timeout_ms),
    });
    writer.finish(manifest)?;
    Ok(())
}

/// Writes the sections `vmstate` and `memory`.
///
/// # Safety
/// Nothing may write to guest memory meanwhile: CPUs are paused, devices have nothing in flight.
///
/// # Errors
/// Memory cannot be read; the file cannot be written.
pub unsafe fn write_sections(
    writer: &mut Writer,
    state: &MachineState,
    memory: &Memory,
) -> Result<(), SnapshotError> {
    let mut section = writer.section(SectionKind::VmState, SectionOptions::blob())?;
    section.data(&state.encode())?;
    section.finish()?;

    let mut section = writer.section(SectionKind::Memory, SectionOptions::memory())?;
    // SAFETY: nobody writes to guest memory, says the caller.
    let mut scan = unsafe { memory.scan() }?;
    while let Some(run) = scan.next_run().map_err(MemoryError::Pagemap)? {
        match run {
            Run::Zeros(len) => section.zeros(len)?,
            Run::Data(bytes) => section.data(bytes)?,
        }
    }
    Ok(section.finish()?)
}

/// Writes the section `overlay`: changed blocks of the disk, all others "as in the disk".
fn write_overlay(writer: &mut Writer, disk: &Disk) -> Result<(), SnapshotError> {
    let mut section = writer.section(SectionKind::Overlay, SectionOptions::disk())?;
    let mut buffer = vec![0; DISK_BUFFER];
    let mut at = 0;
    for changed in disk.changed() {
        section.parent(changed.start - at)?;
        at = changed.start;
        while at < changed.end {
            let len = (changed.end - at).min(DISK_BUFFER as u64);
            let piece = &mut buffer[..len as usize];
            disk.read_at(piece, at).map_err(SnapshotError::Disk)?;
            section.data(piece)?;
            at += len;
        }
    }
    section.parent(disk.bytes() - at)?;
    Ok(section.finish()?)
}
