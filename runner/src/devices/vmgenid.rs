//! VMGENID: a number in guest memory that is new in every life of a machine.
//!
//! The guest's kernel finds it through ACPI. When the number has changed and its interrupt comes, the
//! kernel mixes it into its random numbers, so that two restores of one snapshot part ways.

use serde::{Deserialize, Serialize};
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

use super::interrupt::trigger;
use super::{DeviceError, GuestMemory, new_eventfd};

/// What a snapshot keeps of VMGENID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmGenIdStateV1 {
    /// Where the number lies, a guest physical address: the guest's kernel has it from our ACPI tables.
    pub address: u64,
}

/// The device.
pub(crate) struct VmGenId {
    address: GuestAddress,
    line: EventFd,
}

impl VmGenId {
    /// Writes `generation` to `address` in guest memory, which may come from a hostile state.
    pub(crate) fn new(mem: &GuestMemory, address: u64, generation: [u8; 16]) -> Result<Self, DeviceError> {
        let misplaced = || DeviceError::state("VMGENID", format!("{address:#x} is no place for it"));
        if !address.is_multiple_of(8) {
            return Err(misplaced());
        }
        mem.write_slice(&generation, GuestAddress(address)).map_err(|_| misplaced())?;
        Ok(Self { address: GuestAddress(address), line: new_eventfd()? })
    }

    pub(crate) fn save(&self) -> VmGenIdStateV1 {
        VmGenIdStateV1 { address: self.address.0 }
    }

    /// The eventfd that KVM turns into an interrupt.
    pub(crate) fn line(&self) -> &EventFd {
        &self.line
    }

    /// After a restore: tells the guest that the number is another.
    pub(crate) fn resume(&self) {
        trigger(&self.line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> GuestMemory {
        GuestMemory::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap()
    }

    #[test]
    fn restore_writes_the_new_number_where_the_old_one_was() {
        let mem = memory();
        let saved = VmGenId::new(&mem, 0x1000, [1; 16]).unwrap().save();
        VmGenId::new(&mem, saved.address, [2; 16]).unwrap();
        assert_eq!(mem.read_obj::<[u8; 16]>(GuestAddress(0x1000)).unwrap(), [2; 16]);
    }

    #[test]
    fn an_address_outside_memory_or_unaligned_is_refused() {
        for address in [0x10000, 0xfff8, 0x1001, u64::MAX - 7] {
            assert!(VmGenId::new(&memory(), address, [0; 16]).is_err(), "{address:#x}");
        }
    }
}
