//! Machines of CPUs and memory alone, without devices.

use super::NoDevices;
use smolpack_format::manifest::{CpuContract, Kind};
use smolpack_format::{Artifact, Digest, Manifest, Writer};
use smolpack_runner::boot::{Cold, boot_cold};
use smolpack_runner::bus::Bus;
use smolpack_runner::kvm::{Host, Vcpu, Vm};
use smolpack_runner::layout;
use smolpack_runner::restore::{RestoreError, Restored, read_state, restore};
use smolpack_runner::snapshot::{capture, write_sections};
use smolpack_runner::timings::Timings;
use smolpack_runner::vcpus::Running;
use smolpack_runner::vmstate::MachineState;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use vm_memory::{Bytes, GuestAddress};

/// A machine at the entry of [`super::COMPUTE`], which will write to 8 MiB from `window` on.
pub(crate) fn boot(host: &Host, cpus: u32, memory_mib: u64, window: u64) -> (Vm, Vec<Vcpu>) {
    let folder = tempfile::tempdir().unwrap();
    let artifact = super::artifact(&folder.path().join("m"), super::COMPUTE, cpus, memory_mib);
    let cold = Cold { cpus, memory: memory_mib << 20, cpu: CpuContract::Portable, cmdline: "", windows: &[] };
    let (vm, mut vcpus) = boot_cold(host, &artifact, &cold).unwrap();
    let guest = vm.memory().guest();
    guest.write_obj(window, GuestAddress(super::WINDOW_BASE)).unwrap();
    guest.write_obj(0xf_ffff_u32, GuestAddress(super::WINDOW_MASK)).unwrap();
    guest.write_slice(super::AP, GuestAddress(super::AP_CODE)).unwrap();
    // The boot page tables end at 1 GiB; the guest wants its local APIC and what lies above 4 GiB.
    for gib in 1..6_u64 {
        let directory = 0x5_0000 + gib * 0x1000;
        guest.write_obj(directory | 3, GuestAddress(layout::PDPT + gib * 8)).unwrap();
        for page in 0..512 {
            let entry = (gib << 30) | (page << 21) | 0x83;
            guest.write_obj(entry, GuestAddress(directory + page * 8)).unwrap();
        }
    }
    if cpus > 1 {
        start_second(host, &mut vcpus[1]);
    }
    (vm, vcpus)
}

/// Starts CPU 1 in real mode at `AP_CODE`, as a start-up interrupt would. (The interrupt itself does not
/// arrive on every `/dev/kvm`: hosts without hardware virtualisation drop it.)
fn start_second(host: &Host, vcpu: &mut Vcpu) {
    let mut state = vcpu.save(host).unwrap();
    state.mp_state.mp_state = kvm_bindings::KVM_MP_STATE_RUNNABLE;
    state.regs.rip = 0;
    state.sregs.cs.base = super::AP_CODE;
    state.sregs.cs.selector = (super::AP_CODE >> 4) as u16;
    vcpu.restore(&state, host).unwrap();
}

/// Runs the guest for so many milliseconds.
pub(crate) fn run_for(vcpus: Vec<Vcpu>, ms: u64) -> Vec<Vcpu> {
    let running = Running::start(vcpus, &(Arc::new(NoDevices) as Arc<dyn Bus>)).unwrap();
    std::thread::sleep(Duration::from_millis(ms));
    running.pause().unwrap()
}

/// Takes a snapshot of a paused machine into a file of its own.
pub(crate) fn snapshot(host: &Host, vm: &Vm, vcpus: &[Vcpu], path: &Path) -> Artifact {
    let state = capture(host, vm, vcpus, Vec::new()).unwrap();
    write(&state, vm, vcpus.len() as u32, path)
}

/// Writes a snapshot with this state and the machine's memory, its manifest saying so many CPUs.
pub(crate) fn write(state: &MachineState, vm: &Vm, cpus: u32, path: &Path) -> Artifact {
    let mut writer = Writer::create(path).unwrap();
    // SAFETY: the CPUs are paused and there are no devices.
    unsafe { write_sections(&mut writer, state, vm.memory()) }.unwrap();
    let memory_mib = vm.memory().len() >> 20;
    let mut manifest = Manifest::new(Kind::Checkpoint, cpus, memory_mib, 1 << 20);
    manifest.parent = Some(Digest([1; 32]));
    writer.finish(manifest).unwrap();
    Artifact::open(path).unwrap()
}

/// Restores a snapshot without devices.
pub(crate) fn restored(host: &Host, artifact: &Artifact) -> Result<Restored, RestoreError> {
    let state = read_state(host, artifact)?;
    restore(host, artifact, &state, &mut Timings::start())
}
