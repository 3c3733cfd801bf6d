//! Which feature bits a contract allows, and which of them a host lacks.

use crate::kvm::host::Host;
use kvm_bindings::kvm_cpuid_entry2;
use smolpack_format::manifest::CpuContract;
use std::fmt::Write;

/// Builds a mask from bit numbers.
const fn bits<const N: usize>(numbers: [u32; N]) -> u32 {
    let mut mask = 0;
    let mut i = 0;
    while i < N {
        mask |= 1 << numbers[i];
        i += 1;
    }
    mask
}

/// The bits a leaf may keep, by register.
#[derive(Clone, Copy)]
struct Allowed {
    function: u32,
    index: u32,
    eax: u32,
    ebx: u32,
    ecx: u32,
    edx: u32,
}

const ALL: u32 = u32::MAX;

/// Leaf 1 ECX: SSE3, PCLMULQDQ, SSSE3, CX16, PCID, SSE4.1, SSE4.2, x2APIC, MOVBE, POPCNT, AES, RDRAND.
/// (The TSC deadline and hypervisor bits are set elsewhere.) XSAVE is v3: without AVX there is nothing in
/// it that FXSAVE does not save.
const V2_1_ECX: u32 = bits([0, 1, 9, 13, 17, 19, 20, 21, 22, 23, 25, 30]);
/// Leaf 1 EDX: everything an x86-64 processor has, without debug store, ACPI clock control, thermal
/// monitoring, machine-check broadcast and the serial number.
const V2_1_EDX: u32 =
    bits([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 19, 23, 24, 25, 26, 27, 28]);
/// Leaf 7 EBX: FSGSBASE, TSC adjustment, SMEP, ERMS, INVPCID, RDSEED, SMAP, CLFLUSHOPT, CLWB.
const V2_7_EBX: u32 = bits([0, 1, 7, 9, 10, 18, 20, 23, 24]);
/// Leaf 7 ECX: UMIP.
const V2_7_ECX: u32 = bits([2]);
/// Leaf 7 EDX, mitigations only: `MD_CLEAR`, IBRS and IBPB, STIBP, `L1D_FLUSH`, `ARCH_CAPABILITIES`, SSBD.
const V2_7_EDX: u32 = bits([10, 26, 27, 28, 29, 31]);
/// Extended leaf 1 ECX: LAHF, legacy core count, CR8, 3DNow prefetch. (LZCNT is v3.)
const V2_X1_ECX: u32 = bits([0, 1, 4, 8]);
/// Extended leaf 1 EDX: those shared with leaf 1, SYSCALL, NX, MMX extensions, 1 GiB pages, RDTSCP, long mode.
const V2_X1_EDX: u32 =
    bits([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 20, 22, 23, 24, 25, 26, 27, 29]);
/// Extended leaf 8 EBX, mitigations only: XSAVEERPTR, IBPB, IBRS, STIBP, always-on variants, SSBD.
const V2_X8_EBX: u32 = bits([2, 12, 14, 15, 16, 17, 18, 24, 25, 26]);

/// What x86-64-v3 adds: FMA, XSAVE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT.
const V3_1_ECX: u32 = bits([12, 26, 28, 29]);
const V3_7_EBX: u32 = bits([3, 5, 8]);
const V3_X1_ECX: u32 = bits([5]);

/// KVM's own features: clock, no I/O delay, stolen time, EOI, spinlock wake-up, TLB flush, IPI, yield,
/// stable clock. Asynchronous page faults are left out: one under way could not be saved.
const KVM_EAX: u32 = bits([0, 1, 3, 5, 6, 7, 9, 11, 12, 13, 24]);

/// Extended states in XCR0: x87, SSE and AVX; and for `host` all but AMX (bits 17 and 18).
const XCR0_V3: u32 = bits([0, 1, 2]);
const XCR0_HOST: u32 = !bits([17, 18]);

const fn portable(one_ecx: u32, seven_ebx: u32, extended_ecx: u32, xcr0: u32) -> [Allowed; 10] {
    let xsave = if xcr0 == 0 { 0 } else { ALL };
    let zero = Allowed { function: 0, index: 0, eax: 0, ebx: 0, ecx: 0, edx: 0 };
    [
        Allowed { function: 1, eax: ALL, ebx: ALL, ecx: V2_1_ECX | one_ecx, edx: V2_1_EDX, ..zero },
        // Timer that runs in all idle states.
        Allowed { function: 6, eax: bits([2]), ..zero },
        Allowed { function: 7, ebx: V2_7_EBX | seven_ebx, ecx: V2_7_ECX, edx: V2_7_EDX, ..zero },
        Allowed { function: 0xd, eax: xcr0, ebx: xsave, ecx: xsave, ..zero },
        Allowed { function: 0xd, index: 1, eax: xsave & bits([0]), ..zero },
        Allowed { function: 0xd, index: 2, eax: xsave, ebx: xsave, ecx: xsave, edx: xsave },
        Allowed { function: 0x8000_0001, eax: ALL, ecx: V2_X1_ECX | extended_ecx, edx: V2_X1_EDX, ..zero },
        Allowed { function: 0x8000_0007, ..zero },
        Allowed { function: 0x8000_0008, eax: ALL, ebx: V2_X8_EBX, ecx: ALL, edx: ALL, ..zero },
        Allowed { function: 0x4000_0001, eax: KVM_EAX, ..zero },
    ]
}

const V2: [Allowed; 10] = portable(0, 0, 0, 0);
const V3: [Allowed; 10] = portable(V3_1_ECX, V3_7_EBX, V3_X1_ECX, XCR0_V3);

/// Cuts one leaf down to what the contract allows.
pub(super) fn restrict(entry: &mut kvm_cpuid_entry2, contract: CpuContract) {
    let table = match contract {
        CpuContract::Portable => &V2,
        CpuContract::V3 => &V3,
        CpuContract::Host => return restrict_host(entry),
    };
    let allowed = table.iter().find(|a| a.function == entry.function && a.index == entry.index);
    match allowed {
        Some(allowed) => {
            entry.eax &= allowed.eax;
            entry.ebx &= allowed.ebx;
            entry.ecx &= allowed.ecx;
            entry.edx &= allowed.edx;
        }
        // Other sub-leaves of these are features or extended states beyond the contract.
        None if matches!(entry.function, 7 | 0xd) => {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
        }
        None => {}
    }
    if entry.function == 7 {
        entry.eax = 0; // no further sub-leaves
    }
}

/// `host` hands on what KVM supports but for what a snapshot cannot carry or a restore cannot promise.
fn restrict_host(entry: &mut kvm_cpuid_entry2) {
    const NESTED: u32 = bits([5]);
    const AMX: u32 = bits([22, 24, 25]);
    match (entry.function, entry.index) {
        (1, _) => entry.ecx &= !NESTED,
        (7, 0) => entry.edx &= !AMX,
        (0xd, 0) => entry.eax &= XCR0_HOST,
        (0xd, 17 | 18) => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
        (0x8000_0001, _) => entry.ecx &= !bits([2, 22, 23, 24, 28]), // SVM, topology, counters
        (0x4000_0001, _) => entry.eax &= KVM_EAX,
        _ => {}
    }
}

/// The first features of a saved guest this host cannot give, in words for an error.
#[must_use]
pub fn missing(guest: &[kvm_cpuid_entry2], host: &Host) -> Option<String> {
    for entry in guest {
        for (name, wanted, given) in compared(entry, host) {
            let lacking = wanted & !given;
            if lacking != 0 {
                let mut text = String::new();
                let _ =
                    write!(text, "CPUID leaf {:#x}.{} {name} bits {lacking:#x}", entry.function, entry.index);
                return Some(text);
            }
        }
    }
    address_bits_missing(guest, host)
}

/// The registers of a leaf that hold feature bits: name, the guest's, the host's.
fn compared(entry: &kvm_cpuid_entry2, host: &Host) -> Vec<(&'static str, u32, u32)> {
    // Set by the runner or by the guest's own control registers, not by the processor:
    // TSC deadline, OSXSAVE, hypervisor; several CPUs.
    const NOT_FEATURES_ECX: u32 = bits([24, 27, 31]);
    const NOT_FEATURES_EDX: u32 = bits([28]);
    let given = host
        .supported
        .as_slice()
        .iter()
        .find(|e| e.function == entry.function && e.index == entry.index)
        .copied()
        .unwrap_or_default();
    let deadline = if host.tsc_deadline { bits([24]) } else { 0 };
    match (entry.function, entry.index) {
        (1, _) => vec![
            ("ECX", entry.ecx, given.ecx | deadline | (NOT_FEATURES_ECX & !bits([24]))),
            ("EDX", entry.edx, given.edx | NOT_FEATURES_EDX),
        ],
        (6 | 0x4000_0001, _) | (0xd, 1) => vec![("EAX", entry.eax, given.eax)],
        (7, 0) => vec![
            ("EBX", entry.ebx, given.ebx),
            ("ECX", entry.ecx & !bits([4]), given.ecx), // OSPKE follows the guest's CR4
            ("EDX", entry.edx, given.edx),
        ],
        (7, _) => vec![
            ("EAX", entry.eax, given.eax),
            ("EBX", entry.ebx, given.ebx),
            ("ECX", entry.ecx, given.ecx),
            ("EDX", entry.edx, given.edx),
        ],
        (0xd, 0) => vec![("EAX", entry.eax, given.eax), ("EDX", entry.edx, given.edx)],
        (0x8000_0001, _) => vec![("ECX", entry.ecx, given.ecx), ("EDX", entry.edx, given.edx)],
        (0x8000_0007, _) => vec![("EDX", entry.edx, given.edx)],
        (0x8000_0008, _) => vec![("EBX", entry.ebx, given.ebx)],
        _ => Vec::new(),
    }
}

fn address_bits_missing(guest: &[kvm_cpuid_entry2], host: &Host) -> Option<String> {
    let width = |entries: &[kvm_cpuid_entry2]| {
        entries.iter().find(|e| e.function == 0x8000_0008).map_or(36, |e| e.eax & 0xff)
    };
    let (wanted, given) = (width(guest), width(host.supported.as_slice()));
    (wanted > given).then(|| format!("{wanted} physical address bits; it has {given}"))
}
