//! A copy of this process that does one thing as somebody else, and ends. For what would take this
//! process too long, or what it must not do as itself. Unlike what is spawned it shares no memory.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use rustix::io::Errno;

use super::descriptors::LAST_DESCRIPTOR;
use super::reap::{empty_set, last_errno};
use super::spawn::{Identity, become_other};

/// Where the copy finds its output.
const OUTPUT: RawFd = 3;

/// What a copy exits with that could not become what it was to be, or did not come to its end.
const FAILED: i32 = 127;

/// Lets a copy of this process, which must have one thread only, do something with a descriptor, and
/// gives its process id. It runs in a session of its own, with the descriptor and the first three of
/// this process and no others. Its exit code is 0 if it came to its end.
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
    // A pipe that nobody reads is told by an error.
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
    fn a_copy_says_something_and_ends() {
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
