//! The listener: vsock, which neither std nor rustix knows.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Listens on a vsock port of this machine.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Listens on `port`.
    ///
    /// # Errors
    /// Where the kernel has no vsock, or the port is taken.
    pub fn bind(port: u32) -> io::Result<Self> {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: no pointer is passed; the descriptor is owned by nobody else.
        let fd = unsafe { libc::socket(libc::AF_VSOCK, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and is ours alone.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero is a valid `sockaddr_vm`.
        let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
        address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        address.svm_cid = libc::VMADDR_CID_ANY;
        address.svm_port = port;
        let length = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
        // SAFETY: `address` is a whole `sockaddr_vm` of `length` bytes and outlives the call.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound != 0 {
            return Err(io::Error::last_os_error());
        }
        rustix::net::listen(&socket, 64)?;
        Ok(Self(socket))
    }

    /// The next stream from the host. A vsock stream reads, writes and shuts down as a UNIX one does, so
    /// that type, which std has, stands for it.
    ///
    /// Streams from inside the machine, which a loopback transport would bring, are closed: the agent
    /// runs commands as root, and any user may connect.
    ///
    /// # Errors
    /// The kernel's; the listener goes on.
    pub fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, peer) = self.accept_any()?;
            if peer == libc::VMADDR_CID_HOST {
                return Ok(stream);
            }
        }
    }

    /// The next stream and its peer's context id.
    fn accept_any(&self) -> io::Result<(UnixStream, u32)> {
        // SAFETY: all-zero is a valid `sockaddr_vm`.
        let mut peer: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
        let listener = self.0.as_raw_fd();
        // SAFETY: `peer` has `length` bytes, both outlive the call, and the kernel writes no more.
        let fd =
            unsafe { libc::accept4(listener, (&raw mut peer).cast(), &raw mut length, libc::SOCK_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and is ours alone.
        let stream = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok((stream.into(), peer.svm_cid))
    }
}
