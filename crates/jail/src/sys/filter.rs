//! Loads a compiled system call filter into the calling thread. It allocates nothing and must be
//! among the last steps of a sandbox: the filter holds for everything that follows.

use std::io;

use libc::{c_ulong, sock_filter, sock_fprog};

/// Loads a filter. `no_new_privs` must be set, or the caller must be privileged: otherwise the
/// kernel refuses, so that no privileged program can be confused by a filter of its caller.
pub fn load(instructions: &[sock_filter]) -> io::Result<()> {
    let length = u16::try_from(instructions.len())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = sock_fprog { len: length, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: `program` points to `length` instructions that outlive the call; the kernel copies
    // them and never writes to them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            0 as c_ulong,
            &raw const program,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
