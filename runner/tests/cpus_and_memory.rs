//! CPUs and memory survive a save and a restore, byte for byte, on any `/dev/kvm`.

#![allow(clippy::unwrap_used)]

mod tiny;

use smolpack_runner::kvm::msr::{self, Msr};
use smolpack_runner::kvm::{Host, Vcpu, VcpuState, Vm};
use smolpack_runner::layout;
use smolpack_runner::snapshot::capture;
use std::time::Duration;
use tiny::machine::{boot, restored, run_for, snapshot};
use vm_memory::{Bytes, GuestAddress};

#[test]
fn a_guest_runs_and_pauses() {
    let host = Host::open().unwrap();
    for cpus in [1, 2] {
        let (vm, vcpus) = boot(&host, cpus, 512, 2 << 20);
        let vcpus = run_for(vcpus, 50);
        let (regs, _) = vcpus[0].registers().unwrap();
        assert!(regs.rax > 0);
        if cpus > 1 {
            let counted: u32 = vm.memory().guest().read_obj(GuestAddress(tiny::AP_WINDOW + 4)).unwrap();
            assert!(counted > 0, "CPU 1 did not start");
        }
        let before = regs.rax;
        let vcpus = run_for(vcpus, 20);
        assert!(vcpus[0].registers().unwrap().0.rax > before);
    }
}

/// Fails where the two machines' memories differ in any byte.
fn assert_same_memory(a: &Vm, b: &Vm) {
    assert_eq!(a.memory().len(), b.memory().len());
    let (mut left, mut right) = (vec![0; 8 << 20], vec![0; 8 << 20]);
    for range in layout::ram(a.memory().len()) {
        for at in (0..range.len).step_by(left.len()) {
            let address = GuestAddress(range.address + at);
            a.memory().guest().read_slice(&mut left, address).unwrap();
            b.memory().guest().read_slice(&mut right, address).unwrap();
            assert!(left == right, "memory differs in the 8 MiB from {:#x}", address.0);
        }
    }
}

/// Fails where the two machines' CPUs differ in anything that does not move by itself.
fn assert_same_registers(host: &Host, a: &[Vcpu], b: &[Vcpu]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a.save(host).unwrap(), b.save(host).unwrap());
        assert_eq!(a.regs, b.regs);
        assert_eq!(a.sregs, b.sregs);
        assert_eq!(a.xsave, b.xsave);
        assert_eq!(a.debugregs, b.debugregs);
        assert_eq!(a.mp_state, b.mp_state);
        assert_eq!(a.xcrs.xcrs[0], b.xcrs.xcrs[0]);
        assert_eq!(a.lapic.regs, b.lapic.regs);
        let moves = |m: &&Msr| !matches!(m.index, msr::TSC | msr::TSC_DEADLINE);
        let fixed = |s: &VcpuState| s.msrs.iter().filter(moves).copied().collect::<Vec<_>>();
        assert_eq!(fixed(&a), fixed(&b));
        let tsc = |s: &VcpuState| s.msrs.iter().find(|m| m.index == msr::TSC).unwrap().value;
        assert!(tsc(&b) >= tsc(&a), "the TSC went backwards");
    }
}

fn round_trip(cpus: u32, memory_mib: u64, window: u64) {
    let host = Host::open().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (vm, vcpus) = boot(&host, cpus, memory_mib, window);
    // Also the last page, and both sides of the hole.
    for range in layout::ram(memory_mib << 20) {
        let last = GuestAddress(range.address + range.len - 8);
        vm.memory().guest().write_obj(0x0123_4567_89ab_cdef_u64, last).unwrap();
    }
    let vcpus = run_for(vcpus, 50);
    let artifact = snapshot(&host, &vm, &vcpus, &folder.path().join("snapshot"));
    let restored = restored(&host, &artifact).unwrap();
    assert_same_registers(&host, &vcpus, &restored.vcpus);
    assert_same_memory(&vm, &restored.vm);
    let before = restored.vcpus[0].registers().unwrap().0.rax;
    let vcpus = run_for(restored.vcpus, 20);
    assert!(vcpus[0].registers().unwrap().0.rax > before, "the restored guest does not run on");
}

#[test]
fn one_cpu_and_512_mib_come_back_the_same() {
    round_trip(1, 512, 2 << 20);
}

#[test]
fn two_cpus_and_512_mib_come_back_the_same() {
    round_trip(2, 512, 2 << 20);
}

#[test]
fn one_cpu_and_5_gib_come_back_the_same_with_a_window_above_the_hole() {
    round_trip(1, 5 << 10, 4 << 30);
}

#[test]
fn two_cpus_and_5_gib_come_back_the_same_with_a_window_across_2_gib() {
    round_trip(2, 5 << 10, (2 << 30) - (4 << 20));
}

#[test]
fn memory_up_to_the_hole_comes_back_the_same() {
    round_trip(1, 3 << 10, (3 << 30) - (16 << 20));
}

#[test]
fn ten_generations_of_snapshots_lose_no_write() {
    let host = Host::open().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (mut vm, mut vcpus) = boot(&host, 2, 64, 2 << 20);
    for generation in 0..10 {
        vcpus = run_for(vcpus, 10);
        let artifact = snapshot(&host, &vm, &vcpus, &folder.path().join(generation.to_string()));
        let restored = restored(&host, &artifact).unwrap();
        assert_same_registers(&host, &vcpus, &restored.vcpus);
        assert_same_memory(&vm, &restored.vm);
        (vm, vcpus) = (restored.vm, restored.vcpus);
    }
}

#[test]
fn memory_of_2_gib_comes_back_the_same() {
    round_trip(1, 2 << 10, (2 << 30) - (16 << 20));
}

#[test]
fn the_clock_does_not_count_the_time_a_snapshot_lay_on_a_disk() {
    let host = Host::open().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (vm, vcpus) = boot(&host, 1, 64, 2 << 20);
    let vcpus = run_for(vcpus, 10);
    let before = capture(&host, &vm, &vcpus, Vec::new()).unwrap().vm.clock_ns();
    let artifact = snapshot(&host, &vm, &vcpus, &folder.path().join("snapshot"));
    std::thread::sleep(Duration::from_secs(2));
    let restored = restored(&host, &artifact).unwrap();
    let after = capture(&host, &restored.vm, &restored.vcpus, Vec::new()).unwrap().vm.clock_ns();
    assert!((before..before + 1_500_000_000).contains(&after), "{before} became {after}");
}

#[test]
fn the_tsc_is_the_same_on_all_cpus_after_a_restore() {
    let host = Host::open().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (vm, vcpus) = boot(&host, 2, 64, 2 << 20);
    let vcpus = run_for(vcpus, 10);
    let artifact = snapshot(&host, &vm, &vcpus, &folder.path().join("snapshot"));
    let restored = restored(&host, &artifact).unwrap();
    let tsc = |cpu: usize| {
        let saved = restored.vcpus[cpu].save(&host).unwrap();
        saved.msrs.iter().find(|m| m.index == msr::TSC).unwrap().value
    };
    let readings = [tsc(0), tsc(1), tsc(0), tsc(1)];
    assert!(readings.is_sorted(), "{readings:?}");
}
