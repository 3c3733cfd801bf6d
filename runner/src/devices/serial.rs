//! The serial console: a 16550 UART at COM1, output only.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vm_superio::Trigger;
use vm_superio::serial::{NoEvents, SerialState};
use vmm_sys_util::eventfd::EventFd;

use super::console::Console;
use super::interrupt::trigger;
use super::{DeviceError, new_eventfd};

/// Interrupt enable register: when the transmitter is empty.
const IER_THR_EMPTY: u8 = 0b10;
/// Interrupt identification register: none is pending.
const IIR_NONE: u8 = 0b01;
/// Interrupt identification register: the transmitter is empty.
const IIR_THR_EMPTY: u8 = 0b10;

/// What a snapshot keeps of the UART: its registers. Any value of theirs is a valid one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SerialStateV1 {
    /// Divisor latch, low and high byte.
    pub baud_divisor: [u8; 2],
    /// Interrupt enable register.
    pub interrupt_enable: u8,
    /// Interrupt identification register.
    pub interrupt_identification: u8,
    /// Line control register.
    pub line_control: u8,
    /// Line status register.
    pub line_status: u8,
    /// Modem control register.
    pub modem_control: u8,
    /// Modem status register.
    pub modem_status: u8,
    /// Scratch register.
    pub scratch: u8,
    /// What the guest sent to itself in loopback mode and has not read, at most 64 bytes.
    pub in_buffer: Vec<u8>,
}

struct Line(EventFd);

impl Trigger for Line {
    type E = io::Error;
    fn trigger(&self) -> io::Result<()> {
        trigger(&self.0);
        Ok(())
    }
}

struct Output(Console);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            self.0.push(byte);
        }
        Ok(bytes.len())
    }

    /// The UART flushes after each byte; the event loop knows better when.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Uart = vm_superio::Serial<Line, NoEvents, Output>;

/// The UART, shared by the vCPUs and the event loop.
pub(crate) struct Serial {
    uart: Mutex<Uart>,
    line: EventFd,
    dirty: EventFd,
}

impl Serial {
    /// A UART as it is after power-on, its output going to the end of `log`.
    pub(crate) fn new(log: File) -> Result<Self, DeviceError> {
        Self::build(log, &SerialState::default())
    }

    /// A UART as it was saved. A transmit interrupt is made pending where the driver waits for one, as
    /// the one it waits for may have been lost; [`resume`](Self::resume) raises it.
    pub(crate) fn restore(log: File, state: &SerialStateV1) -> Result<Self, DeviceError> {
        let mut identification = state.interrupt_identification;
        if state.interrupt_enable & IER_THR_EMPTY != 0 {
            identification = identification & !IIR_NONE | IIR_THR_EMPTY;
        }
        let [baud_divisor_low, baud_divisor_high] = state.baud_divisor;
        let state = SerialState {
            baud_divisor_low,
            baud_divisor_high,
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            in_buffer: state.in_buffer.clone(),
        };
        Self::build(log, &state)
    }

    fn build(log: File, state: &SerialState) -> Result<Self, DeviceError> {
        let clone = |event: &EventFd| event.try_clone().map_err(|e| DeviceError::io("sharing an eventfd", e));
        let line = new_eventfd()?;
        let console = Console::new(log)?;
        let dirty = clone(console.dirty())?;
        let uart = Uart::from_state(state, Line(clone(&line)?), NoEvents, Output(console))
            .map_err(|e| DeviceError::state("serial", e.to_string()))?;
        Ok(Self { uart: Mutex::new(uart), line, dirty })
    }

    fn lock(&self) -> MutexGuard<'_, Uart> {
        self.uart.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn save(&self) -> SerialStateV1 {
        let state = self.lock().state();
        SerialStateV1 {
            baud_divisor: [state.baud_divisor_low, state.baud_divisor_high],
            interrupt_enable: state.interrupt_enable,
            interrupt_identification: state.interrupt_identification,
            line_control: state.line_control,
            line_status: state.line_status,
            modem_control: state.modem_control,
            modem_status: state.modem_status,
            scratch: state.scratch,
            in_buffer: state.in_buffer,
        }
    }

    /// The eventfd that KVM turns into an interrupt.
    pub(crate) fn line(&self) -> &EventFd {
        &self.line
    }

    /// Readable when [`drain`](Self::drain) has something to write.
    pub(crate) fn dirty(&self) -> &EventFd {
        &self.dirty
    }

    /// Writes out what the guest has written.
    pub(crate) fn drain(&self) {
        self.lock().writer_mut().0.drain();
    }

    /// Writes out the rest.
    ///
    /// # Errors
    /// Some output was lost, now or before.
    pub(crate) fn close(&self) -> io::Result<()> {
        self.lock().writer_mut().0.close()
    }

    /// After a restore: has the driver look for what it may have missed.
    pub(crate) fn resume(&self) {
        trigger(&self.line);
    }

    /// A read of register `offset`, 0 to 7.
    pub(crate) fn read(&self, offset: u8) -> u8 {
        self.lock().read(offset)
    }

    /// A write to register `offset`, 0 to 7.
    pub(crate) fn write(&self, offset: u8, value: u8) {
        // Neither output nor interrupt can fail (see `Console` and `Line`).
        let _ = self.lock().write(offset, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_uart_comes_back_the_same_with_its_transmit_interrupt_pending() {
        let serial = Serial::new(tempfile::tempfile().unwrap()).unwrap();
        serial.write(7, 0x5a);
        serial.write(1, 0b1111);
        // The driver reads the interrupt away and then waits for the next.
        serial.read(2);
        let saved = serial.save();
        let restored = Serial::restore(tempfile::tempfile().unwrap(), &saved).unwrap();
        assert_eq!(restored.read(7), 0x5a);
        assert_eq!(restored.read(2) & 0xf, IIR_THR_EMPTY);
        assert!(restored.line().read().is_ok());
        assert_eq!(restored.save(), saved);
    }

    #[test]
    fn a_saved_uart_with_too_long_an_input_is_refused() {
        let mut saved = Serial::new(tempfile::tempfile().unwrap()).unwrap().save();
        saved.in_buffer = vec![0; 65];
        assert!(Serial::restore(tempfile::tempfile().unwrap(), &saved).is_err());
    }
}
