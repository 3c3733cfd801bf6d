//! What this host can do: the one place that decides whether a Linux guest can run here.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;

/// Whether `/dev/kvm` runs an ordinary Linux kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvmStatus {
    /// `/dev/kvm` opens and is backed by Intel VMX.
    Vmx,
    /// `/dev/kvm` opens and is backed by AMD SVM.
    Svm,
    /// `/dev/kvm` opens, but the processor shows no hardware virtualisation (PVM, say): small guests
    /// run there, an ordinary kernel does not.
    NoHardware,
    /// There is no `/dev/kvm`.
    Missing,
    /// This user may not open `/dev/kvm`.
    Denied,
}

impl KvmStatus {
    /// Looks at `/dev/kvm` and `/proc/cpuinfo`.
    #[must_use]
    pub fn probe() -> Self {
        Self::of(Path::new("/dev/kvm"), &fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
    }

    fn of(device: &Path, cpuinfo: &str) -> Self {
        match OpenOptions::new().read(true).write(true).open(device) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::PermissionDenied => return Self::Denied,
            Err(_) => return Self::Missing,
        }
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        match flags.split_whitespace().find(|flag| matches!(*flag, "vmx" | "svm")) {
            Some("vmx") => Self::Vmx,
            Some(_) => Self::Svm,
            None => Self::NoHardware,
        }
    }

    /// Whether an ordinary Linux kernel runs here.
    #[must_use]
    pub fn runs_linux(self) -> bool {
        matches!(self, Self::Vmx | Self::Svm)
    }

    /// The state in a few words, to stand in a sentence.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Self::Vmx => "/dev/kvm is usable (Intel VMX)",
            Self::Svm => "/dev/kvm is usable (AMD SVM)",
            Self::NoHardware => "/dev/kvm has no hardware virtualisation behind it",
            Self::Missing => "there is no /dev/kvm",
            Self::Denied => "this user may not open /dev/kvm",
        }
    }

    /// What mends it, where something does.
    #[must_use]
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::Vmx | Self::Svm => None,
            Self::NoHardware => Some(
                "use a host that offers VMX or SVM: switch on virtualisation in the firmware, or nested \
                 virtualisation where this is a virtual machine",
            ),
            Self::Missing => Some("sudo modprobe kvm-intel || sudo modprobe kvm-amd"),
            Self::Denied => Some("sudo usermod -aG kvm \"$USER\", then log in anew"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_flags_decide_what_an_open_device_can_do() {
        let device = Path::new("/dev/null");
        for (cpuinfo, expected) in [
            ("processor: 0\nflags\t\t: fpu vmx sse\n", KvmStatus::Vmx),
            ("flags\t\t: fpu svm sse\n", KvmStatus::Svm),
            ("flags\t\t: fpu svm_lock vmxoff\n", KvmStatus::NoHardware),
            ("", KvmStatus::NoHardware),
        ] {
            assert_eq!(KvmStatus::of(device, cpuinfo), expected, "{cpuinfo}");
        }
    }

    #[test]
    fn a_missing_device_is_missing() {
        assert_eq!(KvmStatus::of(Path::new("/dev/no-such-kvm"), "flags: svm"), KvmStatus::Missing);
    }
}
