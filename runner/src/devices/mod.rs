//! Devices: virtio over MMIO, the serial console, VMGENID, reset and power-off.
//!
//! Every virtio device has the same shape: a live type that implements [`VirtioDevice`], and a plain
//! state type (`BlockStateV1`) that is saved and checked on restore. `mmio` carries the registers all
//! of them share. Devices are worked by one thread, the event loop; vCPU threads only touch the
//! registers, under the transport's lock, and ring queues through ioeventfds.
