//! The runner: a program around `smolpack_runner::process`, started by `smolpack_runner::client`.

use rustix::net::SocketType;
use rustix::net::sockopt::socket_type;
use smolpack_runner::confine::confine;
use smolpack_runner::control::CONTROL_FD;
use smolpack_runner::ipc::Channel;
use smolpack_runner::process;
use std::ffi::CString;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Ok(name) = CString::new("smolpack-runner") {
        // A name in process lists; without it the program's is the number of a descriptor.
        let _ = rustix::thread::set_name(&name);
    }
    // SAFETY: standard input is open: where it was closed, std has opened /dev/null in its place.
    let input = unsafe { BorrowedFd::borrow_raw(CONTROL_FD) };
    if socket_type(input) != Ok(SocketType::SEQPACKET) {
        eprintln!("smolpack-runner: there is no control socket; this program is started by smolpack");
        return ExitCode::from(125);
    }
    if let Err(e) = confine() {
        eprintln!("smolpack-runner: cannot drop what it does not need: {e}");
        return ExitCode::from(125);
    }
    // SAFETY: the descriptor is open and was handed over for this purpose; nothing here reads std's input.
    let channel = Channel::inherited(unsafe { OwnedFd::from_raw_fd(CONTROL_FD) });
    process::run(&channel);
    ExitCode::SUCCESS
}
