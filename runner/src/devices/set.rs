//! All devices of a machine, and their common event loop.

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use vmm_sys_util::eventfd::EventFd;

use super::block::disk::{Disk, DiskConfig};
use super::block::{Block, BlockStateV1};
use super::mmio::{DeviceGuard, Mmio, Window};
use super::rng::{Rng, RngStateV1};
use super::serial::{Serial, SerialStateV1};
use super::vmgenid::{VmGenId, VmGenIdStateV1};
use super::vsock::{Vsock, VsockStateV1};
use super::{DeviceError, GuestMemory, i8042};
use crate::bus::Bus;
use crate::control::Ended;
use crate::layout::{
    SERIAL_GSI, SERIAL_PORT, SLEEP_CONTROL, SLEEP_STATUS, SLEEP_TYPE_OFF, VIRTIO_MMIO, VIRTIO_MMIO_GSI,
    VIRTIO_MMIO_STRIDE, VMGENID, VMGENID_GSI,
};

/// How many virtio windows there are; their order is part of every snapshot.
pub const WINDOWS: usize = 3;

const BLOCK: u64 = 0;
const VSOCK: u64 = 1;
const RNG: u64 = 2;
/// Epoll tokens: a queue's is its device's number and its own; these are beyond all of those.
const CONSOLE: u64 = 1 << 32;
const SOCKETS: u64 = 2 << 32;
const RETRY: u64 = 3 << 32;

/// What the devices of a machine are made of.
pub struct DeviceConfig {
    /// The root disk.
    pub disk: DiskConfig,
    /// Takes the serial console's output.
    pub console: File,
    /// New in every life of a machine.
    pub generation: [u8; 16],
}

/// What a snapshot keeps of the devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSetStateV1 {
    /// The root disk's device.
    pub block: BlockStateV1,
    /// Streams between host and guest.
    pub vsock: VsockStateV1,
    /// Random numbers.
    pub rng: RngStateV1,
    /// The console.
    pub serial: SerialStateV1,
    /// The generation identifier.
    pub vmgenid: VmGenIdStateV1,
}

/// What is to be registered with KVM for one device.
pub struct Wiring<'a> {
    /// Interrupt line, raised by `interrupt`.
    pub gsi: u32,
    /// Becomes the interrupt (irqfd).
    pub interrupt: &'a EventFd,
    /// Guest physical address whose write of queue number N triggers `kicks[N]` (ioeventfd).
    pub notify: u64,
    /// One a queue; none where the device has no queues.
    pub kicks: &'a [EventFd],
}

/// The devices of a machine.
pub struct DeviceSet {
    block: Mmio<Block>,
    vsock: Mmio<Vsock>,
    rng: Mmio<Rng>,
    serial: Serial,
    vmgenid: VmGenId,
    /// Runs out when a request that found no room is to be tried again.
    retry: OwnedFd,
    epoll: OwnedFd,
}

/// The root disk, for as long as no request of the guest is carried out.
pub struct DiskGuard<'a>(DeviceGuard<'a, Block>);

impl std::ops::Deref for DiskGuard<'_> {
    type Target = Disk;
    fn deref(&self) -> &Disk {
        self.0.disk()
    }
}

/// How long a request that found no room waits before it is tried again: half a second, once.
const RETRY_AFTER: Itimerspec = Itimerspec {
    it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
    it_value: Timespec { tv_sec: 0, tv_nsec: 500_000_000 },
};

impl DeviceSet {
    /// The devices of a machine that is switched on.
    ///
    /// # Errors
    /// Where the configuration does not fit together, or the host refuses something.
    pub fn new(mem: &GuestMemory, config: DeviceConfig) -> Result<Self, DeviceError> {
        let vsock = Vsock::new(stream_generation(&config.generation), false)?;
        Self::build(
            Mmio::new(mem.clone(), Block::new(Disk::new(config.disk)?))?,
            Mmio::new(mem.clone(), vsock)?,
            Mmio::new(mem.clone(), Rng::default())?,
            Serial::new(config.console)?,
            VmGenId::new(mem, VMGENID, config.generation)?,
        )
    }

    /// The devices as they were saved. `state` is hostile. Nothing is told to the guest before
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    /// Where the state does not fit the configuration, or the host refuses something.
    pub fn restore(
        mem: &GuestMemory,
        config: DeviceConfig,
        state: &DeviceSetStateV1,
    ) -> Result<Self, DeviceError> {
        let disk = Disk::new(config.disk)?;
        let grown = state.block.check_size(&disk)?;
        let block = Mmio::restore(mem.clone(), Block::new(disk), &state.block.transport)?;
        if grown {
            block.config_changed();
        }
        let vsock = Vsock::new(stream_generation(&config.generation), true)?;
        Self::build(
            block,
            Mmio::restore(mem.clone(), vsock, &state.vsock.transport)?,
            Mmio::restore(mem.clone(), Rng::default(), &state.rng.transport)?,
            Serial::restore(config.console, &state.serial)?,
            VmGenId::new(mem, state.vmgenid.address, config.generation)?,
        )
    }

    fn build(
        block: Mmio<Block>,
        vsock: Mmio<Vsock>,
        rng: Mmio<Rng>,
        serial: Serial,
        vmgenid: VmGenId,
    ) -> Result<Self, DeviceError> {
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).map_err(|e| DeviceError::io("making an event loop", e))?;
        let add = |fd: BorrowedFd<'_>, token: u64| {
            epoll::add(&epoll, fd, EventData::new_u64(token), EventFlags::IN)
                .map_err(|e| DeviceError::io("adding to the event loop", e))
        };
        for (device, kicks) in [(BLOCK, block.kicks()), (VSOCK, vsock.kicks()), (RNG, rng.kicks())] {
            for (queue, kick) in kicks.iter().enumerate() {
                add(borrow(kick), device << 8 | queue as u64)?;
            }
        }
        add(borrow(serial.dirty()), CONSOLE)?;
        add(vsock.device().epoll_fd(), SOCKETS)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let retry = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|e| DeviceError::io("making a timer", e))?;
        add(retry.as_fd(), RETRY)?;
        Ok(Self { block, vsock, rng, serial, vmgenid, retry, epoll })
    }

    /// What every device keeps. Requests made so far are carried out first; the CPUs are paused.
    pub fn save(&self) -> DeviceSetStateV1 {
        // A request that waited for room would be in neither machine.
        self.block.run(|block, _| {
            block.stop_waiting();
            Ok(())
        });
        self.block.settle();
        self.vsock.settle();
        self.rng.settle();
        self.serial.drain();
        DeviceSetStateV1 {
            block: BlockStateV1 { transport: self.block.save(), bytes: self.disk().bytes() },
            vsock: VsockStateV1 { transport: self.vsock.save() },
            rng: RngStateV1 { transport: self.rng.save() },
            serial: self.serial.save(),
            vmgenid: self.vmgenid.save(),
        }
    }

    /// What to register with KVM.
    pub fn wiring(&self) -> impl Iterator<Item = Wiring<'_>> {
        let virtio = [
            (self.block.interrupt().line(), self.block.kicks()),
            (self.vsock.interrupt().line(), self.vsock.kicks()),
            (self.rng.interrupt().line(), self.rng.kicks()),
        ];
        let virtio = virtio.into_iter().zip(0_u32..).map(|((interrupt, kicks), i)| Wiring {
            gsi: VIRTIO_MMIO_GSI + i,
            interrupt,
            notify: VIRTIO_MMIO
                + u64::from(i) * VIRTIO_MMIO_STRIDE
                + u64::from(virtio_bindings::bindings::virtio_mmio::VIRTIO_MMIO_QUEUE_NOTIFY),
            kicks,
        });
        let plain = [(SERIAL_GSI, self.serial.line()), (VMGENID_GSI, self.vmgenid.line())];
        virtio.chain(plain.map(|(gsi, interrupt)| Wiring { gsi, interrupt, notify: 0, kicks: &[] }))
    }

    /// After a restore, when KVM's state is in place and the interrupts are wired: tells the guest that it
    /// has a new life, and looks for what was lost with the old one.
    pub fn resume(&self) {
        self.vmgenid.resume();
        self.serial.resume();
        self.block.resume();
        self.vsock.resume();
        self.rng.resume();
    }

    /// Writes out the rest of the console.
    ///
    /// # Errors
    /// Some of it was lost, now or before.
    pub fn close_console(&self) -> std::io::Result<()> {
        self.serial.close()
    }

    /// Readable when [`handle_events`](Self::handle_events) has something to do.
    pub fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Does what there is to do, without waiting.
    ///
    /// # Errors
    /// Where the host's event loop fails.
    pub fn handle_events(&self) -> Result<(), DeviceError> {
        let mut events = [const { MaybeUninit::uninit() }; 32];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, &mut events, Some(&now)) {
            Ok((events, _)) => events.iter().for_each(|event| self.handle(event.data.u64())),
            Err(Errno::INTR) => {}
            Err(e) => return Err(DeviceError::io("waiting for device events", e)),
        }
        Ok(())
    }

    fn handle(&self, token: u64) {
        let queue = (token & 0xff) as usize;
        match token {
            CONSOLE => self.serial.drain(),
            SOCKETS => self.serve_sockets(),
            RETRY => {
                // That it has run out is known.
                let _ = rustix::io::read(&self.retry, &mut [0; 8]);
                self.process_block(0);
            }
            _ => match token >> 8 {
                BLOCK => self.process_block(queue),
                VSOCK => self.vsock.process(queue),
                _ => self.rng.process(queue),
            },
        }
    }

    fn process_block(&self, queue: usize) {
        self.block.process(queue);
        if self.block.device().is_stalled() {
            // It cannot fail: the time is a good one.
            let _ = timerfd_settime(&self.retry, TimerfdTimerFlags::empty(), &RETRY_AFTER);
        }
    }

    fn serve_sockets(&self) {
        self.vsock.run(|vsock, io| {
            vsock.socket_events();
            vsock.send(io)?;
            io.queues[0].signal(io.mem, io.interrupt)
        });
    }

    /// Joins `stream` to a new stream to vsock port `port` in the guest, as soon as somebody listens
    /// there; closed where that is impossible.
    pub fn connect(&self, port: u32, stream: UnixStream) {
        self.vsock.run(|vsock, io| {
            // A stream that is dropped is closed: the caller sees that.
            if vsock.connect(port, stream).is_ok() {
                vsock.send(io)?;
                io.queues[0].signal(io.mem, io.interrupt)?;
            }
            Ok(())
        });
    }

    /// The root disk.
    pub fn disk(&self) -> DiskGuard<'_> {
        DiskGuard(self.block.device())
    }

    fn window(&self, address: u64) -> Option<(&dyn Window, u32)> {
        let at = address.checked_sub(VIRTIO_MMIO)?;
        let window: &dyn Window = match at / VIRTIO_MMIO_STRIDE {
            BLOCK => &self.block,
            VSOCK => &self.vsock,
            RNG => &self.rng,
            _ => return None,
        };
        Some((window, (at % VIRTIO_MMIO_STRIDE) as u32))
    }
}

/// The generation as the agent is told it: half of the number the kernel sees, which is random all over.
fn stream_generation(generation: &[u8; 16]) -> u64 {
    let mut half = [0; 8];
    half.copy_from_slice(&generation[..8]);
    u64::from_le_bytes(half)
}

fn borrow(event: &EventFd) -> BorrowedFd<'_> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open for as long as `event`, which the result borrows.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

impl Bus for DeviceSet {
    fn mmio_read(&self, address: u64, data: &mut [u8]) {
        match self.window(address) {
            Some((window, offset)) => window.read(offset, data),
            None => data.fill(0xff),
        }
    }

    fn mmio_write(&self, address: u64, data: &[u8]) {
        if let Some((window, offset)) = self.window(address) {
            window.write(offset, data);
        }
    }

    fn pio_read(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        let Some(first) = data.first_mut() else { return };
        match port {
            SERIAL_PORT..=SERIAL_PORT_END => *first = self.serial.read((port - SERIAL_PORT) as u8),
            i8042::COMMAND | i8042::DATA => *first = i8042::read(port),
            SLEEP_CONTROL | SLEEP_STATUS => *first = 0,
            _ => {}
        }
    }

    fn pio_write(&self, port: u16, data: &[u8]) -> Option<Ended> {
        let value = *data.first()?;
        match port {
            SERIAL_PORT..=SERIAL_PORT_END => self.serial.write((port - SERIAL_PORT) as u8, value),
            i8042::COMMAND if i8042::write(port, value) => return Some(Ended::Reset),
            SLEEP_CONTROL if is_off(value) => return Some(Ended::PowerOff),
            _ => {}
        }
        None
    }
}

const SERIAL_PORT_END: u16 = SERIAL_PORT + 7;

/// Sleep control register (ACPI 6.5, section 4.8.3.7): `SLP_EN` is bit 5, `SLP_TYP` bits 2 to 4.
fn is_off(value: u8) -> bool {
    value & 1 << 5 != 0 && value >> 2 & 7 == SLEEP_TYPE_OFF
}

#[cfg(test)]
mod tests;
