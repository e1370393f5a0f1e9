//! Calls whose verdict depends on their arguments. A filter sees the registers and not what they
//! point to, so it must never judge by a pointer. The kernel takes the arguments judged here as
//! 32-bit numbers, and so do the tests: the upper half of a register makes no difference.

use super::{Group, Rule, Verdict, calls};

/// Clauses tried in order, and the verdict if none matches.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arguments {
    /// The first that matches gives the verdict.
    pub clauses: &'static [Clause],
    /// The verdict if none matches.
    pub otherwise: Verdict,
}

/// One test of one argument, or of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Clause {
    /// Which argument, from 0.
    pub argument: u8,
    /// When it matches.
    pub test: Test,
    /// Another argument and its test: the clause matches only if both do.
    pub also: Option<(u8, Test)>,
    /// The verdict then.
    pub verdict: Verdict,
}

impl Clause {
    /// A test of one argument.
    pub const fn new(argument: u8, test: Test, verdict: Verdict) -> Self {
        Self { argument, test, also: None, verdict }
    }

    fn fits(&self, arguments: &[u64; 6]) -> bool {
        let fits =
            |(argument, test): (u8, Test)| test.fits(arguments[usize::from(argument)] as u32);
        fits((self.argument, self.test)) && self.also.is_none_or(fits)
    }
}

/// A test of the lower 32 bits of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Test {
    /// It is this number.
    Is(u32),
    /// Of the bits in the mask it has exactly these.
    Bits {
        /// The bits that are compared.
        mask: u32,
        /// Their required value.
        are: u32,
    },
    /// It has at least one of these bits.
    AnyOf(u32),
    /// It is none of these numbers.
    NoneOf(&'static [u32]),
}

impl Arguments {
    /// The verdict about these arguments. The compiled filter gives the same.
    pub fn verdict(&self, arguments: &[u64; 6]) -> Verdict {
        self.clauses
            .iter()
            .find(|clause| clause.fits(arguments))
            .map_or(self.otherwise, |clause| clause.verdict)
    }
}

impl Test {
    fn fits(self, value: u32) -> bool {
        match self {
            Self::Is(number) => value == number,
            Self::Bits { mask, are } => value & mask == are,
            Self::AnyOf(bits) => value & bits != 0,
            Self::NoneOf(numbers) => !numbers.contains(&value),
        }
    }
}

const fn clause(argument: u8, test: Test, verdict: Verdict) -> Clause {
    Clause::new(argument, test, verdict)
}

/// What `clone` makes new: every namespace there is. `CLONE_NEWTIME` is missing because `clone`
/// cannot ask for it: its bit means part of the exit signal there.
const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32;

const CLONE: Arguments = Arguments {
    clauses: &[clause(0, Test::AnyOf(NEW_NAMESPACES), Verdict::PERM)],
    otherwise: Verdict::Allow,
};

/// The lower four bits of a socket's type; the others are flags.
const SOCKET_TYPE: u32 = 0xf;

/// Asks the kernel about the network interfaces of the sandbox. Changes need a capability that no
/// program has.
const NETWORK_QUESTIONS: Clause = Clause {
    argument: 0,
    test: Test::Is(libc::AF_NETLINK as u32),
    also: Some((2, Test::Is(libc::NETLINK_ROUTE as u32))),
    verdict: Verdict::Allow,
};

const SOCKET: Arguments = Arguments {
    clauses: &[
        NETWORK_QUESTIONS,
        clause(
            0,
            Test::NoneOf(&[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32]),
            Verdict::Errno(libc::EAFNOSUPPORT as u16),
        ),
        clause(1, Test::Bits { mask: SOCKET_TYPE, are: libc::SOCK_RAW as u32 }, Verdict::PERM),
        // An obsolete spelling of a packet socket, which its family does not reveal.
        clause(1, Test::Bits { mask: SOCKET_TYPE, are: 10 }, Verdict::PERM),
        // Protocol types that no program uses and whose modules the kernel would load.
        clause(1, Test::Bits { mask: SOCKET_TYPE, are: libc::SOCK_DCCP as u32 }, Verdict::PERM),
        clause(1, Test::Bits { mask: SOCKET_TYPE, are: libc::SOCK_RDM as u32 }, Verdict::PERM),
        clause(
            2,
            Test::NoneOf(&[
                0,
                libc::IPPROTO_ICMP as u32,
                libc::IPPROTO_TCP as u32,
                libc::IPPROTO_UDP as u32,
                libc::IPPROTO_ICMPV6 as u32,
            ]),
            Verdict::Errno(libc::EPROTONOSUPPORT as u16),
        ),
    ],
    otherwise: Verdict::Allow,
};

const SOCKET_PAIR: Arguments = Arguments {
    clauses: &[clause(0, Test::Is(libc::AF_UNIX as u32), Verdict::Allow)],
    otherwise: Verdict::Errno(libc::EAFNOSUPPORT as u16),
};

/// Requests of btrfs that name a volume or a device: they take a structure of 4096 bytes, and no
/// other request of this kind (`FICLONE` and its like) does. A subvolume that a program makes would
/// not count for the limit of its workspace.
const BTRFS_VOLUMES: Test = Test::Bits { mask: 0xffff_ff00, are: 0x5000_9400 };

const IOCTL: Arguments = Arguments {
    clauses: &[
        clause(1, Test::Is(libc::TIOCSTI as u32), Verdict::PERM),
        clause(1, Test::Is(libc::TIOCLINUX as u32), Verdict::PERM),
        clause(1, Test::Is(0x5423), Verdict::PERM),
        clause(1, BTRFS_VOLUMES, Verdict::PERM),
    ],
    otherwise: Verdict::Allow,
};

/// Programs ask for these: to learn the present value (all bits), to set the present value, to look
/// like a 32-bit or an old kernel, and to get the same layout each time, as sanitizers and
/// debuggers want.
const PERSONALITY: Arguments = Arguments {
    clauses: &[clause(
        0,
        Test::NoneOf(&[0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff]),
        Verdict::PERM,
    )],
    otherwise: Verdict::Allow,
};

/// Cookies of core scheduling keep the other half of a processor idle, which no limit counts.
const PR_SCHED_CORE: u32 = 62;

const PRCTL: Arguments = Arguments {
    clauses: &[
        clause(0, Test::Is(libc::PR_SET_MM as u32), Verdict::PERM),
        clause(0, Test::Is(PR_SCHED_CORE), Verdict::PERM),
    ],
    otherwise: Verdict::Allow,
};

/// The kind of file in a mode. The kernel takes a mode as 16 bits.
const FILE_KIND: u32 = libc::S_IFMT;

#[cfg(target_arch = "x86_64")]
const MKNOD: Arguments = Arguments {
    clauses: &[
        clause(1, Test::Bits { mask: FILE_KIND, are: libc::S_IFCHR }, Verdict::PERM),
        clause(1, Test::Bits { mask: FILE_KIND, are: libc::S_IFBLK }, Verdict::PERM),
    ],
    otherwise: Verdict::Allow,
};

const MKNODAT: Arguments = Arguments {
    clauses: &[
        clause(2, Test::Bits { mask: FILE_KIND, are: libc::S_IFCHR }, Verdict::PERM),
        clause(2, Test::Bits { mask: FILE_KIND, are: libc::S_IFBLK }, Verdict::PERM),
    ],
    otherwise: Verdict::Allow,
};

/// The groups.
pub const GROUPS: &[Group] = &[
    Group {
        name: "new processes and threads",
        why: "Every program starts some; none of them may be in namespaces of its own, because a \
              user namespace of one's own opens most of the kernel's privileged code.",
        rule: Rule::Arguments(&CLONE),
        calls: calls![SYS_clone],
    },
    Group {
        name: "sockets",
        why: "Local and internet sockets of the ordinary protocols, and the one of netlink by which \
              programs list network interfaces. Every other family and protocol is kernel code that \
              sandboxes have no use for and that attacks have come through; raw sockets forge \
              packets.",
        rule: Rule::Arguments(&SOCKET),
        calls: calls![SYS_socket],
    },
    Group {
        name: "socket pairs",
        why: "Only local ones exist, but the kernel looks at the family first.",
        rule: Rule::Arguments(&SOCKET_PAIR),
        calls: calls![SYS_socketpair],
    },
    Group {
        name: "device control",
        why: "Terminals, files and sockets need it. Refused: typing into a terminal that a more \
              privileged program reads (TIOCSTI, TIOCLINUX), other line disciplines (TIOCSETD), \
              which are old drivers that nothing in a sandbox needs, and subvolumes of btrfs, which \
              the limit of a workspace would not count.",
        rule: Rule::Arguments(&IOCTL),
        calls: calls![SYS_ioctl],
    },
    Group {
        name: "personality",
        why: "Asking is harmless, and so are a few values; the others switch on workarounds for old \
              programs that make attacks easier.",
        rule: Rule::Arguments(&PERSONALITY),
        calls: calls![SYS_personality],
    },
    Group {
        name: "process control",
        why: "Names of threads, death signals, further filters of a program's own: all of it about \
              the caller itself. Refused: rewriting what the kernel tells others about its memory.",
        rule: Rule::Arguments(&PRCTL),
        calls: calls![SYS_prctl],
    },
    Group {
        name: "special files",
        why: "Pipes and sockets in the file system are ordinary; devices could not be made anyway, \
              and this says so before the file system is asked.",
        rule: Rule::Arguments(&MKNODAT),
        calls: calls![SYS_mknodat],
    },
    #[cfg(target_arch = "x86_64")]
    Group {
        name: "special files, old call",
        why: "As above, with the mode in another place.",
        rule: Rule::Arguments(&MKNOD),
        calls: calls![SYS_mknod],
    },
];
