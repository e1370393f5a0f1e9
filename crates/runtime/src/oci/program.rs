//! The OCI runtime programs and their differences. All differences must be in here, so that no
//! other module depends on a certain program.

use model::template::RuntimeKind;

/// A program that makes containers from bundles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The reference implementation.
    Runc,
    /// An implementation in C.
    Crun,
    /// An implementation in Rust.
    Youki,
    /// gVisor: programs run on gVisor's own kernel.
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

    /// Its name in templates and as a file.
    pub const fn as_str(self) -> &'static str {
        self.kind().as_str()
    }

    /// Default arguments, which the configuration may replace. For gVisor: the platform that needs
    /// nothing special from the machine.
    pub(super) fn usual_arguments(self) -> Vec<String> {
        match self {
            Self::Runc | Self::Crun | Self::Youki => Vec::new(),
            Self::Runsc => vec!["--platform=systrap".to_owned()],
        }
    }

    /// Required arguments, whatever the configuration says. For gVisor: no overlay beside the root,
    /// which is read-only, and no network but loopback.
    pub(super) const fn needed_arguments(self) -> &'static [&'static str] {
        match self {
            Self::Runc | Self::Crun | Self::Youki => &[],
            Self::Runsc => &["--overlay2=none", "--network=none"],
        }
    }

    /// Whether processes inside are processes of the host's kernel: visible from the host, and able
    /// to receive descriptors.
    pub(super) const fn shares_our_kernel(self) -> bool {
        match self {
            Self::Runc | Self::Crun | Self::Youki => true,
            Self::Runsc => false,
        }
    }

    /// Whether it is started in a network namespace of the container whose loopback is up, because
    /// not all of them bring it up. gVisor has a network stack of its own.
    pub const fn begins_in_a_network(self) -> bool {
        self.shares_our_kernel()
    }

    /// Whether it limits processes itself. The control group then only counts gVisor's own host
    /// processes, because the host's kernel does not see the processes inside.
    pub(super) const fn counts_processes(self) -> bool {
        !self.shares_our_kernel()
    }

    /// Whether it deletes a dead container at once. gVisor waits until the host's init has reaped
    /// it, which may take a second; what it would delete is known, and is removed without it.
    pub(super) const fn forgets_at_once(self) -> bool {
        match self {
            Self::Runc | Self::Crun | Self::Youki => true,
            Self::Runsc => false,
        }
    }

    /// Whether it keeps the mount flags of the root if `readonly` is not set. With `readonly` it
    /// would drop the other flags, and devices in the root would work.
    pub(super) const fn keeps_the_root_as_mounted(self) -> bool {
        match self {
            Self::Runc | Self::Youki => true,
            Self::Crun | Self::Runsc => false,
        }
    }

    /// Whether it refuses machines with both cgroup generations, unless it sees only v1.
    pub(super) const fn wants_one_generation(self) -> bool {
        match self {
            Self::Crun => true,
            Self::Runc | Self::Youki | Self::Runsc => false,
        }
    }

    /// How to install it.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Runc => "install runc (Debian: apt-get install runc)",
            Self::Crun => "install crun (Debian: apt-get install crun)",
            Self::Youki => "install youki (cargo install youki)",
            Self::Runsc => "install gVisor's runsc, of 2023 or later, and put it into the PATH",
        }
    }
}
