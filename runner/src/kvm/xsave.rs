//! The XSAVE area as bytes.
//!
//! Its size depends on the host (`KVM_CAP_XSAVE2`): 4,096 bytes everywhere before AMX, more after.
//! Zero bytes at its end, which is the state of components never used, are not saved, so an area may
//! be restored on a host with a smaller one; what does not fit is refused before it comes here, never cut.

use super::{KvmError, Named};
use kvm_bindings::{Xsave, kvm_xsave};
use kvm_ioctls::VcpuFd;

/// Bytes every area has.
const BASE: usize = size_of::<kvm_xsave>();

/// Reads an area of `bytes`, the size the host says it has, up to its last byte that is not zero.
pub(super) fn read(vcpu: &VcpuFd, bytes: usize) -> Result<Vec<u8>, KvmError> {
    let mut area = read_whole(vcpu, bytes)?;
    area.truncate(area.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    Ok(area)
}

fn read_whole(vcpu: &VcpuFd, bytes: usize) -> Result<Vec<u8>, KvmError> {
    if bytes <= BASE {
        let area = vcpu.get_xsave().named("KVM_GET_XSAVE")?;
        return Ok(area.region.iter().flat_map(|word| word.to_le_bytes()).collect());
    }
    let mut area = empty(bytes)?;
    // SAFETY: the area has the size KVM_CAP_XSAVE2 reported, and nothing here enables more features.
    unsafe { vcpu.get_xsave2(&mut area) }.named("KVM_GET_XSAVE2")?;
    let fam = area.as_fam_struct_ref();
    let words = fam.xsave.region.iter().chain(area.as_slice());
    Ok(words.flat_map(|word| word.to_le_bytes()).take(bytes).collect())
}

/// Writes `saved` into a vCPU of a host whose areas have `host_bytes`; at most that many are given.
pub(super) fn write(vcpu: &VcpuFd, saved: &[u8], host_bytes: usize) -> Result<(), KvmError> {
    let mut area = empty(host_bytes.max(BASE))?;
    let mut words = saved.chunks(4).map(|chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        u32::from_le_bytes(word)
    });
    // SAFETY: only the words of the fixed part are written; its length field stays as it is.
    let fixed = unsafe { &mut area.as_mut_fam_struct().xsave.region };
    for (to, from) in fixed.iter_mut().zip(words.by_ref()) {
        *to = from;
    }
    for (to, from) in area.as_mut_slice().iter_mut().zip(words) {
        *to = from;
    }
    // SAFETY: the area has at least the size KVM reads on this host.
    unsafe { vcpu.set_xsave2(&area) }.named("KVM_SET_XSAVE")
}

fn empty(bytes: usize) -> Result<Xsave, KvmError> {
    Xsave::new((bytes - BASE).div_ceil(4)).map_err(|_| KvmError::TooMany("KVM_SET_XSAVE"))
}
