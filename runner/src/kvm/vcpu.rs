//! One virtual CPU: running it, and stopping it between two instructions.

use super::host::Host;
use super::{KvmError, Named, VcpuState};
use crate::bus::Bus;
use crate::control::Ended;
use crate::memory::Memory;
use kvm_bindings::{CpuId, kvm_cpuid_entry2, kvm_regs, kvm_sregs};
use kvm_ioctls::{VcpuExit, VcpuFd};
use std::cell::Cell;
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

/// A CPU that is not running.
#[derive(Debug)]
pub struct Vcpu {
    fd: VcpuFd,
    index: u32,
    /// What the guest was told this CPU can do.
    cpuid: Vec<kvm_cpuid_entry2>,
    /// Whether KVM has run it at all.
    entered: bool,
    /// What the guest reads and writes: it must not be unmapped while this can run.
    _memory: Memory,
}

/// Why a CPU stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was asked to; it stands between two instructions with nothing half done.
    Paused,
    /// The guest ended the machine.
    Ended(Ended),
    /// KVM had no memory for the very first entry. Some kernels fail so for ever when a signal arrives
    /// at the wrong moment; a new VM works.
    FirstRunRefused,
    /// It cannot go on; one sentence that says why.
    Failed(String),
}

/// Asks CPUs to stop. Shared by all of a machine.
///
/// The flag alone does not reach a CPU inside the guest: [`Pause::signal`] sent to its thread does.
#[derive(Debug, Default)]
pub struct Pause(AtomicBool);

thread_local! {
    /// The running CPU's `immediate_exit`, for the signal handler.
    static IMMEDIATE_EXIT: Cell<*mut u8> = const { Cell::new(null_mut()) };
}

/// Makes KVM leave the guest, or not enter it if the signal came just before: no wake-up is lost.
extern "C" fn leave_guest(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let flag = IMMEDIATE_EXIT.get();
    if !flag.is_null() {
        // SAFETY: not null means that this thread is inside `Vcpu::run`, which holds the mapping.
        unsafe { flag.write_volatile(1) };
    }
}

impl Pause {
    /// The signal that makes a thread look at the flag.
    #[must_use]
    pub fn signal() -> i32 {
        libc::SIGRTMIN()
    }

    /// Installs the handler of [`Pause::signal`]; once a process.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn install() -> std::io::Result<()> {
        vmm_sys_util::signal::register_signal_handler(Self::signal(), leave_guest)
            .map_err(|e| std::io::Error::from_raw_os_error(e.errno()))
    }

    /// Raises the flag; the signals come after.
    pub fn request(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn requested(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Points the signal handler at a CPU while this lives.
struct Reachable;

impl Reachable {
    fn new(fd: &mut VcpuFd) -> Self {
        IMMEDIATE_EXIT.set(ptr::from_mut(&mut fd.get_kvm_run().immediate_exit));
        Self
    }
}

impl Drop for Reachable {
    fn drop(&mut self) {
        IMMEDIATE_EXIT.set(null_mut());
    }
}

impl Vcpu {
    pub(super) fn new(fd: VcpuFd, index: u32, memory: Memory) -> Self {
        Self { fd, index, cpuid: Vec::new(), entered: false, _memory: memory }
    }

    /// Its number, 0 for the one that boots.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Tells the guest what this CPU can do.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn set_cpuid(&mut self, entries: Vec<kvm_cpuid_entry2>) -> Result<(), KvmError> {
        let cpuid = CpuId::from_entries(&entries).map_err(|_| KvmError::TooMany("KVM_SET_CPUID2"))?;
        self.fd.set_cpuid2(&cpuid).named("KVM_SET_CPUID2")?;
        self.cpuid = entries;
        Ok(())
    }

    /// Reads general and special registers.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn registers(&self) -> Result<(kvm_regs, kvm_sregs), KvmError> {
        Ok((self.fd.get_regs().named("KVM_GET_REGS")?, self.fd.get_sregs().named("KVM_GET_SREGS")?))
    }

    /// Writes general and special registers.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn set_registers(&self, regs: &kvm_regs, sregs: &kvm_sregs) -> Result<(), KvmError> {
        self.fd.set_sregs(sregs).named("KVM_SET_SREGS")?;
        self.fd.set_regs(regs).named("KVM_SET_REGS")
    }

    /// Frequency of its time stamp counter in kHz.
    ///
    /// # Errors
    /// KVM refuses.
    pub fn tsc_khz(&self) -> Result<u32, KvmError> {
        self.fd.get_tsc_khz().named("KVM_GET_TSC_KHZ")
    }

    /// For model-specific registers.
    pub(crate) fn fd(&self) -> &VcpuFd {
        &self.fd
    }

    /// Reads what a snapshot keeps.
    ///
    /// # Errors
    /// KVM refuses one of the calls.
    pub fn save(&self, host: &Host) -> Result<VcpuState, KvmError> {
        VcpuState::save(&self.fd, self.cpuid.clone(), host)
    }

    /// Puts back what [`Vcpu::save`] read, into a new CPU.
    ///
    /// # Errors
    /// KVM refuses one of the calls, or a model-specific register.
    pub fn restore(&mut self, state: &VcpuState, host: &Host) -> Result<(), KvmError> {
        state.set_tsc_frequency(&self.fd)?;
        self.set_cpuid(state.cpuid.clone())?;
        state.restore(&self.fd, host)
    }

    /// Runs the guest on this thread until it is paused or cannot go on.
    pub fn run(&mut self, bus: &dyn Bus, pause: &Pause) -> Stop {
        let reachable = Reachable::new(&mut self.fd);
        let mut stop = None;
        while stop.is_none() && !pause.requested() {
            stop = self.enter(bus);
        }
        let stop = stop.or_else(|| self.complete(bus)).unwrap_or(Stop::Paused);
        drop(reachable);
        self.fd.set_kvm_immediate_exit(0);
        stop
    }

    /// Lets KVM finish an instruction whose device access it still holds, without starting the next.
    fn complete(&mut self, bus: &dyn Bus) -> Option<Stop> {
        loop {
            self.fd.set_kvm_immediate_exit(1);
            match self.fd.run() {
                Ok(exit) => {
                    if let Some(stop) = handle(exit, bus) {
                        return Some(self.explain(stop));
                    }
                }
                Err(e) if e.errno() == libc::EINTR => return None,
                Err(e) if e.errno() == libc::EAGAIN => {}
                Err(e) => return Some(self.explain(Stop::Failed(format!("KVM_RUN: {e}")))),
            }
        }
    }

    /// Enters the guest once.
    fn enter(&mut self, bus: &dyn Bus) -> Option<Stop> {
        let stop = match self.fd.run() {
            Ok(exit) => {
                self.entered = true;
                handle(exit, bus)
            }
            Err(e) => refused(e, self.entered),
        };
        stop.map(|stop| self.explain(stop))
    }

    /// Adds to a failure where it happened.
    fn explain(&self, stop: Stop) -> Stop {
        let Stop::Failed(why) = stop else { return stop };
        let at = self.fd.get_regs().map_or_else(|_| "unknown".into(), |r| format!("{:#x}", r.rip));
        Stop::Failed(format!("CPU {} stopped at instruction {at}: {why}", self.index))
    }
}

/// What KVM's refusal to run means for a CPU that has or has not run before.
fn refused(error: kvm_ioctls::Error, entered: bool) -> Option<Stop> {
    match error.errno() {
        libc::EINTR | libc::EAGAIN => None,
        libc::ENOMEM if !entered => Some(Stop::FirstRunRefused),
        _ => Some(Stop::Failed(format!("KVM_RUN: {error}"))),
    }
}

/// Does what the guest asked for; an answer means that it cannot go on.
fn handle(exit: VcpuExit<'_>, bus: &dyn Bus) -> Option<Stop> {
    match exit {
        VcpuExit::MmioRead(address, data) => {
            data.fill(0xff);
            bus.mmio_read(address, data);
        }
        VcpuExit::MmioWrite(address, data) => bus.mmio_write(address, data),
        VcpuExit::IoIn(port, data) => {
            data.fill(0xff);
            bus.pio_read(port, data);
        }
        VcpuExit::IoOut(port, data) => return bus.pio_write(port, data).map(Stop::Ended),
        VcpuExit::Intr | VcpuExit::IrqWindowOpen | VcpuExit::Hlt => {}
        // A triple fault: what a processor does then is to reset.
        VcpuExit::Shutdown => return Some(Stop::Ended(Ended::Reset)),
        VcpuExit::FailEntry(reason, _) => {
            return Some(Stop::Failed(format!(
                "the processor refused to enter the guest (reason {reason:#x})"
            )));
        }
        VcpuExit::InternalError => return Some(Stop::Failed("KVM cannot emulate an instruction".into())),
        other => return Some(Stop::Failed(format!("KVM reports {other:?}, which should not happen"))),
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvm_ioctls::Error;

    #[test]
    fn only_a_first_run_without_memory_calls_for_a_new_machine() {
        assert_eq!(refused(Error::new(libc::ENOMEM), false), Some(Stop::FirstRunRefused));
        let later = refused(Error::new(libc::ENOMEM), true);
        assert!(matches!(later, Some(Stop::Failed(why)) if why.starts_with("KVM_RUN: ")));
        assert_eq!(refused(Error::new(libc::EINTR), false), None);
        assert_eq!(refused(Error::new(libc::EAGAIN), true), None);
    }
}
