//! The loopback interface of the network namespace the caller is in.

use std::io;
use std::os::fd::AsRawFd as _;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Brings `lo` up, and with it the addresses 127.0.0.1 and `::1`.
pub fn bring_up() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zeroes is a valid ifreq: it holds numbers only.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, letter) in request.ifr_name.iter_mut().zip(c"lo".to_bytes()) {
        *place = letter_of(*letter);
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the kernel reads one ifreq, which lives until the call returns.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The C type of a letter is signed on some architectures and unsigned on others.
#[allow(clippy::cast_possible_wrap, reason = "letters of ASCII fit either way")]
const fn letter_of(byte: u8) -> libc::c_char {
    byte as libc::c_char
}
