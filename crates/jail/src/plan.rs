//! What has to be done to turn a fresh process into the first process of a sandbox, as a list.
//! Pure: the same input always gives the same list, and the list can be read. There are two halves.
//! `prepare` needs nothing of the sandbox to come, so spares have gone through it before anyone
//! asks. `enter` is what is left when someone does.
//!
//! The order is the security argument: what needs the host's privileges comes first, everything
//! after `NewUserNamespace` can touch only what the sandbox owns, and nothing comes after the
//! filter.

use std::fmt;

/// The user and group of programs inside.
pub const USER: u32 = 1000;

/// Where the files of the user are.
pub const WORKSPACE: &str = "/workspace";

/// Where the scale file is.
pub const SCALE: &str = "/run/shoal";

/// Descriptors that a program may have, and the guest too.
pub const DESCRIPTORS: u64 = 4096;

/// How the sandbox gets its network namespace, which has loopback and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Made while preparing.
    Spare,
    /// Made while entering.
    Fresh,
    /// That of the launcher, which is as empty.
    Shared,
}

/// Whose the users of a sandbox are on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// A range of the slot's own. Needs root.
    Ranges,
    /// Programs are whoever started the launcher; the guest has a subordinate user of its own.
    Subordinate,
    /// All are whoever started the launcher. The guest is told from programs by what it is (the
    /// first process, undumpable), not by whom.
    Alone,
}

/// What is wished for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanInput {
    /// Its name for itself.
    pub hostname: String,
    /// What `/tmp` and `/dev/shm` may hold, together.
    pub scratch_bytes: u64,
    /// What `/workspace` is.
    pub workspace: Workspace,
    /// Where what is handed over besides is mounted, from the top of the root, outer ones first.
    pub shown: Vec<String>,
    /// How it gets its network.
    pub network: Network,
    /// Whose its users are.
    pub users: Users,
    /// How many processes and threads programs may have, where no control group counts them.
    pub processes: Option<u32>,
}

/// What `/workspace` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workspace {
    /// In memory, of this size.
    Memory(u64),
    /// A mount that is handed over.
    Given,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Write oneself into the control groups of the slot.
    JoinGroups,
    /// Write the limits of the slot's control groups.
    WriteLimits,
    /// Make a network namespace.
    NewNetwork,
    /// Bring its loopback up.
    LoopbackUp,
    /// Make the `/proc` of the new process namespace, to be mounted later: afterwards there is no
    /// privilege over that namespace any more.
    OpenProc,
    /// Make layers of one's own over the root filesystem that is asked for most, to be mounted later:
    /// there is no way back to where it is.
    TakeRoot,
    /// Go where nothing is mounted but an empty directory.
    EnterVoid,
    /// Limit what the kernel keeps for a process: descriptors, cores, priorities, queues.
    LimitResources,
    /// Become the first user of the slot, keeping capabilities: the kernel counts what a user has,
    /// and each sandbox is to be counted by itself.
    BecomeSlotUser,
    /// Make a user namespace and wait until the launcher has mapped the slot's users into it.
    NewUserNamespace,
    /// Become its user 0.
    BecomeRootInside,
    /// Leave the key ring that the launcher has.
    NewKeyRing,
    /// Take every capability out of reach of programs that will be started.
    EmptyBoundingSet,
    /// Make namespaces for System V objects, the host name, and the view of control groups.
    NewSmallNamespaces,
    /// Make a namespace for mounts. It begins with the empty directory and nothing else, so there
    /// is nothing to take away again, which would take long.
    NewMounts,
    /// Mount the layers that were taken, or handed over instead, over the empty directory.
    AttachRoot,
    /// Mount what `OpenProc` made.
    MountProc,
    /// Hide a file or directory of the root behind an empty one.
    Mask(&'static str),
    /// Make a directory of the root read-only.
    ReadOnly(&'static str),
    /// Mount memory for what is shared or thrown away, and for the scale file, at three places: every
    /// file system more costs each sandbox of the machine something.
    MountScratch {
        /// How much.
        bytes: u64,
    },
    /// Mount memory.
    MountMemory {
        /// Where.
        path: &'static str,
        /// How much.
        bytes: u64,
        /// With which permissions.
        mode: u32,
    },
    /// Mount what the launcher handed over.
    MountGiven {
        /// Where.
        path: &'static str,
    },
    /// Mount the next of what was handed over besides. No link is followed on the way there.
    MountShown {
        /// Where.
        at: String,
    },
    /// Mount a terminal directory of its own.
    MountTerminals {
        /// Whether terminals belong to the group that is known for it.
        own_group: bool,
    },
    /// Make it the root of every name.
    EnterRoot,
    /// Take a host name.
    Hostname(String),
    /// Keep only the capabilities to set ids and to signal.
    KeepFewCapabilities,
    /// Keep none.
    DropCapabilities,
    /// Limit how many processes the users of this namespace have.
    LimitProcesses(u32),
    /// Use files as the user does.
    UseFilesAsUser,
    /// Forbid everyone inside to look into this process.
    Undumpable,
    /// Be killed when the launcher dies, and stop here if it has already.
    DieWithLauncher,
    /// Give up ever gaining privileges by starting a program.
    NoNewPrivileges,
    /// Allow only the reviewed system calls from now on.
    LoadFilter,
}

/// Files of `/proc` that tell of the host, or that ask for trouble.
pub const MASKED: &[&str] = &[
    "proc/acpi",
    "proc/asound",
    "proc/cmdline",
    "proc/interrupts",
    "proc/kcore",
    "proc/keys",
    "proc/kmsg",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/scsi",
    "proc/sysrq-trigger",
    "proc/timer_list",
];

/// Directories of `/proc` that are for reading only.
pub const READ_ONLY: &[&str] = &["proc/bus", "proc/fs", "proc/irq", "proc/sys"];

/// What comes before both, once for all sandboxes of a slot, where a process cannot be born in its
/// control groups but has to write itself into them (v1).
pub fn join_groups() -> Vec<Step> {
    vec![Step::JoinGroups, Step::WriteLimits]
}

/// The half that spares have behind them. `limits`: whether there are limits to write that are not
/// written yet.
pub fn prepare(limits: bool, network: Network, users: Users) -> Vec<Step> {
    let mut steps = Vec::with_capacity(16);
    if limits {
        steps.push(Step::WriteLimits);
    }
    match network {
        Network::Spare => steps.extend([Step::NewNetwork, Step::LoopbackUp]),
        Network::Fresh | Network::Shared => {}
    }
    steps.extend([Step::OpenProc, Step::LimitResources, Step::TakeRoot, Step::EnterVoid]);
    match users {
        Users::Ranges | Users::Subordinate => {
            steps.extend([Step::BecomeSlotUser, Step::NewUserNamespace, Step::BecomeRootInside]);
        }
        // There is nobody else to become.
        Users::Alone => steps.push(Step::NewUserNamespace),
    }
    steps.extend([
        Step::NewKeyRing,
        Step::EmptyBoundingSet,
        Step::NewSmallNamespaces,
        Step::NewMounts,
    ]);
    steps
}

/// The half that is done when someone asks.
pub fn enter(input: &PlanInput) -> Vec<Step> {
    let mut steps = Vec::with_capacity(40);
    match input.network {
        Network::Fresh => steps.extend([Step::NewNetwork, Step::LoopbackUp]),
        Network::Spare | Network::Shared => {}
    }
    steps.extend([Step::AttachRoot, Step::MountProc]);
    steps.extend(MASKED.iter().copied().map(Step::Mask));
    steps.extend(READ_ONLY.iter().copied().map(Step::ReadOnly));
    steps.push(Step::MountScratch { bytes: input.scratch_bytes });
    steps.push(Step::MountTerminals { own_group: input.users == Users::Ranges });
    steps.push(match input.workspace {
        Workspace::Memory(bytes) => Step::MountMemory { path: "workspace", bytes, mode: 0o755 },
        Workspace::Given => Step::MountGiven { path: "workspace" },
    });
    steps.extend(input.shown.iter().map(|at| Step::MountShown { at: at.clone() }));
    steps.extend([Step::EnterRoot, Step::Hostname(input.hostname.clone())]);
    match input.users {
        Users::Ranges | Users::Subordinate => {
            steps.extend([Step::KeepFewCapabilities, Step::UseFilesAsUser]);
        }
        Users::Alone => steps.push(Step::DropCapabilities),
    }
    // The guest is one of them only where it has no user of its own.
    let guest = u32::from(input.users == Users::Alone);
    steps.extend(input.processes.map(|most| Step::LimitProcesses(most.saturating_add(guest))));
    steps.extend([
        Step::Undumpable,
        Step::DieWithLauncher,
        Step::NoNewPrivileges,
        Step::LoadFilter,
    ]);
    steps
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JoinGroups => f.write_str("join control groups"),
            Self::WriteLimits => f.write_str("write limits"),
            Self::NewNetwork => f.write_str("make network namespace"),
            Self::LoopbackUp => f.write_str("bring loopback up"),
            Self::OpenProc => f.write_str("open proc"),
            Self::TakeRoot => f.write_str("make layers over the usual root"),
            Self::EnterVoid => f.write_str("enter the empty mount namespace"),
            Self::LimitResources => {
                write!(f, "limit resources: {DESCRIPTORS} descriptors, no cores")
            }
            Self::BecomeSlotUser => f.write_str("become the slot's user"),
            Self::NewUserNamespace => f.write_str("make user namespace"),
            Self::BecomeRootInside => f.write_str("become user 0 inside"),
            Self::NewKeyRing => f.write_str("leave the inherited key ring"),
            Self::EmptyBoundingSet => f.write_str("empty the bounding set"),
            Self::NewSmallNamespaces => f.write_str("make ipc, uts and cgroup namespaces"),
            Self::NewMounts => f.write_str("make mount namespace"),
            Self::AttachRoot => f.write_str("attach the root"),
            Self::MountProc => f.write_str("mount /proc"),
            Self::Mask(path) => write!(f, "mask /{path}"),
            Self::ReadOnly(path) => write!(f, "make /{path} read-only"),
            Self::MountMemory { path, bytes, mode } => {
                write!(f, "mount memory on /{path}, {bytes} bytes, mode {mode:o}")
            }
            Self::MountScratch { bytes } => {
                write!(f, "mount memory on /tmp, /dev/shm and {SCALE}, {bytes} bytes")
            }
            Self::MountGiven { path } => write!(f, "mount what was handed over on /{path}"),
            Self::MountShown { at } => write!(f, "mount what is shown on /{at}"),
            Self::MountTerminals { own_group: true } => f.write_str("mount /dev/pts, group 5"),
            Self::MountTerminals { own_group: false } => f.write_str("mount /dev/pts"),
            Self::EnterRoot => f.write_str("enter the root"),
            Self::Hostname(name) => write!(f, "set host name {name}"),
            Self::KeepFewCapabilities => f.write_str("drop most capabilities"),
            Self::DropCapabilities => f.write_str("drop all capabilities"),
            Self::LimitProcesses(most) => write!(f, "limit processes to {most}"),
            Self::UseFilesAsUser => write!(f, "use files as user {USER}"),
            Self::Undumpable => f.write_str("become undumpable"),
            Self::DieWithLauncher => f.write_str("die with the launcher"),
            Self::NoNewPrivileges => f.write_str("no new privileges"),
            Self::LoadFilter => f.write_str("load system call filter"),
        }
    }
}

#[cfg(test)]
mod tests;
