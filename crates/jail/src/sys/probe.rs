//! Asks the kernel which calls it has. Each question is a call that cannot do anything, because its
//! arguments are invalid: only the error matters.

use libc::c_long;

use crate::machine::{Calls, Presence};

/// A descriptor that is never open.
const NO_DESCRIPTOR: c_long = -1;

/// Asks about every call that depends on the kernel's version or on a filter.
pub fn calls() -> Calls {
    Calls {
        new_mount_api: presence(libc::SYS_fsopen),
        mount_setattr: presence(libc::SYS_mount_setattr),
        open_tree: presence(libc::SYS_open_tree),
        clone3: presence(libc::SYS_clone3),
        openat2: presence(libc::SYS_openat2),
        pidfd_open: presence(libc::SYS_pidfd_open),
        close_range: close_range(),
        seccomp: seccomp(),
        landlock_abi: landlock_abi(),
    }
}

/// Makes a call with invalid arguments.
fn presence(number: c_long) -> Presence {
    // SAFETY: every call asked about takes a pointer, a descriptor or a size that is invalid here,
    // so the kernel fails before it does anything.
    let result = unsafe { libc::syscall(number, NO_DESCRIPTOR, -1_isize, -1_isize, -1_isize) };
    judge(result)
}

/// This call would close descriptors, so the range is empty.
fn close_range() -> Presence {
    // SAFETY: a range whose first is behind its last is refused.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 2_usize, 1_usize, 0_usize) };
    judge(result)
}

/// Whether a filter can kill a whole process, the newest action that we need.
fn seccomp() -> Presence {
    let action = libc::SECCOMP_RET_KILL_PROCESS;
    // SAFETY: the kernel reads one word and answers.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0_usize, &raw const action)
    };
    if result == 0 { Presence::There } else { judge(result) }
}

fn landlock_abi() -> Option<u32> {
    const ASK_VERSION: u32 = 1;
    // SAFETY: with this flag the kernel takes no attributes and only tells its version.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0_usize,
            ASK_VERSION,
        )
    };
    u32::try_from(result).ok().filter(|version| *version > 0)
}

fn judge(result: c_long) -> Presence {
    if result >= 0 {
        return Presence::There;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOSYS) => Presence::Missing,
        // A filter returns this, or we lack the privilege, which means the same for us; the kernel
        // itself would check the arguments first.
        Some(libc::EPERM) => Presence::Denied,
        Some(_) | None => Presence::There,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_call_probes_answer_without_effect() {
        let calls = calls();
        // No supported kernel is older than these calls.
        assert_ne!(calls.openat2, Presence::Missing);
        assert_eq!(calls, super::calls());
    }
}
