//! What a guest is told its processor can do.
//!
//! A machine is built once and restored anywhere, so the guest sees no more than its contract: the
//! default is x86-64-v2 and what an operating system needs besides, without AVX, performance counters
//! or nested virtualisation. Features beyond the contract are cut by allow-lists, so that a processor
//! newer than this code cannot slip one in. Mitigations for processor flaws are handed through where
//! the host has them: a guest without them would be less safe than its host.
//!
//! The TSC is not declared invariant under the portable contracts: a guest then keeps time by KVM's
//! clock, which is right on a host with another TSC frequency.

use super::host::Host;
use kvm_bindings::{KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};
use smolpack_format::manifest::CpuContract;

mod features;

pub use features::missing;

/// Highest basic leaf a guest sees: extended state enumeration.
const MAX_BASIC: u32 = 0xd;

/// Highest extended leaf a guest sees: address sizes.
const MAX_EXTENDED: u32 = 0x8000_0008;

/// The hypervisor's leaves.
const KVM_SIGNATURE: u32 = 0x4000_0000;
const KVM_FEATURES: u32 = 0x4000_0001;

/// Physical address bits of portable guests: what all hosts of interest have.
const PORTABLE_ADDRESS_BITS: u32 = 40;

/// The processor's vendor, from leaf 0.
#[must_use]
pub fn vendor(entries: &[kvm_cpuid_entry2]) -> String {
    let Some(leaf) = entries.iter().find(|e| e.function == 0) else { return String::new() };
    let bytes = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The CPUID of the guest's CPU number `index` of `cpus`, on this host under this contract.
#[must_use]
pub fn guest(host: &Host, contract: CpuContract, index: u32, cpus: u32) -> Vec<kvm_cpuid_entry2> {
    let mut entries: Vec<_> = host.supported.as_slice().iter().copied().filter(visible).collect();
    for entry in &mut entries {
        features::restrict(entry, contract);
        match entry.function {
            0 => entry.eax = entry.eax.min(MAX_BASIC),
            1 => identify(entry, host, index, cpus),
            4 => share_caches(entry, cpus),
            0x8000_0000 => entry.eax = entry.eax.min(MAX_EXTENDED),
            0x8000_0008 => limit_addresses(entry, contract, cpus),
            KVM_SIGNATURE => entry.eax = KVM_FEATURES,
            _ => {}
        }
    }
    entries.extend(topology(index, cpus));
    entries
}

/// Leaves handed on at all; the topology leaf is made anew.
fn visible(entry: &kvm_cpuid_entry2) -> bool {
    match entry.function {
        // 3 is the serial number, 5 monitor/mwait, 9 cache access, 0xa performance counters, 0xb topology.
        0..=MAX_BASIC => !matches!(entry.function, 3 | 5 | 9 | 0xa | 0xb),
        KVM_SIGNATURE | KVM_FEATURES | 0x8000_0000..=MAX_EXTENDED => true,
        _ => false,
    }
}

fn identify(leaf: &mut kvm_cpuid_entry2, host: &Host, index: u32, cpus: u32) {
    const TSC_DEADLINE: u32 = 1 << 24;
    const HYPERVISOR: u32 = 1 << 31;
    const SEVERAL_CPUS: u32 = 1 << 28;
    const CACHE_LINE: u32 = 0xff00;
    leaf.ebx = (index << 24) | (cpus.next_power_of_two() << 16) | (leaf.ebx & CACHE_LINE);
    leaf.ecx |= HYPERVISOR;
    if host.tsc_deadline {
        leaf.ecx |= TSC_DEADLINE;
    }
    if cpus > 1 {
        leaf.edx |= SEVERAL_CPUS;
    } else {
        leaf.edx &= !SEVERAL_CPUS;
    }
}

/// Intel's cache leaf: first and second level belong to one CPU, the last level to all.
fn share_caches(leaf: &mut kvm_cpuid_entry2, cpus: u32) {
    let kind = leaf.eax & 0x1f;
    if kind == 0 {
        return; // no cache: the end of the list, or not an Intel processor
    }
    let level = (leaf.eax >> 5) & 0b111;
    let sharing = if level >= 3 { cpus.next_power_of_two() - 1 } else { 0 };
    leaf.eax = (leaf.eax & 0x3fff) | (sharing << 14) | ((cpus.next_power_of_two() - 1) << 26);
}

fn limit_addresses(leaf: &mut kvm_cpuid_entry2, contract: CpuContract, cpus: u32) {
    if contract != CpuContract::Host {
        let bits = (leaf.eax & 0xff).min(PORTABLE_ADDRESS_BITS);
        // The third byte would be the guest-physical width, for nested guests only.
        leaf.eax = (leaf.eax & 0xff00) | bits;
    }
    leaf.ecx = cpus - 1;
    leaf.edx = 0;
}

/// Leaf 0xb: every CPU is a core with one thread, all in one package.
fn topology(index: u32, cpus: u32) -> [kvm_cpuid_entry2; 2] {
    const THREADS: u32 = 1;
    const CORES: u32 = 2;
    let level = |level: u32, kind: u32, shift: u32, count: u32| kvm_cpuid_entry2 {
        function: 0xb,
        index: level,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax: shift,
        ebx: count,
        ecx: level | (kind << 8),
        edx: index,
        ..kvm_cpuid_entry2::default()
    };
    [level(0, THREADS, 0, 1), level(1, CORES, cpus.next_power_of_two().trailing_zeros(), cpus)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(entries: &[kvm_cpuid_entry2], function: u32, index: u32) -> kvm_cpuid_entry2 {
        *entries.iter().find(|e| e.function == function && e.index == index).unwrap()
    }

    #[test]
    fn a_portable_guest_sees_no_wide_vectors_counters_or_nested_virtualisation() {
        let host = Host::open().unwrap();
        let entries = guest(&host, CpuContract::Portable, 0, 2);
        let (one, seven) = (find(&entries, 1, 0), find(&entries, 7, 0));
        assert_eq!(one.ecx & ((1 << 28) | (1 << 5)), 0, "AVX, VMX");
        assert_eq!(seven.ebx & ((1 << 5) | (1 << 16)), 0, "AVX2, AVX-512");
        assert_eq!(seven.edx & (0b11 << 24), 0, "AMX");
        assert_eq!((one.ecx & (1 << 26), find(&entries, 0xd, 0).eax), (0, 0), "XSAVE");
        assert!(entries.iter().all(|e| e.function != 0xa && e.function != 0x8000_000a));
        assert_eq!(find(&entries, 0x8000_0001, 0).ecx & (1 << 2), 0, "SVM");
    }

    #[test]
    fn each_cpu_has_its_own_identifier_and_the_same_features() {
        let host = Host::open().unwrap();
        let first = guest(&host, CpuContract::Portable, 0, 3);
        let last = guest(&host, CpuContract::Portable, 2, 3);
        assert_eq!(find(&last, 1, 0).ebx >> 24, 2);
        assert_eq!(find(&last, 0xb, 1).edx, 2);
        assert_eq!(find(&last, 0xb, 1).ebx, 3);
        assert_eq!(find(&first, 1, 0).ecx, find(&last, 1, 0).ecx);
    }

    #[test]
    fn what_this_host_gives_it_also_supports() {
        let host = Host::open().unwrap();
        for contract in [CpuContract::Portable, CpuContract::V3, CpuContract::Host] {
            let entries = guest(&host, contract, 0, 1);
            assert_eq!(missing(&entries, &host), None, "{contract:?}");
        }
    }

    #[test]
    fn a_feature_the_host_lacks_is_named() {
        let host = Host::open().unwrap();
        let mut entries = guest(&host, CpuContract::Portable, 0, 1);
        let leaf = entries.iter_mut().find(|e| e.function == 7).unwrap();
        leaf.ebx |= 1 << 2; // SGX, which KVM hides from ordinary guests
        assert_eq!(missing(&entries, &host).unwrap(), "CPUID leaf 0x7.0 EBX bits 0x4");
    }
}
