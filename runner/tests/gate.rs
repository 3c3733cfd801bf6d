//! A snapshot that does not fit the host, or is damaged, is refused before any of it is used, by name.

#![allow(clippy::unwrap_used)]

mod tiny;

use smolpack_runner::chain::chain;
use smolpack_runner::gate::Misfit;
use smolpack_runner::kvm::msr::Msr;
use smolpack_runner::kvm::{Backend, Host};
use smolpack_runner::restore::RestoreError;
use smolpack_runner::snapshot::capture;
use smolpack_runner::vmstate::{MachineState, StateError};
use tiny::machine::{boot, restored, run_for, write};

type Doctor = fn(&mut MachineState);

/// Snapshots a guest, changes its state, and restores that.
fn restore_doctored(doctor: Doctor) -> RestoreError {
    let host = Host::open().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (vm, vcpus) = boot(&host, 1, 64, 2 << 20);
    let vcpus = run_for(vcpus, 5);
    let mut state = capture(&host, &vm, &vcpus, Vec::new()).unwrap();
    doctor(&mut state);
    let artifact = write(&state, &vm, 1, &folder.path().join("snapshot"));
    restored(&host, &artifact).unwrap_err()
}

#[test]
fn each_field_that_differs_is_named_and_leads_to_a_cold_boot() {
    let cases: [(&str, Doctor, &str); 8] = [
        ("vendor", |s| s.origin.vendor = "CyrixInstead".into(), "CyrixInstead"),
        ("backend", |s| s.origin.backend = Backend::Vmx, "Intel VT-x"),
        ("device model", |s| s.origin.device_model = 99, "model 99"),
        ("feature", |s| leaf(s, 7).ebx |= 1 << 2, "CPUID leaf 0x7.0 EBX bits 0x4"),
        ("address width", |s| leaf(s, 0x8000_0008).eax = 57, "57 physical address bits"),
        ("XSAVE size", |s| s.vcpus[0].xsave.resize(60_000, 1), "60000 bytes"),
        ("register", |s| s.vcpus[0].msrs.push(Msr { index: 0x1234, value: 5 }), "0x1234"),
        ("frequency", |s| s.vcpus[0].tsc_khz = 1000, "1000 kHz"),
    ];
    for (name, doctor, says) in cases {
        let error = restore_doctored(doctor);
        // A host that can scale the TSC takes any frequency.
        if name == "frequency" && Host::open().unwrap().tsc_scaling {
            continue;
        }
        assert!(matches!(error, RestoreError::Misfit(_)), "{name}: {error}");
        assert!(chain(&error).contains(says), "{name}: {error}");
        assert!(error.boots_cold(), "{name}");
    }
}

#[test]
fn whatever_kvm_refuses_leads_to_a_cold_boot() {
    let cases: [(&str, Doctor); 8] = [
        ("KVM_SET_CPUID2", |s| leaf(s, 0x8000_0008).eax = 0x2124),
        ("KVM_SET_MP_STATE", |s| s.vcpus[0].mp_state.mp_state = 99),
        ("KVM_SET_SREGS", |s| s.vcpus[0].sregs.cr4 = !0),
        ("KVM_SET_XSAVE", |s| {
            s.vcpus[0].xsave.resize(528, 0);
            s.vcpus[0].xsave.resize(576, 0xff); // bytes of the header that must be 0
        }),
        ("KVM_SET_XCRS", |s| s.vcpus[0].xcrs.xcrs[0].value = 0),
        ("KVM_SET_DEBUGREGS", |s| s.vcpus[0].debugregs.dr6 = !0),
        ("model-specific register 0xc0000082", |s| {
            s.vcpus[0].msrs.push(Msr { index: 0xc000_0082, value: 1 << 63 });
        }),
        ("KVM_SET_VCPU_EVENTS", |s| s.vcpus[0].events.flags = !0),
    ];
    for (call, doctor) in cases {
        println!("{call}");
        let error = restore_doctored(doctor);
        assert!(matches!(error, RestoreError::Kvm(_)), "{call}: {error}");
        assert!(chain(&error).contains(call), "{call}: {}", chain(&error));
        assert!(error.boots_cold(), "{call}");
    }
}

fn leaf(state: &mut MachineState, function: u32) -> &mut kvm_bindings::kvm_cpuid_entry2 {
    state.vcpus[0].cpuid.iter_mut().find(|e| e.function == function && e.index == 0).unwrap()
}

#[test]
fn another_frequency_is_fine_for_a_guest_on_kvm_s_clock() {
    let host = Host::open().unwrap();
    let (vm, vcpus) = boot(&host, 1, 64, 2 << 20);
    let mut state = capture(&host, &vm, &vcpus, Vec::new()).unwrap();
    state.vcpus[0].tsc_khz = 1000;
    state.vcpus[0].msrs.retain(|m| m.index != 0x4b56_4d01);
    state.vcpus[0].msrs.push(Msr { index: 0x4b56_4d01, value: 0x10_0001 });
    assert_eq!(smolpack_runner::gate::check_tsc(&state, 2_000_000, &host), Ok(()));
    state.vcpus[0].msrs.pop();
    let scaled = smolpack_runner::gate::check_tsc(&state, 2_000_000, &host);
    assert_eq!(scaled.is_ok(), host.tsc_scaling);
    assert!(host.tsc_scaling || scaled == Err(Misfit::Tsc { saved: 1000, host: 2_000_000 }));
}

#[test]
fn a_frequency_within_the_tolerance_is_not_even_set() {
    let host = Host::open().unwrap();
    let (vm, vcpus) = boot(&host, 1, 64, 2 << 20);
    let mut state = capture(&host, &vm, &vcpus, Vec::new()).unwrap().vcpus.remove(0);
    state.tsc_khz = 2_000_000;
    assert!(state.tsc_fits(2_000_499) && state.tsc_fits(1_999_501));
    assert!(!state.tsc_fits(2_000_501) && !state.tsc_fits(1_999_499));
}

#[test]
fn a_damaged_state_is_an_error_and_not_a_cold_boot() {
    let cases: [(&str, Doctor, &str); 5] = [
        ("no CPU", |s| s.vcpus.clear(), "vcpu"),
        ("one CPU more", |s| s.vcpus.push(s.vcpus[0].clone()), "2 virtual CPUs, but the manifest says 1"),
        ("memory of another size", |s| s.origin.memory += 4096, "67112960 bytes of memory, but"),
        ("frequency of 0", |s| s.vcpus[0].tsc_khz = 0, "TSC frequency"),
        ("too many registers", |s| s.vcpus[0].msrs = vec![Msr { index: 1, value: 1 }; 2000], "2000"),
    ];
    for (name, doctor, says) in cases {
        let error = restore_doctored(doctor);
        assert!(chain(&error).contains(says), "{name}: {error}");
        assert!(!error.boots_cold(), "{name}: {error}");
    }
}

#[test]
fn bytes_changed_at_random_never_panic() {
    let host = Host::open().unwrap();
    let (vm, vcpus) = boot(&host, 2, 64, 2 << 20);
    let bytes = capture(&host, &vm, &vcpus, vec![1, 2, 3]).unwrap().encode();
    assert_eq!(MachineState::decode(&bytes).unwrap().encode(), bytes);
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut random = seed;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize
    };
    for _ in 0..2000 {
        let mut broken = bytes.clone();
        for _ in 0..=next() % 4 {
            let at = next() % broken.len();
            broken[at] = next() as u8;
        }
        broken.truncate(1 + next() % (2 * broken.len()));
        let _ = MachineState::decode(&broken);
    }
}

#[test]
fn a_newer_state_is_refused_by_version_and_boots_cold() {
    let host = Host::open().unwrap();
    let (vm, vcpus) = boot(&host, 1, 64, 2 << 20);
    let mut bytes = capture(&host, &vm, &vcpus, Vec::new()).unwrap().encode();
    bytes[8] = 2;
    let error = MachineState::decode(&bytes).unwrap_err();
    assert!(matches!(error, StateError::Version { found: 2, known: 1, .. }), "{error}");
    assert!(RestoreError::from(error).boots_cold());
    bytes[0] = b'X';
    assert!(matches!(MachineState::decode(&bytes).unwrap_err(), StateError::Magic));
    bytes.truncate(9);
    assert!(MachineState::decode(&bytes).is_err());
}
