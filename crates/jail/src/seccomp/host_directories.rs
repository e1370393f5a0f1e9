//! What is refused in addition where a sandbox has a directory of the host: set-user-id and
//! set-group-id files. Inside they have no effect; on the host, where other users may reach the
//! directory, they would run as its owner.

use super::arguments::{Arguments, Clause, Test};
use super::{Call, Group, Rule, Verdict, calls};

/// Both bits.
const SET_ID: Test = Test::AnyOf(libc::S_ISUID | libc::S_ISGID);

/// Flags without which the mode of an `open` has no meaning. The flag of unnamed files also
/// contains the flag of directories.
const MAKES: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) as u32;

const SECOND: Arguments =
    Arguments { clauses: &[Clause::new(1, SET_ID, Verdict::PERM)], otherwise: Verdict::Allow };

const THIRD: Arguments =
    Arguments { clauses: &[Clause::new(2, SET_ID, Verdict::PERM)], otherwise: Verdict::Allow };

#[cfg(target_arch = "x86_64")]
const OPEN: Arguments = Arguments {
    clauses: &[
        Clause::new(1, Test::Bits { mask: MAKES, are: 0 }, Verdict::Allow),
        Clause::new(2, SET_ID, Verdict::PERM),
    ],
    otherwise: Verdict::Allow,
};

const OPENAT: Arguments = Arguments {
    clauses: &[
        Clause::new(2, Test::Bits { mask: MAKES, are: 0 }, Verdict::Allow),
        Clause::new(3, SET_ID, Verdict::PERM),
    ],
    otherwise: Verdict::Allow,
};

/// The groups.
pub const GROUPS: &[Group] = &[
    Group {
        name: "modes of files, second argument",
        why: "No file in a host directory may become set-user-id or set-group-id.",
        rule: Rule::Arguments(&SECOND),
        calls: calls![SYS_fchmod],
    },
    Group {
        name: "modes of files, third argument",
        why: "As above.",
        rule: Rule::Arguments(&THIRD),
        calls: calls![SYS_fchmodat, SYS_mknodat],
    },
    Group {
        name: "modes of files, recent",
        why: "As above.",
        rule: Rule::Arguments(&THIRD),
        calls: &[Call::recent("fchmodat2", 452)],
    },
    Group {
        name: "new files",
        why: "As above.",
        rule: Rule::Arguments(&OPENAT),
        calls: calls![SYS_openat],
    },
    Group {
        name: "new files by a structure",
        why: "The mode is behind a pointer, which a filter cannot see. Programs use the older call.",
        rule: Rule::Always(Verdict::NOSYS),
        calls: calls![SYS_openat2],
    },
    #[cfg(target_arch = "x86_64")]
    Group {
        name: "old modes of files",
        why: "As above.",
        rule: Rule::Arguments(&SECOND),
        calls: calls![SYS_chmod, SYS_creat, SYS_mknod],
    },
    #[cfg(target_arch = "x86_64")]
    Group {
        name: "old new files",
        why: "As above.",
        rule: Rule::Arguments(&OPEN),
        calls: calls![SYS_open],
    },
];

#[cfg(test)]
mod tests {
    use super::super::{Policy, compile};
    use super::*;

    fn verdict(policy: &Policy, number: libc::c_long, arguments: [u64; 6]) -> Verdict {
        match policy.rule(u32::try_from(number).unwrap()) {
            Rule::Always(verdict) => verdict,
            Rule::Arguments(rule) => rule.verdict(&arguments),
        }
    }

    #[test]
    fn the_host_directory_filter_refuses_only_set_id_modes() {
        let policy = Policy::lending();
        assert!(compile(&policy).is_ok());
        let create = u64::from(libc::O_CREAT.cast_unsigned());
        let unnamed = u64::from(libc::O_TMPFILE.cast_unsigned());
        let directory = u64::from(libc::O_DIRECTORY.cast_unsigned());
        for (number, arguments, expected) in [
            (libc::SYS_fchmod, [3, 0o755, 0, 0, 0, 0], Verdict::Allow),
            (libc::SYS_fchmod, [3, 0o4755, 0, 0, 0, 0], Verdict::PERM),
            (libc::SYS_fchmodat, [3, 0, 0o2755, 0, 0, 0], Verdict::PERM),
            (libc::SYS_fchmodat, [3, 0, 0o1777, 0, 0, 0], Verdict::Allow),
            (libc::SYS_openat, [3, 0, create, 0o4755, 0, 0], Verdict::PERM),
            (libc::SYS_openat, [3, 0, unnamed, 0o4755, 0, 0], Verdict::PERM),
            // Without creating a file, the mode has no meaning.
            (libc::SYS_openat, [3, 0, 0, 0o7777, 0, 0], Verdict::Allow),
            (libc::SYS_openat, [3, 0, directory, 0o7777, 0, 0], Verdict::Allow),
            (libc::SYS_openat2, [3, 0, 0, 0, 0, 0], Verdict::NOSYS),
            (libc::SYS_mknodat, [3, 0, 0o106_755, 0, 0, 0], Verdict::PERM),
        ] {
            assert_eq!(verdict(&policy, number, arguments), expected, "{number} {arguments:?}");
        }
    }
}
