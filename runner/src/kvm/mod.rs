//! KVM: the virtual machine, its CPUs, and their state.
//!
//! [`Vm`] owns the machine, [`Vcpu`] one CPU; [`VmState`] and [`VcpuState`] are what a
//! snapshot keeps of them. The order of calls matters in both directions and is written down where it
//! happens.

pub mod cpuid;
pub mod host;
pub mod msr;
mod vcpu;
mod vcpu_state;
mod vm;
mod xsave;

pub use host::{Backend, Host};
pub use vcpu::{Pause, Stop, Vcpu};
pub use vcpu_state::VcpuState;
pub use vm::{Vm, VmState};

use std::io;

/// Bounds on what a saved CPU may hold.
pub mod limits {
    /// CPUID entries.
    pub const CPUID_ENTRIES: usize = kvm_bindings::KVM_MAX_CPUID_ENTRIES;
    /// Model-specific registers.
    pub const MSRS: usize = 1024;
    /// Bytes of an XSAVE area.
    pub const XSAVE_BYTES: usize = 64 << 10;
}

/// A call to KVM that failed.
#[derive(Debug, thiserror::Error)]
pub enum KvmError {
    /// `/dev/kvm` cannot be opened.
    #[error("cannot open /dev/kvm")]
    Open(#[source] io::Error),
    /// An ioctl was refused.
    #[error("KVM refused {op}")]
    Call {
        /// What was asked, by the name in the kernel's documentation.
        op: &'static str,
        /// Its reason.
        source: io::Error,
    },
    /// KVM lacks something there is no way around.
    #[error("this host's KVM lacks {0}")]
    Missing(&'static str),
    /// Fewer model-specific registers were set than given.
    #[error("KVM did not take model-specific register {index:#x} (value {value:#x})")]
    MsrRefused {
        /// Number of the register.
        index: u32,
        /// The value it refused.
        value: u64,
    },
    /// A list longer than KVM takes.
    #[error("too many entries for {0}")]
    TooMany(&'static str),
}

impl KvmError {
    /// What the user can do about it, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        let Self::Open(error) = self else { return None };
        Some(match error.kind() {
            io::ErrorKind::NotFound => {
                "load the module (modprobe kvm_intel or kvm_amd), or enable virtualisation in the firmware"
            }
            io::ErrorKind::PermissionDenied => {
                "join the group kvm: sudo usermod -aG kvm $USER, then log in again"
            }
            _ => return None,
        })
    }
}

/// Names the call that failed.
trait Named<T> {
    fn named(self, op: &'static str) -> Result<T, KvmError>;
}

impl<T> Named<T> for Result<T, kvm_ioctls::Error> {
    fn named(self, op: &'static str) -> Result<T, KvmError> {
        self.map_err(|e| KvmError::Call { op, source: io::Error::from_raw_os_error(e.errno()) })
    }
}

/// Calls again while a signal interrupts, which some KVM calls let through.
fn retry_interrupted<T>(
    mut call: impl FnMut() -> Result<T, kvm_ioctls::Error>,
) -> Result<T, kvm_ioctls::Error> {
    loop {
        match call() {
            Err(e) if e.errno() == libc::EINTR => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_call_is_made_again_and_other_errors_are_not() {
        let mut results = vec![Ok(7), Err(libc::EINTR), Err(libc::EINTR)];
        let call = || results.pop().unwrap().map_err(kvm_ioctls::Error::new);
        assert_eq!(retry_interrupted(call).unwrap(), 7);

        let mut calls = 0;
        let call = || {
            calls += 1;
            Err::<(), _>(kvm_ioctls::Error::new(libc::ENOMEM))
        };
        assert_eq!(retry_interrupted(call).unwrap_err().errno(), libc::ENOMEM);
        assert_eq!(calls, 1);
    }
}
