//! The CPUs of a machine, paused or running.
//!
//! A paused machine is one whose [`Vcpu`]s lie in a `Vec`; [`Running`] is one whose CPUs each have a
//! thread. Pausing gives the `Vec` back, so nothing can read the state of a CPU that runs.

use crate::bus::Bus;
use crate::kvm::{Pause, Stop, Vcpu};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// CPUs that run, each on its own thread. Dropping this stops them.
#[derive(Debug)]
pub struct Running {
    threads: Vec<JoinHandle<(Vcpu, Stop)>>,
    pause: Arc<Pause>,
    stopped: Receiver<Stop>,
    wake: Arc<EventFd>,
}

/// Tells the main loop that a CPU stopped.
struct Notice {
    stopped: Sender<Stop>,
    wake: Arc<EventFd>,
}

impl Notice {
    fn send(&self, stop: &Stop) {
        // Both can only fail when the main loop is gone, and then nobody wants to know.
        let _ = self.stopped.send(stop.clone());
        let _ = self.wake.write(1);
    }
}

impl Running {
    /// Starts the CPUs.
    ///
    /// # Errors
    /// The host gives no thread or event descriptor.
    pub fn start(vcpus: Vec<Vcpu>, bus: &Arc<dyn Bus>) -> io::Result<Self> {
        Pause::install()?;
        let wake = Arc::new(EventFd::new(EFD_NONBLOCK)?);
        let (sender, stopped) = mpsc::channel();
        let mut running = Self { threads: Vec::new(), pause: Arc::default(), stopped, wake };
        for vcpu in vcpus {
            let notice = Notice { stopped: sender.clone(), wake: Arc::clone(&running.wake) };
            running.threads.push(spawn(vcpu, Arc::clone(bus), Arc::clone(&running.pause), notice)?);
        }
        Ok(running)
    }

    /// Why a CPU stopped by itself, if one did.
    #[must_use]
    pub fn stopped(&self) -> Option<Stop> {
        let _ = self.wake.read();
        self.stopped.try_recv().ok()
    }

    /// Stops all CPUs between instructions and gives them back, in order.
    ///
    /// # Errors
    /// A CPU could not be paused because the machine is over, or a thread died.
    pub fn pause(mut self) -> Result<Vec<Vcpu>, Stop> {
        let mut vcpus = Vec::new();
        let mut over = None;
        for result in self.stop_threads() {
            match result {
                Some((vcpu, Stop::Paused)) => vcpus.push(vcpu),
                Some((_, stop)) => over = over.or(Some(stop)),
                None => over = Some(Stop::Failed("a CPU's thread died".into())),
            }
        }
        match over {
            Some(stop) => Err(stop),
            None => Ok(vcpus),
        }
    }

    fn stop_threads(&mut self) -> Vec<Option<(Vcpu, Stop)>> {
        self.pause.request();
        for thread in &self.threads {
            // SAFETY: the thread is not joined yet, so its identifier is valid; the signal has a handler.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), Pause::signal()) };
        }
        self.threads.drain(..).map(|thread| thread.join().ok()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

/// Readable when a CPU stopped by itself.
impl AsFd for Running {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor stays open as long as `self`, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.wake.as_raw_fd()) }
    }
}

fn spawn(
    mut vcpu: Vcpu,
    bus: Arc<dyn Bus>,
    pause: Arc<Pause>,
    notice: Notice,
) -> io::Result<JoinHandle<(Vcpu, Stop)>> {
    thread::Builder::new().name(format!("vcpu{}", vcpu.index())).stack_size(256 << 10).spawn(move || {
        let stop = vcpu.run(&*bus, &pause);
        if stop != Stop::Paused {
            notice.send(&stop);
        }
        (vcpu, stop)
    })
}
