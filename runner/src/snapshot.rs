//! Writing a snapshot: a container of kind `checkpoint` with the state and memory of a paused machine.

use crate::kvm::{Host, KvmError, Vcpu, Vm};
use crate::memory::{Memory, MemoryError, Run};
use crate::vmstate::{MachineState, Origin};
use smolpack_format::{FormatError, SectionKind, SectionOptions, Writer};

/// Why a snapshot could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// KVM does not give the state away.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// Memory cannot be read.
    #[error(transparent)]
    Memory(#[from] MemoryError),
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
