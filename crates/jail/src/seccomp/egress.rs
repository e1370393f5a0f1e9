//! What the process of the way out may call once it has begun: it talks over sockets, copies bytes and
//! waits. It opens no file, starts nothing, and cannot make its memory executable.

use super::arguments::{Arguments, Clause, Test};
use super::{Group, Rule, Verdict, calls};

const ALLOWED: Rule = Rule::Always(Verdict::Allow);

const SOCKETS: Arguments = Arguments {
    clauses: &[Clause::new(
        0,
        Test::NoneOf(&[libc::AF_INET as u32, libc::AF_INET6 as u32]),
        Verdict::PERM,
    )],
    otherwise: Verdict::Allow,
};

const MEMORY: Arguments = Arguments {
    clauses: &[Clause::new(2, Test::AnyOf(libc::PROT_EXEC as u32), Verdict::PERM)],
    otherwise: Verdict::Allow,
};

/// Whether a descriptor waits, and how much there is to read.
const DEVICES: Arguments = Arguments {
    clauses: &[Clause::new(
        1,
        Test::NoneOf(&[libc::FIONBIO as u32, libc::FIONREAD as u32]),
        Verdict::PERM,
    )],
    otherwise: Verdict::Allow,
};

/// The groups.
pub const GROUPS: &[Group] = &[
    Group {
        name: "bytes",
        why: "What is open already: sockets, pipes, messages in memory, and standard error.",
        rule: ALLOWED,
        calls: calls![
            SYS_read,
            SYS_readv,
            SYS_pread64,
            SYS_write,
            SYS_writev,
            SYS_splice,
            SYS_pipe2,
            SYS_close,
            SYS_fcntl,
            SYS_fstat,
            SYS_newfstatat,
            SYS_statx,
            SYS_lseek,
        ],
    },
    Group {
        name: "connections",
        why: "Its work.",
        rule: ALLOWED,
        calls: calls![
            SYS_accept4,
            SYS_bind,
            SYS_connect,
            SYS_getpeername,
            SYS_getsockname,
            SYS_getsockopt,
            SYS_recvfrom,
            SYS_recvmsg,
            SYS_sendmsg,
            SYS_sendto,
            SYS_setsockopt,
            SYS_shutdown,
        ],
    },
    Group {
        name: "new sockets",
        why: "Only those of the internet.",
        rule: Rule::Arguments(&SOCKETS),
        calls: calls![SYS_socket],
    },
    Group {
        name: "settings of descriptors",
        why: "Two harmless ones.",
        rule: Rule::Arguments(&DEVICES),
        calls: calls![SYS_ioctl],
    },
    Group {
        name: "memory",
        why: "None of it is executable.",
        rule: Rule::Arguments(&MEMORY),
        calls: calls![SYS_mmap, SYS_mprotect],
    },
    Group {
        name: "memory and time",
        why: "Its own.",
        rule: ALLOWED,
        calls: calls![
            SYS_brk,
            SYS_madvise,
            SYS_mremap,
            SYS_munmap,
            SYS_clock_gettime,
            SYS_clock_getres,
            SYS_clock_nanosleep,
            SYS_gettimeofday,
            SYS_nanosleep,
            SYS_getrandom,
            SYS_futex,
            SYS_sched_yield,
            SYS_sched_getaffinity,
        ],
    },
    Group {
        name: "waiting",
        why: "For sockets and timers.",
        rule: ALLOWED,
        calls: calls![
            SYS_epoll_create1,
            SYS_epoll_ctl,
            SYS_epoll_pwait,
            SYS_epoll_pwait2,
            SYS_eventfd2,
            SYS_ppoll,
        ],
    },
    #[cfg(target_arch = "x86_64")]
    Group {
        name: "waiting, older",
        why: "As above.",
        rule: ALLOWED,
        calls: calls![SYS_epoll_wait, SYS_poll],
    },
    Group {
        name: "itself",
        why: "Its end, its signals and its number.",
        rule: ALLOWED,
        calls: calls![
            SYS_exit,
            SYS_exit_group,
            SYS_getpid,
            SYS_gettid,
            SYS_restart_syscall,
            SYS_rt_sigaction,
            SYS_rt_sigprocmask,
            SYS_rt_sigreturn,
            SYS_sigaltstack,
            SYS_tgkill,
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::super::{Policy, compile};
    use super::*;

    fn verdict(number: libc::c_long, arguments: [u64; 6]) -> Verdict {
        match Policy::egress().rule(u32::try_from(number).unwrap()) {
            Rule::Always(verdict) => verdict,
            Rule::Arguments(rule) => rule.verdict(&arguments),
        }
    }

    #[test]
    fn the_way_out_opens_nothing_and_starts_nothing() {
        assert!(compile(&Policy::egress()).is_ok());
        for number in [
            libc::SYS_openat,
            libc::SYS_execve,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_ptrace,
            libc::SYS_socketpair,
            libc::SYS_listen,
            libc::SYS_mount,
            libc::SYS_memfd_create,
            libc::SYS_process_vm_readv,
        ] {
            assert_ne!(verdict(number, [0; 6]), Verdict::Allow, "{number}");
        }
        for (number, arguments, expected) in [
            (libc::SYS_socket, [libc::AF_INET as u64, 1, 0], Verdict::Allow),
            (libc::SYS_socket, [libc::AF_INET6 as u64, 2, 0], Verdict::Allow),
            (libc::SYS_socket, [libc::AF_UNIX as u64, 1, 0], Verdict::PERM),
            (libc::SYS_socket, [libc::AF_NETLINK as u64, 3, 0], Verdict::PERM),
            (libc::SYS_socket, [libc::AF_PACKET as u64, 3, 0], Verdict::PERM),
            (libc::SYS_mmap, [0, 4096, 3], Verdict::Allow),
            (libc::SYS_mmap, [0, 4096, 7], Verdict::PERM),
            (libc::SYS_mprotect, [0, 4096, 5], Verdict::PERM),
            (libc::SYS_ioctl, [3, libc::FIONBIO, 0], Verdict::Allow),
            (libc::SYS_ioctl, [3, libc::TIOCSTI, 0], Verdict::PERM),
        ] {
            let [one, two, three] = arguments;
            let found = verdict(number, [one, two, three, 0, 0, 0]);
            assert_eq!(found, expected, "{number} {arguments:?}");
        }
    }
}
