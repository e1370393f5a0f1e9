//! Sockets that accept connections to addresses of others.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Lets a socket accept connections to any address that rules hand to it. Needs privilege over the
/// network namespace of the socket.
pub fn set(socket: impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads one number, which lives until the call returns.
    let answer = unsafe {
        libc::setsockopt(socket, libc::SOL_IP, libc::IP_TRANSPARENT, (&raw const on).cast(), length)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
