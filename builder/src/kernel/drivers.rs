//! The drivers a machine's devices need, and how to tell whether a kernel has them.

use memchr::memmem;

/// One driver a guest kernel should have.
#[derive(Debug)]
pub(crate) struct Driver {
    /// The module's name, with underscores.
    pub(crate) module: &'static str,
    /// The name the driver registers under. It is part of the kernel's interface to user space (a name
    /// in sysfs or in /proc/filesystems), so a kernel that has the driver built in contains it.
    registers: &'static str,
    /// Without it no machine boots or answers.
    pub(crate) essential: bool,
}

const fn essential(module: &'static str, registers: &'static str) -> Driver {
    Driver { module, registers, essential: true }
}

const fn optional(module: &'static str) -> Driver {
    Driver { module, registers: module, essential: false }
}

/// In the order the guest loads them: first what its root disk and its agent wait for.
pub(crate) const DRIVERS: [Driver; 10] = [
    essential("virtio_mmio", "virtio-mmio"),
    essential("virtio_blk", "virtio_blk"),
    essential("ext4", "ext4"),
    essential("vmw_vsock_virtio_transport", "vmw_vsock_virtio_transport"),
    optional("virtio_rng"),
    optional("overlay"),
    optional("fuse"),
    optional("virtiofs"),
    optional("virtio_net"),
    optional("virtio_balloon"),
];

impl Driver {
    /// Whether an image has the driver built in, judged by the name it registers.
    fn is_in(&self, vmlinux: &[u8]) -> bool {
        let mut name = self.registers.as_bytes().to_vec();
        name.push(0);
        memmem::find(vmlinux, &name).is_some()
    }
}

/// The drivers an image that comes without modules does not have.
pub(crate) fn missing_from(vmlinux: &[u8]) -> Vec<&'static Driver> {
    DRIVERS.iter().filter(|driver| !driver.is_in(vmlinux)).collect()
}

/// The names of the essential ones among `drivers`; `None` when there are none.
pub(crate) fn essential_names(drivers: &[&Driver]) -> Option<String> {
    let names: Vec<_> = drivers.iter().filter(|d| d.essential).map(|d| d.module).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
