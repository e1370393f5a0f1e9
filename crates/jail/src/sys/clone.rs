//! Makes a process with `clone3`: the child continues in the caller's code, as after a fork, and
//! starts in its namespaces and its control group.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::process::Pid;

/// The constant of the libc crate is too narrow for its value.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which of the two processes returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The new process.
    Child,
    /// The caller, with the child's process id.
    Parent(Pid),
}

/// Makes a process that is the first of a new process namespace, in the given v2 control group if
/// there is one. The caller must have one thread only: the child has a copy of its memory, in which
/// a lock of another thread would stay locked for ever.
pub fn first_of_new_process_namespace(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    clone3(libc::CLONE_NEWPID as u64, libc::SIGCHLD as u64, cgroup)
}

/// The same, but as a child of the caller's parent.
pub fn sibling_first_of_new_process_namespace(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    // The signal to the parent at its end is that of the caller.
    clone3(libc::CLONE_NEWPID as u64 | libc::CLONE_PARENT as u64, 0, cgroup)
}

/// Makes a copy of the calling process, which must have one thread only.
pub fn copy() -> io::Result<Side> {
    clone3(0, libc::SIGCHLD as u64, None)
}

/// The same, in a user namespace of its own without mapped users.
pub fn copy_in_new_user_namespace() -> io::Result<Side> {
    clone3(libc::CLONE_NEWUSER as u64, libc::SIGCHLD as u64, None)
}

fn clone3(flags: u64, exit_signal: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    let into_group = if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 };
    let mut arguments = libc::clone_args {
        flags: flags | into_group,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |group| u64::from(group.as_raw_fd().cast_unsigned())),
    };
    // SAFETY: the arguments live until the call returns and have the size that is given; no memory
    // is shared with the child and no stack is passed, so the child goes on with copies of its own.
    let answer = unsafe {
        libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of::<libc::clone_args>())
    };
    match i32::try_from(answer) {
        Ok(0) => Ok(Side::Child),
        Ok(pid) => Pid::from_raw(pid)
            .filter(|_| pid > 0)
            .map(Side::Parent)
            .ok_or_else(io::Error::last_os_error),
        Err(_) => Err(io::Error::from_raw_os_error(libc::EOVERFLOW)),
    }
}

/// Ends the calling process at once: nothing is dropped, flushed or unwound. For a child that has
/// its parent's memory image and must never return into its parent's code.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(code) }
}
