//! The virtio-mmio transport (virtio 1.2, section 4.2): the registers all virtio devices share.
//!
//! vCPU threads read and write registers; the event loop works the queues. One lock a device guards
//! both, except for the registers of the hot path (interrupt status and acknowledgement, queue
//! notification), which need none, so that no vCPU waits for a request in progress.

use serde::{Deserialize, Serialize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use virtio_bindings::bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FAILED,
    VIRTIO_CONFIG_S_FEATURES_OK, VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::bindings::virtio_mmio::{
    VIRTIO_MMIO_CONFIG, VIRTIO_MMIO_CONFIG_GENERATION, VIRTIO_MMIO_DEVICE_FEATURES,
    VIRTIO_MMIO_DEVICE_FEATURES_SEL, VIRTIO_MMIO_DEVICE_ID, VIRTIO_MMIO_DRIVER_FEATURES,
    VIRTIO_MMIO_DRIVER_FEATURES_SEL, VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INTERRUPT_STATUS,
    VIRTIO_MMIO_MAGIC_VALUE, VIRTIO_MMIO_QUEUE_AVAIL_HIGH, VIRTIO_MMIO_QUEUE_AVAIL_LOW,
    VIRTIO_MMIO_QUEUE_DESC_HIGH, VIRTIO_MMIO_QUEUE_DESC_LOW, VIRTIO_MMIO_QUEUE_NOTIFY, VIRTIO_MMIO_QUEUE_NUM,
    VIRTIO_MMIO_QUEUE_NUM_MAX, VIRTIO_MMIO_QUEUE_READY, VIRTIO_MMIO_QUEUE_SEL, VIRTIO_MMIO_QUEUE_USED_HIGH,
    VIRTIO_MMIO_QUEUE_USED_LOW, VIRTIO_MMIO_SHM_BASE_HIGH, VIRTIO_MMIO_SHM_LEN_LOW, VIRTIO_MMIO_STATUS,
    VIRTIO_MMIO_VENDOR_ID, VIRTIO_MMIO_VERSION,
};
use virtio_bindings::bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueT;
use vmm_sys_util::eventfd::EventFd;

use super::interrupt::{Interrupt, trigger};
use super::queue::{Broken, Queue, QueueStateV1};
use super::{DeviceError, GuestMemory, StateError, new_eventfd};
use crate::notice::write_line;

/// "virt", little-endian.
const MAGIC: u32 = 0x7472_6976;
/// The version that is not the legacy one.
const VERSION: u32 = 2;
/// "smol", little-endian.
const VENDOR: u32 = 0x6c6f_6d73;
/// What every device offers.
const TRANSPORT_FEATURES: u64 =
    1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_RING_F_INDIRECT_DESC;
/// The bits of the status register that the driver sets.
const DRIVER_STATUS: u32 = VIRTIO_CONFIG_S_ACKNOWLEDGE
    | VIRTIO_CONFIG_S_DRIVER
    | VIRTIO_CONFIG_S_FEATURES_OK
    | VIRTIO_CONFIG_S_DRIVER_OK
    | VIRTIO_CONFIG_S_FAILED;

/// What makes a device out of the transport.
pub(crate) trait VirtioDevice: Send {
    /// Its name in errors.
    const NAME: &'static str;
    /// Its number in the virtio specification.
    const ID: u32;
    /// The largest size of each of its queues, powers of two.
    const QUEUES: &'static [u16];

    /// Features of this kind of device that it offers.
    fn features(&self) -> u64;

    /// The configuration space.
    fn config(&self) -> &[u8];

    /// The driver has reset the device; the queues are gone.
    fn reset(&mut self) {}

    /// Works through queue `queue`, of which the driver has said that there is something in it. Called
    /// only while the driver is ready and has kept to the rules; it is told of the answers afterwards.
    fn process(&mut self, queue: usize, io: &mut Io<'_>) -> Result<(), Broken>;
}

/// What a device works with.
pub(crate) struct Io<'a> {
    pub(crate) mem: &'a GuestMemory,
    pub(crate) queues: &'a mut [Queue],
    pub(crate) interrupt: &'a Interrupt,
    kicks: &'a [EventFd],
    /// Whether the driver is ready and has kept to the rules. Where not, the queues are not to be touched.
    pub(crate) live: bool,
}

impl Io<'_> {
    /// Comes back to `queue` later: the work at hand is bounded, so that no guest holds up the event loop.
    pub(crate) fn again(&self, queue: usize) {
        if let Some(kick) = self.kicks.get(queue) {
            trigger(kick);
        }
    }
}

/// What a snapshot keeps of the transport.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportStateV1 {
    /// The status register.
    pub status: u32,
    /// The features the driver has taken.
    pub driver_features: u64,
    /// Which half of the device's features is read.
    pub device_features_sel: u32,
    /// Which half of the driver's features is written.
    pub driver_features_sel: u32,
    /// Which queue the queue registers are about.
    pub queue_sel: u32,
    /// Reasons for an interrupt that the driver has not acknowledged.
    pub interrupt_status: u32,
    /// Counts changes of the configuration space.
    pub config_generation: u32,
    /// The queues.
    pub queues: Vec<QueueStateV1>,
}

/// A virtio device behind its registers.
pub(crate) struct Mmio<D> {
    mem: GuestMemory,
    interrupt: Interrupt,
    kicks: Vec<EventFd>,
    inner: Mutex<Inner<D>>,
}

struct Inner<D> {
    device: D,
    registers: Registers,
    queues: Vec<Queue>,
}

#[derive(Default)]
struct Registers {
    status: u32,
    driver_features: u64,
    device_features_sel: u32,
    driver_features_sel: u32,
    queue_sel: u32,
    config_generation: u32,
    /// Whether the log has it that the driver broke the rules.
    reported: bool,
}

impl Registers {
    fn has(&self, status: u32) -> bool {
        self.status & status != 0
    }

    fn live(&self) -> bool {
        self.has(VIRTIO_CONFIG_S_DRIVER_OK) && !self.has(VIRTIO_CONFIG_S_NEEDS_RESET | VIRTIO_CONFIG_S_FAILED)
    }
}

impl<D: VirtioDevice> Mmio<D> {
    /// A device as it is after power-on.
    pub(crate) fn new(mem: GuestMemory, device: D) -> Result<Self, DeviceError> {
        let queues = D::QUEUES.iter().map(|&size| Queue::new(size)).collect::<Result<_, _>>();
        let queues = queues.map_err(|e| DeviceError::state(D::NAME, e.to_string()))?;
        Self::build(mem, Inner { device, registers: Registers::default(), queues })
    }

    fn build(mem: GuestMemory, inner: Inner<D>) -> Result<Self, DeviceError> {
        let kicks = D::QUEUES.iter().map(|_| new_eventfd()).collect::<Result<_, _>>()?;
        Ok(Self { mem, interrupt: Interrupt::new()?, kicks, inner: Mutex::new(inner) })
    }

    /// A device as it was saved. `state` is hostile.
    pub(crate) fn restore(
        mem: GuestMemory,
        device: D,
        state: &TransportStateV1,
    ) -> Result<Self, DeviceError> {
        let inner = Inner::restore(&mem, device, state)
            .map_err(|StateError(why)| DeviceError::state(D::NAME, why))?;
        let restored = Self::build(mem, inner)?;
        restored.interrupt.set_status(state.interrupt_status);
        Ok(restored)
    }

    pub(crate) fn save(&self) -> TransportStateV1 {
        let inner = self.lock();
        TransportStateV1 {
            status: inner.registers.status,
            driver_features: inner.registers.driver_features,
            device_features_sel: inner.registers.device_features_sel,
            driver_features_sel: inner.registers.driver_features_sel,
            queue_sel: inner.registers.queue_sel,
            interrupt_status: self.interrupt.status(),
            config_generation: inner.registers.config_generation,
            queues: inner.queues.iter().map(Queue::save).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<D>> {
        // A panic elsewhere leaves registers and rings as they were between two operations at worst.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// One eventfd a queue, by which the driver says that there is something in it.
    pub(crate) fn kicks(&self) -> &[EventFd] {
        &self.kicks
    }

    /// The device itself, locked.
    pub(crate) fn device(&self) -> DeviceGuard<'_, D> {
        DeviceGuard(self.lock())
    }

    /// Works through one queue, its kick having been seen.
    pub(crate) fn process(&self, queue: usize) {
        if let Some(kick) = self.kicks.get(queue) {
            let _ = kick.read();
            self.run(|device, io| {
                if !io.live {
                    return Ok(());
                }
                let processed = device.process(queue, io);
                // What was answered before the driver broke a rule is still its own.
                for queue in io.queues.iter_mut() {
                    queue.signal(io.mem, io.interrupt)?;
                }
                processed
            });
        }
    }

    /// Lets `work` have the device and its queues. Where it finds that the driver broke the rules, the
    /// device stops until it is reset.
    pub(crate) fn run<T>(&self, work: impl FnOnce(&mut D, &mut Io<'_>) -> Result<T, Broken>) -> Option<T> {
        let mut inner = self.lock();
        let Inner { device, registers, queues } = &mut *inner;
        let mut io = Io {
            mem: &self.mem,
            queues,
            interrupt: &self.interrupt,
            kicks: &self.kicks,
            live: registers.live(),
        };
        match work(device, &mut io) {
            Ok(value) => Some(value),
            Err(broken) => {
                self.stop(registers, &broken);
                None
            }
        }
    }

    fn stop(&self, registers: &mut Registers, broken: &Broken) {
        // Once in the life of a device, so that a guest cannot flood the log.
        if !std::mem::replace(&mut registers.reported, true) {
            write_line(&format!("the {} device stopped, its driver broke the rules: {broken}", D::NAME));
        }
        registers.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
        self.interrupt.raise_config();
    }

    /// Works through all queues once more, as before a snapshot: what the driver has asked for by now is
    /// then done.
    pub(crate) fn settle(&self) {
        for queue in 0..self.kicks.len() {
            self.process(queue);
        }
    }

    /// After a restore: has the event loop look into every queue, and the driver too, as either side's
    /// last notification may have been lost with the machine that was saved.
    pub(crate) fn resume(&self) {
        let live = self.lock().registers.live();
        if live {
            self.kicks.iter().for_each(trigger);
            self.interrupt.raise_queue();
        }
    }

    /// Notes that the configuration space is not as it was saved; [`resume`](Self::resume) tells the driver.
    pub(crate) fn config_changed(&self) {
        let mut inner = self.lock();
        inner.registers.config_generation = inner.registers.config_generation.wrapping_add(1);
        self.interrupt.note_config();
    }

    fn read_register(&self, offset: u32) -> u32 {
        if offset == VIRTIO_MMIO_INTERRUPT_STATUS {
            return self.interrupt.status();
        }
        self.lock().read_register(offset)
    }

    fn write_register(&self, offset: u32, value: u32) {
        match offset {
            VIRTIO_MMIO_INTERRUPT_ACK => self.interrupt.acknowledge(value),
            VIRTIO_MMIO_QUEUE_NOTIFY => {
                if let Some(kick) = self.kicks.get(value as usize) {
                    trigger(kick);
                }
            }
            VIRTIO_MMIO_STATUS => self.write_status(value),
            _ => self.lock().write_register(offset, value),
        }
    }

    /// The status machine (section 2.1): the driver only ever adds bits, and zero resets the device.
    fn write_status(&self, value: u32) {
        let mut inner = self.lock();
        if value == 0 {
            inner.reset();
            self.interrupt.set_status(0);
            return;
        }
        let added = value & DRIVER_STATUS & !inner.registers.status;
        inner.registers.status |= added & !(VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK);
        if added & VIRTIO_CONFIG_S_FEATURES_OK != 0 && inner.features_fit() {
            inner.registers.status |= VIRTIO_CONFIG_S_FEATURES_OK;
        }
        if added & VIRTIO_CONFIG_S_DRIVER_OK != 0 && inner.registers.has(VIRTIO_CONFIG_S_FEATURES_OK) {
            inner.registers.status |= VIRTIO_CONFIG_S_DRIVER_OK;
            match inner.activate(&self.mem) {
                Ok(()) => self.kicks.iter().for_each(trigger),
                Err(broken) => self.stop(&mut inner.registers, &broken),
            }
        }
    }
}

impl<D: VirtioDevice> Inner<D> {
    fn restore(mem: &GuestMemory, device: D, state: &TransportStateV1) -> Result<Self, StateError> {
        if state.status & !(DRIVER_STATUS | VIRTIO_CONFIG_S_NEEDS_RESET) != 0 {
            return Err(StateError(format!("unknown status {:#x}", state.status)));
        }
        if state.queues.len() != D::QUEUES.len() {
            return Err(StateError(format!("{} queues, not {}", state.queues.len(), D::QUEUES.len())));
        }
        let queues = state.queues.iter().zip(D::QUEUES).map(|(queue, &max)| Queue::restore(queue, max));
        let registers = Registers {
            status: state.status,
            driver_features: state.driver_features,
            device_features_sel: state.device_features_sel,
            driver_features_sel: state.driver_features_sel,
            queue_sel: state.queue_sel,
            config_generation: state.config_generation,
            reported: false,
        };
        let mut inner = Self { device, registers, queues: queues.collect::<Result<_, _>>()? };
        inner.resume(mem)?;
        Ok(inner)
    }

    /// Brings a restored device to where its status says it was.
    fn resume(&mut self, mem: &GuestMemory) -> Result<(), StateError> {
        if self.registers.has(VIRTIO_CONFIG_S_FEATURES_OK) && !self.features_fit() {
            let features = self.registers.driver_features;
            return Err(StateError(format!("features {features:#x} are not among those offered")));
        }
        if self.registers.live() {
            if !self.registers.has(VIRTIO_CONFIG_S_FEATURES_OK) {
                return Err(StateError("a driver that is ready without features".into()));
            }
            self.activate(mem).map_err(|broken| StateError(broken.to_string()))?;
        }
        Ok(())
    }

    fn offered(&self) -> u64 {
        TRANSPORT_FEATURES | self.device.features()
    }

    /// Whether the driver has taken what we offer, and not the legacy interface.
    fn features_fit(&self) -> bool {
        let taken = self.registers.driver_features;
        taken & !self.offered() == 0 && taken & 1 << VIRTIO_F_VERSION_1 != 0
    }

    fn activate(&mut self, mem: &GuestMemory) -> Result<(), Broken> {
        let features = self.registers.driver_features;
        for queue in &mut self.queues {
            queue.activate(mem, features & 1 << VIRTIO_RING_F_EVENT_IDX != 0)?;
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.registers = Registers {
            config_generation: self.registers.config_generation,
            reported: self.registers.reported,
            ..Registers::default()
        };
        self.queues.iter_mut().for_each(Queue::reset);
        self.device.reset();
    }

    fn read_register(&self, offset: u32) -> u32 {
        let registers = &self.registers;
        let queue = self.queues.get(registers.queue_sel as usize);
        match offset {
            VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            VIRTIO_MMIO_VERSION => VERSION,
            VIRTIO_MMIO_DEVICE_ID => D::ID,
            VIRTIO_MMIO_VENDOR_ID => VENDOR,
            VIRTIO_MMIO_DEVICE_FEATURES => word(self.offered(), registers.device_features_sel),
            VIRTIO_MMIO_QUEUE_NUM_MAX => queue.map_or(0, |queue| u32::from(queue.max_size())),
            VIRTIO_MMIO_QUEUE_READY => queue.map_or(0, |queue| u32::from(queue.ready())),
            VIRTIO_MMIO_STATUS => registers.status,
            // All ones: there is no shared memory.
            VIRTIO_MMIO_SHM_LEN_LOW..=VIRTIO_MMIO_SHM_BASE_HIGH => u32::MAX,
            VIRTIO_MMIO_CONFIG_GENERATION => registers.config_generation,
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u32, value: u32) {
        match offset {
            VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.registers.device_features_sel = value,
            VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.registers.driver_features_sel = value,
            VIRTIO_MMIO_DRIVER_FEATURES => self.write_features(value),
            VIRTIO_MMIO_QUEUE_SEL => self.registers.queue_sel = value,
            _ => self.write_queue_register(offset, value),
        }
    }

    fn write_features(&mut self, value: u32) {
        if self.registers.has(VIRTIO_CONFIG_S_FEATURES_OK) || self.registers.driver_features_sel > 1 {
            return;
        }
        let shift = 32 * self.registers.driver_features_sel;
        let kept = self.registers.driver_features & !(u64::from(u32::MAX) << shift);
        self.registers.driver_features = kept | u64::from(value) << shift;
    }

    /// Queues are laid out between `FEATURES_OK` and `DRIVER_OK`; afterwards one can only be switched off.
    fn write_queue_register(&mut self, offset: u32, value: u32) {
        let registers = &self.registers;
        let Some(queue) = self.queues.get_mut(registers.queue_sel as usize) else { return };
        let running = registers.has(VIRTIO_CONFIG_S_DRIVER_OK);
        let open = registers.has(VIRTIO_CONFIG_S_FEATURES_OK) && !running && !queue.ready();
        let ring = queue.ring_mut();
        match offset {
            VIRTIO_MMIO_QUEUE_READY if value == 0 || !running => ring.set_ready(value == 1),
            _ if !open => {}
            VIRTIO_MMIO_QUEUE_NUM => ring.set_size(u16::try_from(value).unwrap_or(0)),
            VIRTIO_MMIO_QUEUE_DESC_LOW => ring.set_desc_table_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_DESC_HIGH => ring.set_desc_table_address(None, Some(value)),
            VIRTIO_MMIO_QUEUE_AVAIL_LOW => ring.set_avail_ring_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_AVAIL_HIGH => ring.set_avail_ring_address(None, Some(value)),
            VIRTIO_MMIO_QUEUE_USED_LOW => ring.set_used_ring_address(Some(value), None),
            VIRTIO_MMIO_QUEUE_USED_HIGH => ring.set_used_ring_address(None, Some(value)),
            _ => {}
        }
    }
}

/// The half of `features` that a selector register chooses.
fn word(features: u64, selector: u32) -> u32 {
    match selector {
        0 => features as u32,
        1 => (features >> 32) as u32,
        _ => 0,
    }
}

/// A locked device.
pub(crate) struct DeviceGuard<'a, D>(MutexGuard<'a, Inner<D>>);

impl<D> std::ops::Deref for DeviceGuard<'_, D> {
    type Target = D;
    fn deref(&self) -> &D {
        &self.0.device
    }
}

impl<D> std::ops::DerefMut for DeviceGuard<'_, D> {
    fn deref_mut(&mut self) -> &mut D {
        &mut self.0.device
    }
}

/// A device's registers, whatever the device.
pub(crate) trait Window: Send + Sync {
    /// Reads at `offset` of the window. What is not a register reads as zero.
    fn read(&self, offset: u32, data: &mut [u8]);
    /// Writes at `offset` of the window. What is not a register is ignored.
    fn write(&self, offset: u32, data: &[u8]);
}

impl<D: VirtioDevice> Window for Mmio<D> {
    fn read(&self, offset: u32, data: &mut [u8]) {
        data.fill(0);
        if let Some(at) = offset.checked_sub(VIRTIO_MMIO_CONFIG) {
            let inner = self.lock();
            let config = inner.device.config().get(at as usize..).unwrap_or_default();
            let n = config.len().min(data.len());
            data[..n].copy_from_slice(&config[..n]);
        } else if let Ok(data) = <&mut [u8; 4]>::try_from(data) {
            *data = self.read_register(offset).to_le_bytes();
        }
    }

    fn write(&self, offset: u32, data: &[u8]) {
        // No device here has a configuration that can be written.
        if let (true, Ok(data)) = (offset < VIRTIO_MMIO_CONFIG, <[u8; 4]>::try_from(data)) {
            self.write_register(offset, u32::from_le_bytes(data));
        }
    }
}

#[cfg(test)]
mod tests;
