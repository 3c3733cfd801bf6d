//! What this host's processor and KVM offer, asked once.

use super::{KvmError, Named};
use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, KVM_MAX_CPUID_ENTRIES, kvm_xsave};
use kvm_ioctls::{Cap, Kvm};
use serde::{Deserialize, Serialize};
use std::arch::x86_64::__cpuid;
use std::fmt;
use std::path::Path;

/// How KVM runs guest code here. States of different backends are not interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// AMD's hardware virtualisation.
    Svm,
    /// Intel's hardware virtualisation.
    Vmx,
    /// None in hardware: software page tables (PVM).
    Software,
}

impl Backend {
    fn detect() -> Self {
        const VMX: u32 = 1 << 5;
        const SVM: u32 = 1 << 2;
        if Path::new("/sys/module/kvm_pvm").exists() {
            Self::Software
        } else if __cpuid(1).ecx & VMX != 0 {
            Self::Vmx
        } else if __cpuid(0x8000_0001).ecx & SVM != 0 {
            Self::Svm
        } else {
            Self::Software
        }
    }
}

impl Backend {
    /// Its name in an artifact's manifest.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Svm => "svm",
            Self::Vmx => "vmx",
            Self::Software => "pvm",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Svm => "AMD-V",
            Self::Vmx => "Intel VT-x",
            Self::Software => "no hardware virtualisation",
        })
    }
}

/// This host, as far as guests depend on it.
#[derive(Debug)]
pub struct Host {
    /// The open `/dev/kvm`.
    pub kvm: Kvm,
    /// How KVM runs guests.
    pub backend: Backend,
    /// All CPUID features KVM can give a guest.
    pub supported: CpuId,
    /// Bytes of a vCPU's XSAVE area, at least 4,096.
    pub xsave_bytes: usize,
    /// Whether a guest's TSC can run at another frequency than the host's.
    pub tsc_scaling: bool,
    /// Whether local APIC timers have the TSC deadline mode.
    pub tsc_deadline: bool,
    /// Model-specific registers KVM can save and restore, sorted.
    pub msrs: Vec<u32>,
}

impl Host {
    /// Opens `/dev/kvm` and asks.
    ///
    /// # Errors
    /// No access to `/dev/kvm`; a KVM without what every guest here needs.
    pub fn open() -> Result<Self, KvmError> {
        let kvm = Kvm::new().map_err(|e| KvmError::Open(std::io::Error::from_raw_os_error(e.errno())))?;
        for (cap, name) in [
            (Cap::Irqchip, "KVM_CAP_IRQCHIP"),
            (Cap::Pit2, "KVM_CAP_PIT2"),
            (Cap::Irqfd, "KVM_CAP_IRQFD"),
            (Cap::Ioeventfd, "KVM_CAP_IOEVENTFD"),
            (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
            (Cap::Xcrs, "KVM_CAP_XCRS"),
            (Cap::AdjustClock, "KVM_CAP_ADJUST_CLOCK"),
        ] {
            if !kvm.check_extension(cap) {
                return Err(KvmError::Missing(name));
            }
        }
        let mut supported =
            kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).named("KVM_GET_SUPPORTED_CPUID")?;
        // Where a leaf has no sub-leaves, some kernels leave anything in `index`.
        for leaf in supported.as_mut_slice() {
            if leaf.flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX == 0 {
                leaf.index = 0;
            }
        }
        let mut msrs = kvm.get_msr_index_list().named("KVM_GET_MSR_INDEX_LIST")?.as_slice().to_vec();
        msrs.sort_unstable();
        Ok(Self {
            backend: Backend::detect(),
            supported,
            xsave_bytes: usize::try_from(kvm.check_extension_int(Cap::Xsave2))
                .unwrap_or(0)
                .max(size_of::<kvm_xsave>()),
            tsc_scaling: kvm.check_extension(Cap::TscControl),
            tsc_deadline: kvm.check_extension(Cap::TscDeadlineTimer),
            msrs,
            kvm,
        })
    }

    /// The processor's vendor, like `AuthenticAMD`.
    #[must_use]
    pub fn vendor(&self) -> String {
        super::cpuid::vendor(self.supported.as_slice())
    }
}
