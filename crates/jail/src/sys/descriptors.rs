//! Closes descriptors that a copy of a process has inherited and must not keep.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// The highest descriptor number. gVisor accepts no greater one for a range.
pub(super) const LAST_DESCRIPTOR: libc::c_uint = libc::c_int::MAX.cast_unsigned();

/// Closes every descriptor of this process except these. For a process that was just copied from
/// another: the values that own the other descriptors must never be used or dropped in this copy,
/// so the caller must not return into code that would.
pub fn keep_only(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<RawFd> = kept.iter().map(BorrowedFd::as_raw_fd).collect();
    kept.sort_unstable();
    kept.dedup();
    let mut next = 0;
    for &descriptor in &kept {
        if descriptor > next {
            close_range(next.cast_unsigned(), (descriptor - 1).cast_unsigned())?;
        }
        next = descriptor + 1;
    }
    close_range(next.cast_unsigned(), LAST_DESCRIPTOR)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: takes numbers and touches no memory. Descriptors that Rust values in this copy of
    // the process think they own are closed beneath them; the caller promises to forget those.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets a program that replaces this one inherit this descriptor and the first three, and no other.
pub fn inherit_only(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let (first, flags) = (3_u32, libc::CLOSE_RANGE_CLOEXEC);
    // All our descriptors are close-on-exec already, so a kernel without this call is fine.
    // SAFETY: takes numbers and only marks descriptors to be closed at an exec.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) };
    Ok(rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?)
}

/// Takes over a descriptor that the process which started this one left open at this number. Once
/// per number, at the start.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers and touches no memory; an unknown descriptor is refused.
    let answer = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, as was just checked, and by the protocol with our starter no other code
    // in this process knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
