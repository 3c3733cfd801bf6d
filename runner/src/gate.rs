//! Whether a snapshot fits this host, asked before any guest state is touched.
//!
//! A guest restored onto a processor that lacks what it saw fails later, at a random instruction. So
//! everything that could differ is compared first, and a machine that does not fit boots cold instead.

use crate::kvm::{Backend, Host, VcpuState, cpuid, msr};
use crate::vmstate::{DEVICE_MODEL, MachineState};

/// The first difference that matters. Each text reads on after "The snapshot does not fit this host: ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Another vendor's processor.
    #[error("it was taken on a processor of {saved}, this one is of {host}")]
    Vendor {
        /// Where the snapshot was taken.
        saved: String,
        /// Here.
        host: String,
    },
    /// Another kind of virtualisation.
    #[error("it was taken under {saved}, here is {host}")]
    Backend {
        /// Where the snapshot was taken.
        saved: Backend,
        /// Here.
        host: Backend,
    },
    /// Other devices.
    #[error("it has devices of model {0}, this runner's are of model {DEVICE_MODEL}")]
    DeviceModel(u32),
    /// A processor feature is missing.
    #[error("the guest was given {0}, which this processor does not have")]
    Cpuid(String),
    /// The extended state would be cut off.
    #[error("its XSAVE area has {saved} bytes, this host's only {host}")]
    Xsave {
        /// Bytes in use.
        saved: usize,
        /// Bytes here.
        host: usize,
    },
    /// A model-specific register KVM does not have here.
    #[error("it holds model-specific register {0:#x}, which this host's KVM does not have")]
    Msr(u32),
    /// Time would run at another speed.
    #[error("its time stamp counter runs at {saved} kHz, here at {host} kHz, which cannot be scaled")]
    Tsc {
        /// Where the snapshot was taken.
        saved: u32,
        /// Here.
        host: u32,
    },
}

/// Compares all but the frequency of the TSC.
///
/// # Errors
/// The first thing that does not fit.
pub fn check(state: &MachineState, host: &Host) -> Result<(), Misfit> {
    let origin = &state.origin;
    if origin.device_model != DEVICE_MODEL {
        return Err(Misfit::DeviceModel(origin.device_model));
    }
    let vendor = host.vendor();
    if origin.vendor != vendor {
        return Err(Misfit::Vendor { saved: origin.vendor.clone(), host: vendor });
    }
    if origin.backend != host.backend {
        return Err(Misfit::Backend { saved: origin.backend, host: host.backend });
    }
    state.vcpus.iter().try_for_each(|vcpu| check_vcpu(vcpu, host))
}

fn check_vcpu(vcpu: &VcpuState, host: &Host) -> Result<(), Misfit> {
    if let Some(missing) = cpuid::missing(&vcpu.cpuid, host) {
        return Err(Misfit::Cpuid(missing));
    }
    if vcpu.xsave.len() > host.xsave_bytes {
        return Err(Misfit::Xsave { saved: vcpu.xsave.len(), host: host.xsave_bytes });
    }
    match vcpu.msrs.iter().find(|m| !msr::restorable(**m, &host.msrs)) {
        Some(msr) => Err(Misfit::Msr(msr.index)),
        None => Ok(()),
    }
}

/// Compares the frequency of the TSC with that of a new CPU here.
///
/// A guest on KVM's clock keeps the right time at any frequency.
///
/// # Errors
/// It is too far off, cannot be scaled, and the guest depends on it.
pub fn check_tsc(state: &MachineState, host_khz: u32, host: &Host) -> Result<(), Misfit> {
    let fits = |vcpu: &VcpuState| vcpu.tsc_fits(host_khz) || vcpu.uses_kvm_clock() || host.tsc_scaling;
    match state.vcpus.iter().find(|vcpu| !fits(vcpu)) {
        Some(vcpu) => Err(Misfit::Tsc { saved: vcpu.tsc_khz, host: host_khz }),
        None => Ok(()),
    }
}
