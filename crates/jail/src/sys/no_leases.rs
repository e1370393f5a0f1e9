//! Forbids programs to lease files, and what a longer filter forbids, if one is given. Starting a
//! program that another process has leased blocks in the kernel for most of a minute, and would
//! block the guest too, whose memory the child borrows. The guest itself leases its scale file, so
//! this is not part of the filter that both have.

use libc::{c_int, c_ulong, sock_filter, sock_fprog};

/// Offsets of the call number and of the second argument in `struct seccomp_data`. The lower half
/// comes first on every architecture we run on.
const NUMBER: u32 = 0;
const SECOND_ARGUMENT: u32 = 24;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const IS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

static FILTER: [sock_filter; 6] = [
    sock_filter { code: LOAD, jt: 0, jf: 0, k: NUMBER },
    sock_filter { code: IS, jt: 0, jf: 3, k: libc::SYS_fcntl as u32 },
    sock_filter { code: LOAD, jt: 0, jf: 0, k: SECOND_ARGUMENT },
    sock_filter { code: IS, jt: 0, jf: 1, k: libc::F_SETLEASE as u32 },
    sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32 },
    sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
];

/// The filter to load: this one, or one that forbids more.
pub(super) fn program(instead: Option<&[sock_filter]>) -> sock_fprog {
    let instructions = instead.unwrap_or(&FILTER);
    sock_fprog { len: instructions.len() as u16, filter: instructions.as_ptr().cast_mut() }
}

/// Loads it for this process and all its descendants; returns the error number, or 0. Allocates
/// nothing. Where this process may not load filters, nothing is forbidden: in every sandbox it may.
pub(super) fn forbid(program: &sock_fprog) -> c_int {
    // SAFETY: `program` points to as many instructions as it says, which the parent keeps until
    // this process has exec'ed; the kernel copies them and never writes to them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            0 as c_ulong,
            std::ptr::from_ref(program),
        )
    };
    if result == 0 {
        return 0;
    }
    match super::spawn::errno() {
        libc::EACCES => 0,
        other => other,
    }
}
