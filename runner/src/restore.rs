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
    /// The state is not that of the machine that the manifest describes.
    #[error("section vmstate: {state} {what}, but the manifest says {manifest}")]
    Contradiction {
        /// What differs.
        what: &'static str,
        /// In the state.
        state: u64,
        /// In the manifest.
        manifest: u64,
    },
    /// The artifact cannot be read.
    #[error("cannot read the artifact")]
    Artifact(#[from] FormatError),
    /// KVM refuses the state, or gives no machine for it.
    #[error(transparent)]
    Kvm(#[from] KvmError),
}

impl RestoreError {
    /// Whether the artifact may be fine and a cold boot is the right answer on this host. What one KVM takes
    /// another may refuse.
    #[must_use]
    pub fn boots_cold(&self) -> bool {
        match self {
            Self::NoSnapshot | Self::Misfit(_) | Self::Kvm(_) => true,
            Self::State(error) => error.is_newer(),
            _ => false,
        }
    }
}

/// Reads the state of the machine in the artifact, and compares it with the manifest and with this host.
///
/// # Errors
/// There is none, it is malformed, contradicts the manifest, or does not fit this host.
pub fn read_state(host: &Host, artifact: &Artifact) -> Result<MachineState, RestoreError> {
    let section = artifact.section(SectionKind::VmState)?.ok_or(RestoreError::NoSnapshot)?;
    if section.len() > vmstate::MAX_BYTES {
        return Err(StateError::TooLong(section.len()).into());
    }
    let mut bytes = vec![0; section.len() as usize];
    section.read_verified(&mut bytes, 0)?;
    let state = MachineState::decode(&bytes)?;
    let manifest = artifact.manifest();
    for (what, state, manifest) in [
        ("virtual CPUs", state.vcpus.len() as u64, u64::from(manifest.cpus)),
        ("bytes of memory", state.origin.memory, manifest.memory_mib.saturating_mul(1 << 20)),
    ] {
        if state != manifest {
            return Err(RestoreError::Contradiction { what, state, manifest });
        }
    }
    gate::check(&state, host)?;
    Ok(state)
}

/// Rebuilds a machine whose state was [read](read_state); it comes back paused.
///
/// Memory slots go before the interrupt controllers (ten times faster), CPUs before the clock, which must be
/// right before any of them runs.
///
/// # Errors
/// Memory cannot be mapped, or KVM refuses the state.
pub fn restore(
    host: &Host,
    artifact: &Artifact,
    state: &MachineState,
    timings: &mut Timings,
) -> Result<Restored, RestoreError> {
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
    gate::check_tsc(state, vcpus[0].tsc_khz()?, host)?;
    for (vcpu, saved) in vcpus.iter_mut().zip(&state.vcpus) {
        vcpu.restore(saved, host)?;
    }
    vm.restore(&state.vm)?;
    timings.done("CPUs and clock");
    Ok(Restored { vm, vcpus })
}
