//! File leases: a process that opens a leased file waits until the holder has given the lease back,
//! and the holder gets a signal, [`SIGNAL`]. Only the owner of a file may lease it, and only while
//! no other process has it open.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::Errno;

use super::reap::last_errno;

/// The signal to the holder when a process waits for the file.
pub const SIGNAL: i32 = libc::SIGIO;

/// Takes a lease. [`Errno::AGAIN`] while another process has the file open.
pub fn take(file: BorrowedFd<'_>) -> Result<(), Errno> {
    set(file, libc::F_WRLCK)
}

/// Gives it back: waiting processes continue.
pub fn give_back(file: BorrowedFd<'_>) -> Result<(), Errno> {
    set(file, libc::F_UNLCK)
}

/// Whether a process waits for it. A lease that is no longer held counts as requested.
pub fn is_requested(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes numbers only.
    let held = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) };
    held != libc::F_WRLCK
}

fn set(file: BorrowedFd<'_>, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}
