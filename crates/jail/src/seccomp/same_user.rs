//! What programs are refused in addition where they run as the same user as the guest, which is
//! process 1: the kernel would let them change its limits, its priority and its CPU affinity, and
//! the next user of the sandbox would inherit that. Leases are here too, because this filter
//! replaces the one that is about leases alone.

use super::arguments::{Arguments, Clause, Test};
use super::{Group, Rule, Verdict, calls};

/// The guest, as programs see it.
const GUEST: Test = Test::Is(1);

/// `PRIO_USER`: every process of a user.
const PRIORITY_OF_USER: u32 = libc::PRIO_USER;

/// `IOPRIO_WHO_USER`, which the C library has no name for.
const IO_PRIORITY_OF_USER: u32 = 3;

const LEASES: Arguments = Arguments {
    clauses: &[Clause::new(1, Test::Is(libc::F_SETLEASE as u32), Verdict::PERM)],
    otherwise: Verdict::Allow,
};

const FIRST: Arguments =
    Arguments { clauses: &[Clause::new(0, GUEST, Verdict::PERM)], otherwise: Verdict::Allow };

/// The second argument is a process, a group or a user; the guest leads the group with its own id.
const PRIORITY: Arguments = Arguments {
    clauses: &[
        Clause::new(0, Test::Is(PRIORITY_OF_USER), Verdict::PERM),
        Clause::new(1, GUEST, Verdict::PERM),
    ],
    otherwise: Verdict::Allow,
};

const IO_PRIORITY: Arguments = Arguments {
    clauses: &[
        Clause::new(0, Test::Is(IO_PRIORITY_OF_USER), Verdict::PERM),
        Clause::new(1, GUEST, Verdict::PERM),
    ],
    otherwise: Verdict::Allow,
};

/// The groups.
pub const GROUPS: &[Group] = &[
    Group {
        name: "leases",
        why: "Starting a leased program blocks for most of a minute, and the guest with it.",
        rule: Rule::Arguments(&LEASES),
        calls: calls![SYS_fcntl],
    },
    Group {
        name: "limits and scheduling of the guest",
        why: "A limit that was lowered stays so for the next user; a guest that never runs serves \
              no request.",
        rule: Rule::Arguments(&FIRST),
        calls: calls![
            SYS_prlimit64,
            SYS_sched_setaffinity,
            SYS_sched_setscheduler,
            SYS_sched_setparam,
            SYS_sched_setattr,
        ],
    },
    Group {
        name: "priorities",
        why: "As above, also for all processes of the user, of which the guest is one.",
        rule: Rule::Arguments(&PRIORITY),
        calls: calls![SYS_setpriority],
    },
    Group {
        name: "priorities of reading and writing",
        why: "As above.",
        rule: Rule::Arguments(&IO_PRIORITY),
        calls: calls![SYS_ioprio_set],
    },
];

#[cfg(test)]
mod tests {
    use super::super::{Policy, compile};
    use super::*;

    fn verdict(number: libc::c_long, arguments: [u64; 6]) -> Verdict {
        match Policy::same_user_as_guest().rule(u32::try_from(number).unwrap()) {
            Rule::Always(verdict) => verdict,
            Rule::Arguments(rule) => rule.verdict(&arguments),
        }
    }

    #[test]
    fn the_same_user_filter_refuses_only_calls_at_the_guest() {
        assert!(compile(&Policy::same_user_as_guest()).is_ok());
        let process = u64::from(libc::PRIO_PROCESS);
        let group = u64::from(libc::PRIO_PGRP);
        let user = u64::from(libc::PRIO_USER);
        for (number, first, second, expected) in [
            (libc::SYS_fcntl, 1, libc::F_SETLEASE as u64, Verdict::PERM),
            (libc::SYS_fcntl, 1, libc::F_GETFL as u64, Verdict::Allow),
            (libc::SYS_prlimit64, 1, 7, Verdict::PERM),
            (libc::SYS_prlimit64, 1 | 1 << 32, 7, Verdict::PERM),
            (libc::SYS_prlimit64, 0, 7, Verdict::Allow),
            (libc::SYS_sched_setaffinity, 1, 8, Verdict::PERM),
            (libc::SYS_sched_setaffinity, 0, 8, Verdict::Allow),
            (libc::SYS_sched_setscheduler, 1, 5, Verdict::PERM),
            (libc::SYS_sched_setparam, 1, 0, Verdict::PERM),
            (libc::SYS_sched_setattr, 1, 0, Verdict::PERM),
            (libc::SYS_sched_setattr, 17, 0, Verdict::Allow),
            (libc::SYS_setpriority, process, 1, Verdict::PERM),
            (libc::SYS_setpriority, process, 0, Verdict::Allow),
            (libc::SYS_setpriority, group, 1, Verdict::PERM),
            (libc::SYS_setpriority, user, 0, Verdict::PERM),
            (libc::SYS_setpriority, user, 1000, Verdict::PERM),
            (libc::SYS_ioprio_set, 1, 1, Verdict::PERM),
            (libc::SYS_ioprio_set, 1, 0, Verdict::Allow),
            (libc::SYS_ioprio_set, 2, 1, Verdict::PERM),
            (libc::SYS_ioprio_set, 3, 1000, Verdict::PERM),
            (libc::SYS_execve, 1, 1, Verdict::Allow),
            (libc::SYS_mount, 1, 1, Verdict::Allow),
        ] {
            let arguments = [first, second, 0, 0, 0, 0];
            assert_eq!(verdict(number, arguments), expected, "{number} {arguments:?}");
        }
    }
}
