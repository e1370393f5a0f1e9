//! Signals as something to read, instead of interruptions.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

use rustix::process::Signal;

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    // SAFETY: all zeroes is a valid set of signals.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives until the call returns.
    unsafe { libc::sigemptyset(&raw mut set) };
    for &signal in signals {
        // SAFETY: the set lives until the call returns; a wrong number is refused, not followed.
        unsafe { libc::sigaddset(&raw mut set, signal.as_raw()) };
    }
    set
}

/// Blocks these signals for this process and makes them readable instead.
pub fn readable(signals: &[Signal]) -> io::Result<OwnedFd> {
    block_only(signals)?;
    let set = set_of(signals);
    // SAFETY: the set lives until the call returns; -1 asks for a new descriptor.
    let descriptor =
        unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor, and no other code has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Blocks exactly these signals.
pub fn block_only(signals: &[Signal]) -> io::Result<()> {
    let set = set_of(signals);
    // SAFETY: the set lives until the call returns, and the old one is not asked for.
    let answer =
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The next signal that waits to be read, if one does.
pub fn next(readable: &OwnedFd) -> Option<Signal> {
    // What the kernel writes has this size and begins with the number of the signal.
    let mut record = [0; size_of::<libc::signalfd_siginfo>()];
    let length = rustix::io::read(readable, &mut record).ok()?;
    let number = *record[..length].first_chunk::<4>()?;
    Signal::from_named_raw(i32::from_ne_bytes(number))
}
