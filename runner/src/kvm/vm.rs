//! The virtual machine: memory slots, interrupt controllers, timer and clock.

use super::host::Host;
use super::{KvmError, Named, Vcpu, retry_interrupted};
use crate::layout;
use crate::memory::Memory;
use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_PIT_SPEAKER_DUMMY, kvm_clock_data,
    kvm_irqchip, kvm_pit_config, kvm_pit_state2, kvm_userspace_memory_region,
};
use kvm_ioctls::{IoEventAddress, VmFd};
use serde::{Deserialize, Serialize};
use vmm_sys_util::eventfd::EventFd;

/// A virtual machine with its RAM, which lives as long as the machine does.
#[derive(Debug)]
pub struct Vm {
    fd: VmFd,
    memory: Memory,
}

/// What a snapshot keeps of the machine, apart from its CPUs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmState {
    pit: kvm_pit_state2,
    clock: kvm_clock_data,
    pic_master: kvm_irqchip,
    pic_slave: kvm_irqchip,
    ioapic: kvm_irqchip,
}

impl VmState {
    /// What KVM's clock showed, nanoseconds since the machine was first started.
    #[must_use]
    pub fn clock_ns(&self) -> u64 {
        self.clock.clock
    }
}

impl Vm {
    /// A machine with this memory, interrupt controllers and timer, but no CPUs.
    ///
    /// The slots come before the interrupt controllers: the other way round costs ten times as much.
    ///
    /// # Errors
    /// KVM refuses one of the calls.
    pub fn new(host: &Host, memory: Memory) -> Result<Self, KvmError> {
        let fd = retry_interrupted(|| host.kvm.create_vm()).named("KVM_CREATE_VM")?;
        fd.set_identity_map_address(layout::KVM_IDENTITY_MAP).named("KVM_SET_IDENTITY_MAP_ADDR")?;
        fd.set_tss_address(layout::KVM_TSS as usize).named("KVM_SET_TSS_ADDR")?;
        let vm = Self { fd, memory };
        vm.map_memory()?;
        vm.fd.create_irq_chip().named("KVM_CREATE_IRQCHIP")?;
        let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..kvm_pit_config::default() };
        vm.fd.create_pit2(pit).named("KVM_CREATE_PIT2")?;
        Ok(vm)
    }

    fn map_memory(&self) -> Result<(), KvmError> {
        for (slot, (range, host_address)) in (0..).zip(self.memory.slots()) {
            let region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: range.address,
                memory_size: range.len,
                userspace_addr: host_address,
            };
            // SAFETY: the range is a live mapping that `self.memory` keeps until after `self.fd` is
            // closed (fields drop in order); the slots do not overlap.
            unsafe { self.fd.set_user_memory_region(region) }.named("KVM_SET_USER_MEMORY_REGION")?;
        }
        Ok(())
    }

    /// Adds a CPU; `index` is also its local APIC's identifier.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn create_vcpu(&self, index: u32) -> Result<Vcpu, KvmError> {
        let fd = self.fd.create_vcpu(u64::from(index)).named("KVM_CREATE_VCPU")?;
        Ok(Vcpu::new(fd, index, self.memory.clone()))
    }

    /// The machine's RAM.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Makes `event` raise the interrupt line `gsi`.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn register_interrupt(&self, event: &EventFd, gsi: u32) -> Result<(), KvmError> {
        self.fd.register_irqfd(event, gsi).named("KVM_IRQFD")
    }

    /// Makes a guest's write of `value` at `address` trigger `event`, without an exit.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn register_notification(
        &self,
        event: &EventFd,
        address: &IoEventAddress,
        value: u32,
    ) -> Result<(), KvmError> {
        self.fd.register_ioevent(event, address, value).named("KVM_IOEVENTFD")
    }

    /// Reads what a snapshot keeps; the CPUs are paused.
    ///
    /// # Errors
    /// KVM refuses one of the calls.
    pub fn save(&self) -> Result<VmState, KvmError> {
        Ok(VmState {
            pit: self.fd.get_pit2().named("KVM_GET_PIT2")?,
            clock: self.fd.get_clock().named("KVM_GET_CLOCK")?,
            pic_master: self.irqchip(KVM_IRQCHIP_PIC_MASTER)?,
            pic_slave: self.irqchip(KVM_IRQCHIP_PIC_SLAVE)?,
            ioapic: self.irqchip(KVM_IRQCHIP_IOAPIC)?,
        })
    }

    /// Puts back what [`Vm::save`] read, after the CPUs' state and before any of them runs.
    ///
    /// The clock goes on from the moment of the snapshot (no `KVM_CLOCK_REALTIME`): a monotonic clock
    /// must not jump by the time the snapshot lay on a disk.
    ///
    /// # Errors
    /// KVM refuses one of the calls.
    pub fn restore(&self, state: &VmState) -> Result<(), KvmError> {
        self.fd.set_pit2(&state.pit).named("KVM_SET_PIT2")?;
        let clock = kvm_clock_data { clock: state.clock.clock, ..kvm_clock_data::default() };
        self.fd.set_clock(&clock).named("KVM_SET_CLOCK")?;
        let chips = [
            (KVM_IRQCHIP_PIC_MASTER, &state.pic_master),
            (KVM_IRQCHIP_PIC_SLAVE, &state.pic_slave),
            (KVM_IRQCHIP_IOAPIC, &state.ioapic),
        ];
        for (id, saved) in chips {
            let chip = kvm_irqchip { chip_id: id, ..*saved };
            self.fd.set_irqchip(&chip).named("KVM_SET_IRQCHIP")?;
        }
        Ok(())
    }

    fn irqchip(&self, chip_id: u32) -> Result<kvm_irqchip, KvmError> {
        let mut chip = kvm_irqchip { chip_id, ..kvm_irqchip::default() };
        self.fd.get_irqchip(&mut chip).named("KVM_GET_IRQCHIP")?;
        Ok(chip)
    }
}
