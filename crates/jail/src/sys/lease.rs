//! Leases on files: whoever opens a file that is leased waits until the holder of the lease has
//! given it back, and the holder is told by a signal, [`SIGNAL`], that somebody does. Only the owner
//! of a file may have one, and only while nobody else has the file open.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::Errno;

use super::reap::last_errno;

/// What tells the holder of a lease that it is asked for.
pub const SIGNAL: i32 = libc::SIGIO;

/// Takes a lease. Refused as [`Errno::AGAIN`] while anybody else has the file open.
pub fn take(file: BorrowedFd<'_>) -> Result<(), Errno> {
    set(file, libc::F_WRLCK)
}

/// Gives it back: whoever waits goes on.
pub fn give_back(file: BorrowedFd<'_>) -> Result<(), Errno> {
    set(file, libc::F_UNLCK)
}

/// Whether somebody waits for it. One that is not held any more is as good as asked for.
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
