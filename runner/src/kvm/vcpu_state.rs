//! What a snapshot keeps of one CPU, and the order it is read and written in.

use super::host::Host;
use super::msr::{self, Msr};
use super::{KvmError, Named, xsave};
use kvm_bindings::{
    kvm_cpuid_entry2, kvm_debugregs, kvm_lapic_state, kvm_mp_state, kvm_regs, kvm_sregs, kvm_vcpu_events,
    kvm_xcrs,
};
use kvm_ioctls::VcpuFd;
use serde::{Deserialize, Serialize};

/// How far the TSC's frequency may be off, in parts per million, before time would drift visibly.
const TSC_TOLERANCE_PPM: u64 = 250;

/// The state of a CPU between two instructions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VcpuState {
    /// What the guest was told its processor can do.
    pub cpuid: Vec<kvm_cpuid_entry2>,
    /// Frequency of its time stamp counter in kHz.
    pub tsc_khz: u32,
    /// The XSAVE area.
    pub xsave: Vec<u8>,
    /// Extended control registers.
    pub xcrs: kvm_xcrs,
    /// Model-specific registers.
    pub msrs: Vec<Msr>,
    /// Running, halted, or waiting to be started.
    pub mp_state: kvm_mp_state,
    /// General registers.
    pub regs: kvm_regs,
    /// Segments, control registers, local APIC base.
    pub sregs: kvm_sregs,
    /// Debug registers.
    pub debugregs: kvm_debugregs,
    /// The local APIC.
    pub lapic: kvm_lapic_state,
    /// Exceptions and interrupts under way.
    pub events: kvm_vcpu_events,
}

impl VcpuState {
    /// Reads the state of a CPU that is paused between instructions; `cpuid` is what it was given.
    /// (`KVM_GET_CPUID2` is no substitute: without hardware virtualisation it reports the host's.)
    ///
    /// `KVM_GET_MP_STATE` comes first, because it makes KVM deliver pending start-up interrupts, and
    /// `KVM_GET_VCPU_EVENTS` last, because the other calls can change what it reports.
    pub(super) fn save(vcpu: &VcpuFd, cpuid: Vec<kvm_cpuid_entry2>, host: &Host) -> Result<Self, KvmError> {
        let mp_state = vcpu.get_mp_state().named("KVM_GET_MP_STATE")?;
        let regs = vcpu.get_regs().named("KVM_GET_REGS")?;
        let sregs = vcpu.get_sregs().named("KVM_GET_SREGS")?;
        let xsave = xsave::read(vcpu, host.xsave_bytes)?;
        let xcrs = vcpu.get_xcrs().named("KVM_GET_XCRS")?;
        let debugregs = vcpu.get_debug_regs().named("KVM_GET_DEBUGREGS")?;
        let lapic = vcpu.get_lapic().named("KVM_GET_LAPIC")?;
        let tsc_khz = vcpu.get_tsc_khz().named("KVM_GET_TSC_KHZ")?;
        let msrs = msr::read(vcpu, msr::saved(&host.msrs))?;
        let events = vcpu.get_vcpu_events().named("KVM_GET_VCPU_EVENTS")?;
        Ok(Self { cpuid, tsc_khz, xsave, xcrs, msrs, mp_state, regs, sregs, debugregs, lapic, events })
    }

    /// Writes the state into a new CPU, which has been given its CPUID: that decides what the other calls
    /// accept.
    ///
    /// The local APIC comes after the
    /// special registers, which hold its base and mode; the MSRs after it, since the deadline timer
    /// needs its mode. `KVM_KVMCLOCK_CTRL` tells the guest that it was paused, or its soft-lockup
    /// watchdog takes the time spent on a disk for a hang.
    pub(super) fn restore(&self, vcpu: &VcpuFd, host: &Host) -> Result<(), KvmError> {
        vcpu.set_mp_state(self.mp_state).named("KVM_SET_MP_STATE")?;
        vcpu.set_regs(&self.regs).named("KVM_SET_REGS")?;
        vcpu.set_sregs(&self.sregs).named("KVM_SET_SREGS")?;
        xsave::write(vcpu, &self.xsave, host.xsave_bytes)?;
        vcpu.set_xcrs(&self.xcrs).named("KVM_SET_XCRS")?;
        vcpu.set_debug_regs(&self.debugregs).named("KVM_SET_DEBUGREGS")?;
        vcpu.set_lapic(&self.lapic).named("KVM_SET_LAPIC")?;
        msr::write(vcpu, &msr::in_restore_order(&self.msrs))?;
        vcpu.set_vcpu_events(&self.events).named("KVM_SET_VCPU_EVENTS")?;
        match vcpu.kvmclock_ctrl() {
            // The guest does not use KVM's clock, so there is nobody to tell.
            Err(e) if e.errno() == libc::EINVAL => Ok(()),
            done => done.named("KVM_KVMCLOCK_CTRL"),
        }
    }

    /// Whether this CPU's clock runs at `host_khz` closely enough to need no scaling.
    #[must_use]
    pub fn tsc_fits(&self, host_khz: u32) -> bool {
        let apart = u64::from(self.tsc_khz.abs_diff(host_khz));
        apart * 1_000_000 <= u64::from(self.tsc_khz) * TSC_TOLERANCE_PPM
    }

    /// Whether the guest takes its time from KVM's clock, which follows the host at any frequency.
    #[must_use]
    pub fn uses_kvm_clock(&self) -> bool {
        self.msrs.iter().any(|m| m.index == msr::KVM_SYSTEM_TIME_NEW && m.value & 1 != 0)
    }

    /// Asks for the saved frequency only where it matters: the call is not free, and refused by hosts
    /// that cannot scale.
    pub(super) fn set_tsc_frequency(&self, vcpu: &VcpuFd) -> Result<(), KvmError> {
        let host_khz = vcpu.get_tsc_khz().named("KVM_GET_TSC_KHZ")?;
        if self.tsc_fits(host_khz) || self.uses_kvm_clock() {
            return Ok(());
        }
        vcpu.set_tsc_khz(self.tsc_khz).named("KVM_SET_TSC_KHZ")
    }
}
