//! A cold boot: guest memory, kernel, initrd and CPUs as the 64-bit Linux boot protocol wants them.
//!
//! (Linux, Documentation/arch/x86/boot.rst, "64-bit Boot Protocol".) The kernel is an ELF image, entered
//! where its header says with the zero page in `rsi`: no real mode, no decompression.

use crate::acpi;
use crate::kvm::cpuid;
use crate::kvm::{Host, KvmError, Vcpu, Vm};
use crate::layout;
use crate::memory::{GuestMemory, Memory, MemoryError};
use smolpack_format::manifest::CpuContract;
use smolpack_format::{Artifact, FormatError, SectionKind};
use vm_memory::{Bytes, GuestAddress};

mod cpu;
mod kernel;
mod params;

/// What every guest of this runner is told, before its own command line.
///
/// In turn: log to the serial port; on a panic and on reboot, reset through the keyboard controller; one
/// serial port, no mouse, no probing of keyboard controllers, no PCI; trust the host's random numbers.
const CMDLINE: &str = "console=ttyS0 reboot=k panic=1 quiet 8250.nr_uarts=1 i8042.noaux i8042.nomux \
                       i8042.dumbkbd pci=off swiotlb=noforce random.trust_cpu=on";

/// What a cold boot needs to know.
#[derive(Clone, Debug)]
pub struct Cold<'a> {
    /// Virtual CPUs.
    pub cpus: u32,
    /// Guest memory in bytes.
    pub memory: u64,
    /// What the CPUs are declared to be.
    pub cpu: CpuContract,
    /// Kernel command line, after the runner's own.
    pub cmdline: &'a str,
    /// Virtio windows: guest physical address and interrupt line.
    pub windows: &'a [(u64, u32)],
}

/// Why a machine could not be booted.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// KVM refuses.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// Guest memory cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The artifact cannot be read.
    #[error("cannot read the artifact")]
    Artifact(#[from] FormatError),
    /// There is nothing to boot.
    #[error("the artifact has no section kernel, so it cannot boot cold")]
    NoKernel,
    /// Too many or no CPUs.
    #[error("{0} virtual CPUs: it must be 1 to {max}", max = layout::MAX_CPUS)]
    Cpus(u32),
    /// The kernel is not one.
    #[error("section kernel: {0}; it must be an ELF x86-64 kernel (vmlinux)")]
    Kernel(String),
    /// The initrd has no room.
    #[error("section initrd: {initrd} bytes do not fit beside the kernel in {memory} bytes of memory")]
    Initrd {
        /// Its size.
        initrd: u64,
        /// Guest memory below the hole.
        memory: u64,
    },
    /// The command line cannot be passed.
    #[error("kernel command line: {0}")]
    Cmdline(String),
    /// A fixed structure lies outside guest memory.
    #[error("cannot write {0} into guest memory")]
    Write(&'static str),
}

/// Builds a machine whose boot CPU stands at the kernel's entry.
///
/// # Errors
/// The artifact's kernel or initrd cannot be used, the memory is too small for them, KVM refuses.
pub fn boot_cold(host: &Host, artifact: &Artifact, cold: &Cold<'_>) -> Result<(Vm, Vec<Vcpu>), BootError> {
    if !(1..=layout::MAX_CPUS).contains(&cold.cpus) {
        return Err(BootError::Cpus(cold.cpus));
    }
    let memory = Memory::new(cold.memory)?;
    let guest = memory.guest();
    let kernel = artifact.section(SectionKind::Kernel)?.ok_or(BootError::NoKernel)?;
    let kernel = kernel::load(guest, &kernel)?;
    let initrd = match artifact.section(SectionKind::Initrd)? {
        Some(section) => Some(kernel::load_initrd(guest, &section, kernel.end, cold.memory)?),
        None => None,
    };
    let cmdline = params::write_cmdline(guest, &format!("{CMDLINE} {}", cold.cmdline))?;
    params::write_zero_page(guest, cold.memory, cmdline, initrd)?;
    write(guest, layout::ACPI, &acpi::tables(cold.cpus, cold.windows), "the ACPI tables")?;
    cpu::write_tables(guest)?;

    let vm = Vm::new(host, memory)?;
    let mut vcpus = Vec::new();
    for index in 0..cold.cpus {
        let mut vcpu = vm.create_vcpu(index)?;
        vcpu.set_cpuid(cpuid::guest(host, cold.cpu, index, cold.cpus))?;
        cpu::set_memory_types(&vcpu)?;
        vcpus.push(vcpu);
    }
    // The others wait for the kernel to start them.
    cpu::enter_at(&vcpus[0], kernel.entry)?;
    Ok((vm, vcpus))
}

fn write(guest: &GuestMemory, at: u64, bytes: &[u8], what: &'static str) -> Result<(), BootError> {
    guest.write_slice(bytes, GuestAddress(at)).map_err(|_| BootError::Write(what))
}
