//! The programs that make containers by the rules of OCI, and what is different about each. All of it
//! is in here, so that whoever uses one need not know which.

use model::template::RuntimeKind;

/// A program that makes containers from bundles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The reference.
    Runc,
    /// One in C.
    Crun,
    /// One in Rust.
    Youki,
    /// gVisor: programs meet a kernel of its own, and that one ours.
    Runsc,
}

impl Program {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Runc, Self::Crun, Self::Youki, Self::Runsc];

    /// The program of a kind of runtime, if that has one.
    pub const fn of(kind: RuntimeKind) -> Option<Self> {
        match kind {
            RuntimeKind::Runc => Some(Self::Runc),
            RuntimeKind::Crun => Some(Self::Crun),
            RuntimeKind::Youki => Some(Self::Youki),
            RuntimeKind::Runsc => Some(Self::Runsc),
            RuntimeKind::Native | RuntimeKind::Docker | RuntimeKind::Fake => None,
        }
    }

    /// The kind of runtime that it makes.
    pub const fn kind(self) -> RuntimeKind {
        match self {
            Self::Runc => RuntimeKind::Runc,
            Self::Crun => RuntimeKind::Crun,
            Self::Youki => RuntimeKind::Youki,
            Self::Runsc => RuntimeKind::Runsc,
        }
    }

    /// What it is called, in templates and as a file.
    pub const fn as_str(self) -> &'static str {
        self.kind().as_str()
    }

    /// What it is told besides, unless the configuration says otherwise. Of gVisor: the platform that
    /// needs nothing of the machine.
    pub(super) fn usual_arguments(self) -> Vec<String> {
        match self {
            Self::Runc | Self::Crun | Self::Youki => Vec::new(),
            Self::Runsc => vec!["--platform=systrap".to_owned()],
        }
    }

    /// What it must be told, whatever the configuration says. Of gVisor: to write nothing beside the
    /// root, which is nobody's to write to, and that there is no network but loopback.
    pub(super) const fn needed_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Runc | Self::Crun | Self::Youki => &[],
            Self::Runsc => &["--overlay2=none", "--network=none"],
        }
    }

    /// Whether processes inside are processes of this machine, who can be looked at, and whose sockets
    /// take descriptors of ours.
    pub(super) const fn shares_our_kernel(self) -> bool {
        match self {
            Self::Runc | Self::Crun | Self::Youki => true,
            Self::Runsc => false,
        }
    }

    /// Whether it is started in a network of the container's own, whose loopback is up: not all of them
    /// bring it up. gVisor has a network of its own making.
    pub(super) const fn begins_in_a_network(self) -> bool {
        self.shares_our_kernel()
    }

    /// Whether it counts processes itself, by user, and a control group only counts what it needs for
    /// them on the host. The kernel cannot count them where they are not its own.
    pub(super) const fn counts_processes(self) -> bool {
        !self.shares_our_kernel()
    }

    /// Whether it forgets a container that is dead without waiting for anybody else. gVisor waits until
    /// the machine's first process has heard of the death, which may take a second; all that it would
    /// remove is known, and removed without it.
    pub(super) const fn forgets_at_once(self) -> bool {
        match self {
            Self::Runc | Self::Crun | Self::Youki => true,
            Self::Runsc => false,
        }
    }

    /// Whether it leaves a root that is mounted read-only as it is, if it is not asked to make it so.
    /// Asked, it would make it so and nothing else: devices in it would work.
    pub(super) const fn keeps_the_root_as_mounted(self) -> bool {
        match self {
            Self::Runc | Self::Youki => true,
            Self::Crun | Self::Runsc => false,
        }
    }

    /// Whether it refuses machines that have control groups of both generations, unless it sees only
    /// the first.
    pub(super) const fn wants_one_generation(self) -> bool {
        match self {
            Self::Crun => true,
            Self::Runc | Self::Youki | Self::Runsc => false,
        }
    }

    /// How to get it, in words.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Runc => "install runc (Debian: apt-get install runc)",
            Self::Crun => "install crun (Debian: apt-get install crun)",
            Self::Youki => "install youki (cargo install youki)",
            Self::Runsc => "install gVisor's runsc, of 2023 or later, and put it into the PATH",
        }
    }
}
