//! Objects that processes share by number and that outlive them: System V shared memory, semaphores
//! and queues; and the I/O priority of a process.

use std::ptr;

use rustix::io::Errno;
use rustix::process::Pid;

use super::reap::last_errno;

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A segment of memory.
    Memory,
    /// A set of semaphores.
    Semaphores,
    /// A queue of messages.
    Queue,
}

/// Removes an object of this process' ipc namespace, even if it is in use. A missing object counts
/// as removed.
pub fn remove(kind: Kind, id: i32) -> Result<(), Errno> {
    let result = match kind {
        // SAFETY: takes numbers; the description of a segment is not asked for, so none is written.
        Kind::Memory => unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) },
        // SAFETY: takes numbers; to remove a set needs no fourth argument.
        Kind::Semaphores => unsafe { libc::semctl(id, 0, libc::IPC_RMID) },
        // SAFETY: takes numbers; the description of a queue is not asked for, so none is written.
        Kind::Queue => unsafe { libc::msgctl(id, libc::IPC_RMID, ptr::null_mut()) },
    };
    if result == 0 {
        return Ok(());
    }
    match last_errno() {
        Errno::INVAL | Errno::IDRM => Ok(()),
        errno => Err(errno),
    }
}

/// The I/O priority of a process, as one number.
pub fn io_priority(pid: Pid) -> Result<i64, Errno> {
    const WHO_PROCESS: libc::c_int = 1;
    let pid = pid.as_raw_nonzero().get();
    // SAFETY: takes numbers only.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, pid) };
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipc_object_is_removed_once() {
        // SAFETY: takes numbers only.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 4096, libc::IPC_CREAT | 0o600) };
        assert!(id >= 0);
        let listed = || {
            let list = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
            list.lines().any(|line| line.split_whitespace().nth(1) == Some(&id.to_string()))
        };
        assert!(listed());
        remove(Kind::Memory, id).unwrap();
        assert!(!listed());
        remove(Kind::Memory, id).unwrap();
    }

    #[test]
    fn every_process_has_an_io_priority() {
        assert!(io_priority(rustix::process::getpid()).is_ok());
    }
}
