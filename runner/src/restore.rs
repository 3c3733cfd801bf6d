//! Restoring a machine from an artifact's snapshot.

use crate::gate::{self, Misfit};
use crate::kvm::{Host, KvmError, Vcpu, Vm};
use crate::memory::{Memory, MemoryError};
use crate::timings::Timings;
use crate::vmstate::{self, MachineState, StateError};
use smolpack_format::{Artifact, FormatError, SectionKind};

/// A machine as it was when the snapshot was taken; none of its CPUs has run yet.
#[derive(Debug)]
pub struct Restored {
    /// Memory, interrupt controllers, timer, clock.
    pub vm: Vm,
    /// The CPUs.
    pub vcpus: Vec<Vcpu>,
    /// The devices' state, encoded; they come after KVM's own, or their interrupts would be lost.
    pub devices: Vec<u8>,
}

/// Why a snapshot could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is none.
    #[error("the artifact has no snapshot")]
    NoSnapshot,
    /// It is of another kind of host.
    #[error("the snapshot does not fit this host")]
    Misfit(#[from] Misfit),
    /// The state section is wrong.
    #[error(transparent)]
    State(#[from] StateError),
    /// The memory section is wrong, or cannot be mapped.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The memory section is not as long as the state says.
    #[error("section memory: {section} bytes, but section vmstate says {state}")]
    Length {
        /// Of the section.
        section: u64,
        /// In the state.
        state: u64,
    },
    /// The artifact cannot be read.
    #[error("cannot read the artifact")]
    Artifact(#[from] FormatError),
    /// KVM refuses the state.
    #[error(transparent)]
    Kvm(#[from] KvmError),
}

impl RestoreError {
    /// Whether the artifact may be fine and a cold boot is the right answer on this host.
    #[must_use]
    pub fn boots_cold(&self) -> bool {
        match self {
            Self::NoSnapshot | Self::Misfit(_) | Self::Kvm(KvmError::MsrRefused { .. }) => true,
            Self::State(error) => error.is_newer(),
            _ => false,
        }
    }
}

/// Rebuilds a machine; it comes back paused.
///
/// The host is compared with the snapshot's before anything is built. Memory slots go before the
/// interrupt controllers (ten times faster), CPUs before the clock, which must be right before any of
/// them runs.
///
/// # Errors
/// The snapshot does not fit this host, is malformed, or KVM refuses it.
pub fn restore(host: &Host, artifact: &Artifact, timings: &mut Timings) -> Result<Restored, RestoreError> {
    let state = read_state(artifact)?;
    gate::check(&state, host)?;
    timings.done("state and gate");
    let section = artifact.section(SectionKind::Memory)?.ok_or(RestoreError::NoSnapshot)?;
    if section.len() != state.origin.memory {
        return Err(RestoreError::Length { section: section.len(), state: state.origin.memory });
    }
    let memory = Memory::from_section(artifact, &section)?;
    timings.done("memory mapped");
    let vm = Vm::new(host, memory)?;
    timings.done("VM");
    let mut vcpus =
        (0..state.vcpus.len() as u32).map(|i| vm.create_vcpu(i)).collect::<Result<Vec<_>, _>>()?;
    gate::check_tsc(&state, vcpus[0].tsc_khz()?, host)?;
    for (vcpu, saved) in vcpus.iter_mut().zip(&state.vcpus) {
        vcpu.restore(saved, host)?;
    }
    vm.restore(&state.vm)?;
    timings.done("CPUs and clock");
    Ok(Restored { vm, vcpus, devices: state.devices })
}

fn read_state(artifact: &Artifact) -> Result<MachineState, RestoreError> {
    let section = artifact.section(SectionKind::VmState)?.ok_or(RestoreError::NoSnapshot)?;
    if section.len() > vmstate::MAX_BYTES {
        return Err(StateError::TooLong(section.len()).into());
    }
    let mut bytes = vec![0; section.len() as usize];
    section.read_at(&mut bytes, 0)?;
    Ok(MachineState::decode(&bytes)?)
}
