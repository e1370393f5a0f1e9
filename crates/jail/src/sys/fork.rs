//! A copy of this process that does one thing as another user, and ends. For work that would take
//! this process too long, or that it must not do itself. Unlike a spawned program it shares no
//! memory.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use rustix::io::Errno;

use super::descriptors::LAST_DESCRIPTOR;
use super::reap::{empty_set, last_errno};
use super::spawn::{Identity, become_other};

/// Where the copy finds its output.
const OUTPUT: RawFd = 3;

/// The exit code of a copy that could not be set up or did not finish.
const FAILED: i32 = 127;

/// Lets a copy of this process, which must have one thread only, do something with a descriptor,
/// and returns its process id. The copy runs in a session of its own, with that descriptor and the
/// first three of this process and no others. Its exit code is 0 if it finished.
pub fn fork_as(
    identity: Option<Identity>,
    output: BorrowedFd<'_>,
    act: impl FnOnce(OwnedFd),
) -> Result<i32, Errno> {
    // SAFETY: there is one thread, so no lock of another can stay held in the copy.
    match unsafe { libc::fork() } {
        -1 => Err(last_errno()),
        0 => {
            let code = match settle(identity, output.as_raw_fd()) {
                Some(output) => match catch_unwind(AssertUnwindSafe(|| act(output))) {
                    Ok(()) => 0,
                    Err(_) => FAILED,
                },
                None => FAILED,
            };
            // SAFETY: ends the copy without running anything that the original is to run.
            unsafe { libc::_exit(code) }
        }
        pid => Ok(pid),
    }
}

fn settle(identity: Option<Identity>, output: RawFd) -> Option<OwnedFd> {
    // SAFETY: takes nothing.
    if unsafe { libc::setsid() } < 0 {
        return None;
    }
    if output != OUTPUT {
        // SAFETY: takes numbers only; the table of descriptors is the copy's own.
        if unsafe { libc::dup2(output, OUTPUT) } < 0 {
            return None;
        }
    }
    // SAFETY: takes numbers only; nothing that owns one of them is used or dropped in the copy.
    if unsafe { libc::syscall(libc::SYS_close_range, OUTPUT + 1, LAST_DESCRIPTOR, 0) } != 0 {
        return None;
    }
    if identity.is_some_and(|identity| become_other(identity) != 0) {
        return None;
    }
    let mut mask = empty_set();
    // A pipe without a reader then returns an error instead of a signal.
    // SAFETY: `mask` is an initialised set.
    unsafe { libc::sigaddset(&raw mut mask, libc::SIGPIPE) };
    // SAFETY: reads one set, and changes the mask of this thread only.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
    // SAFETY: it was just put there, and nothing else in the copy owns it.
    Some(unsafe { OwnedFd::from_raw_fd(OUTPUT) })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::sys::reap::collect;

    #[test]
    fn a_forked_copy_writes_and_ends() {
        let (reader, writer) = std::io::pipe().unwrap();
        let held = std::fs::File::open("/dev/null").unwrap();
        let number = held.as_raw_fd();
        let pid = fork_as(None, writer.as_fd(), |output| {
            let is_open = std::path::Path::new(&format!("/proc/self/fd/{number}")).exists();
            let mut output = std::fs::File::from(output);
            let _ = write!(output, "{} {}", std::process::id(), is_open && number != OUTPUT);
        })
        .unwrap();
        drop(writer);
        let mut said = String::new();
        let mut reader = reader;
        reader.read_to_string(&mut said).unwrap();
        collect(pid);
        assert_eq!(said, format!("{pid} false"));
    }
}
