//! Model-specific registers: which a snapshot keeps, and in which order they come back.
//!
//! Kept is what KVM lists as guest state, but for registers of features the guest is never given
//! (performance counters, nested virtualisation, Hyper-V). All of KVM's own paravirtual range is
//! kept: without it a restored guest loses its clock or its wake-ups.

use super::{KvmError, Named};
use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::VcpuFd;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Time stamp counter.
pub const TSC: u32 = 0x10;
/// `IA32_TSC_DEADLINE`: when the local APIC's timer fires.
pub const TSC_DEADLINE: u32 = 0x6e0;
/// `MSR_KVM_SYSTEM_TIME_NEW`: where the guest's kvm-clock page is; bit 0 says it is in use.
pub const KVM_SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
/// `IA32_MISC_ENABLE`.
pub const MISC_ENABLE: u32 = 0x1a0;
/// `IA32_MTRRdefType`: default memory type and whether the range registers count.
pub const MTRR_DEF_TYPE: u32 = 0x2ff;

/// Kept although not every kernel lists them: the memory type ranges.
const UNLISTED: &[RangeInclusive<u32>] =
    &[0x200..=0x20f, 0x250..=0x250, 0x258..=0x259, 0x268..=0x26f, MTRR_DEF_TYPE..=MTRR_DEF_TYPE];

/// Of features no guest is given; their registers hold nothing, and not every host takes them back.
const NOT_SAVED: &[RangeInclusive<u32>] = &[
    0x8b..=0x8b,               // microcode revision
    0xc1..=0xc8,               // performance counters
    0x186..=0x18d,             // performance event selectors
    0x309..=0x30b,             // fixed performance counters
    0x345..=0x345,             // performance capabilities
    0x38d..=0x390,             // performance control
    0x3f1..=0x3f2,             // precise event sampling
    0x480..=0x493,             // VMX capabilities
    0x4c1..=0x4c8,             // performance counters, full width
    0x560..=0x587,             // processor trace
    0x600..=0x600,             // debug store
    0x1c8..=0x1c8,             // last branch records
    0x14ce..=0x14cf,           // last branch records
    0x4000_0000..=0x4000_01ff, // Hyper-V
    0xc000_0300..=0xc000_0303, // AMD performance control
    0xc001_0000..=0xc001_0007, // AMD performance counters, legacy
    0xc001_0114..=0xc001_0117, // SVM
    0xc001_0200..=0xc001_020b, // AMD performance counters
];

/// Registers some hosts refuse although they list them; their loss does not change what a guest does.
const MAY_BE_REFUSED: &[u32] = &[
    0x3b, // IA32_TSC_ADJUST: bookkeeping of the guest's own TSC writes
    MISC_ENABLE,
    0xc001_0015, // HWCR: AMD hardware configuration
    0xc001_1029, // DE_CFG: AMD decode configuration
];

/// One register and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Msr {
    /// Number of the register.
    pub index: u32,
    /// What it holds.
    pub value: u64,
}

impl From<Msr> for kvm_msr_entry {
    fn from(msr: Msr) -> Self {
        Self { index: msr.index, data: msr.value, ..Self::default() }
    }
}

/// Which registers are kept, where KVM lists `listed`.
pub fn saved(listed: &[u32]) -> impl Iterator<Item = u32> + '_ {
    let unlisted = UNLISTED.iter().cloned().flatten().filter(|index| !listed.contains(index));
    let listed = listed.iter().copied().filter(|index| !within(NOT_SAVED, *index));
    listed.chain(unlisted)
}

fn within(ranges: &[RangeInclusive<u32>], index: u32) -> bool {
    ranges.iter().any(|range| range.contains(&index))
}

/// Whether a host whose KVM lists `listed` can take this register back.
///
/// One that holds 0 need not exist: a new vCPU behaves as if it did.
#[must_use]
pub fn restorable(msr: Msr, listed: &[u32]) -> bool {
    msr.value == 0
        || listed.binary_search(&msr.index).is_ok()
        || within(UNLISTED, msr.index)
        || MAY_BE_REFUSED.contains(&msr.index)
}

/// Reads registers; those KVM lists but cannot read are left out.
///
/// # Errors
/// KVM refuses altogether.
pub fn read(vcpu: &VcpuFd, indices: impl Iterator<Item = u32>) -> Result<Vec<Msr>, KvmError> {
    let wanted: Vec<u32> = indices.collect();
    let mut found = Vec::with_capacity(wanted.len());
    let mut rest = &wanted[..];
    while !rest.is_empty() {
        let batch = &rest[..rest.len().min(kvm_bindings::KVM_MAX_MSR_ENTRIES)];
        let entries: Vec<_> = batch.iter().map(|&index| Msr { index, value: 0 }.into()).collect();
        let mut msrs = Msrs::from_entries(&entries).map_err(|_| KvmError::TooMany("KVM_GET_MSRS"))?;
        let count = vcpu.get_msrs(&mut msrs).named("KVM_GET_MSRS")?;
        found.extend(msrs.as_slice()[..count].iter().map(|m| Msr { index: m.index, value: m.data }));
        // KVM stops at the first it cannot read.
        let skip = if count < batch.len() { count + 1 } else { count };
        rest = &rest[skip..];
    }
    Ok(found)
}

/// Puts the registers into the order they must be written in, and mends the timer.
///
/// The TSC comes before `IA32_TSC_DEADLINE`, which KVM compares with it: the other way round, a
/// deadline lies far in the past or the future, and sleeping processes never wake. A deadline of 0
/// becomes the TSC itself: the timer had just fired, and a guest that waits for it gets it once more.
#[must_use]
pub fn in_restore_order(saved: &[Msr]) -> Vec<Msr> {
    let tsc = saved.iter().find(|m| m.index == TSC).map_or(0, |m| m.value);
    let mut ordered = saved.to_vec();
    for msr in ordered.iter_mut().filter(|m| m.index == TSC_DEADLINE && m.value == 0) {
        msr.value = tsc;
    }
    ordered.sort_by_key(|m| match m.index {
        TSC => 0,
        TSC_DEADLINE => 2,
        _ => 1,
    });
    ordered
}

/// Writes registers, in the order given.
///
/// # Errors
/// A register KVM does not take, but for a short list of harmless ones and those that hold 0.
pub fn write(vcpu: &VcpuFd, msrs: &[Msr]) -> Result<(), KvmError> {
    let mut rest = msrs;
    while !rest.is_empty() {
        let batch = &rest[..rest.len().min(kvm_bindings::KVM_MAX_MSR_ENTRIES)];
        let entries: Vec<_> = batch.iter().map(|&msr| msr.into()).collect();
        let msrs = Msrs::from_entries(&entries).map_err(|_| KvmError::TooMany("KVM_SET_MSRS"))?;
        let count = vcpu.set_msrs(&msrs).named("KVM_SET_MSRS")?;
        let mut done = count;
        if let Some(refused) = batch.get(count) {
            if refused.value != 0 && !MAY_BE_REFUSED.contains(&refused.index) {
                return Err(KvmError::MsrRefused { index: refused.index, value: refused.value });
            }
            done += 1;
        }
        rest = &rest[done..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tsc_is_written_before_its_deadline() {
        let saved = [
            Msr { index: TSC_DEADLINE, value: 900 },
            Msr { index: 0x174, value: 1 },
            Msr { index: TSC, value: 500 },
        ];
        let order: Vec<u32> = in_restore_order(&saved).iter().map(|m| m.index).collect();
        assert_eq!(order, [TSC, 0x174, TSC_DEADLINE]);
    }

    #[test]
    fn a_deadline_of_zero_becomes_the_tsc() {
        let saved = [Msr { index: TSC_DEADLINE, value: 0 }, Msr { index: TSC, value: 500 }];
        assert_eq!(in_restore_order(&saved)[1], Msr { index: TSC_DEADLINE, value: 500 });
    }

    #[test]
    fn the_whole_paravirtual_range_is_saved_and_counters_are_not() {
        let listed: Vec<u32> = (0x4b56_4d00..=0x4b56_4dff).chain([0xc1, 0x480, 0x4000_0000, TSC]).collect();
        let kept: Vec<u32> = saved(&listed).collect();
        assert!(kept.contains(&TSC) && kept.contains(&MTRR_DEF_TYPE));
        assert_eq!(kept.iter().filter(|index| **index >> 8 == 0x4b_564d).count(), 256);
        assert!(!kept.iter().any(|index| [0xc1, 0x480, 0x4000_0000].contains(index)));
    }

    #[test]
    fn a_register_the_host_does_not_list_is_restorable_only_when_zero() {
        assert!(!restorable(Msr { index: 0x1234, value: 1 }, &[0x10]));
        assert!(restorable(Msr { index: 0x1234, value: 0 }, &[0x10]));
        assert!(restorable(Msr { index: 0x10, value: 1 }, &[0x10]));
    }

    #[test]
    fn a_register_kvm_does_not_take_is_named_unless_it_holds_nothing() {
        let host = crate::kvm::Host::open().unwrap();
        let memory = crate::memory::Memory::new(4 << 20).unwrap();
        let vm = crate::kvm::Vm::new(&host, memory).unwrap();
        let vcpu = vm.create_vcpu(0).unwrap();
        // The one after it must still be written.
        let known = Msr { index: 0x175, value: 0x1000 };
        write(vcpu.fd(), &[Msr { index: 0x1234, value: 0 }, known]).unwrap();
        assert_eq!(read(vcpu.fd(), [0x175].into_iter()).unwrap(), [known]);
        let error = write(vcpu.fd(), &[known, Msr { index: 0x1234, value: 5 }]).unwrap_err();
        assert!(matches!(error, KvmError::MsrRefused { index: 0x1234, value: 5 }), "{error}");
    }
}
