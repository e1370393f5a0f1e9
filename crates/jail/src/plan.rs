//! The steps that turn a new process into the first process of a sandbox, as a list. Pure: the same
//! input always gives the same list, and the list can be read. There are two halves. `prepare`
//! needs nothing of the sandbox to come, so preforks do it before a launch. `enter` is the rest, at
//! the launch.
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

/// Where secrets are that programs read as files.
pub const SECRETS: &str = "/run/secrets";

/// The most descriptors of a program, and of the guest.
pub const DESCRIPTORS: u64 = 4096;

/// How readily the kernel ends a process of a sandbox when the machine has no memory left: before the
/// server and everything else that does not ask for the opposite.
pub const OOM_SCORE: i32 = 500;

/// How the sandbox gets its network namespace, which has loopback and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// Made while preparing.
    Spare,
    /// Made while entering.
    Fresh,
    /// Shares that of the launcher, which is as empty.
    Shared,
}

/// Which users of the host a sandbox uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// A range of the slot's own. Needs root.
    Ranges,
    /// Programs run as the user that started the launcher; the guest has a subordinate user of its
    /// own.
    Subordinate,
    /// Programs and the guest run as the user that started the launcher. The guest is protected by
    /// what it is (the first process, undumpable), not by its user.
    Alone,
}

/// What a plan is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanInput {
    /// The host name.
    pub hostname: String,
    /// The most bytes of `/tmp` and `/dev/shm` together.
    pub scratch_bytes: u64,
    /// What `/workspace` is.
    pub workspace: Workspace,
    /// Mount points of host directories, relative to the root, outer ones first.
    pub shown: Vec<String>,
    /// How it gets its network namespace.
    pub network: Network,
    /// Which users it has.
    pub users: Users,
    /// The most processes and threads of programs, where no control group counts them.
    pub processes: Option<u32>,
}

/// What `/workspace` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workspace {
    /// In memory, of this size.
    Memory(u64),
    /// A mount that the launcher hands over.
    Given,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Join the control groups of the slot.
    JoinGroups,
    /// Write the limits of the slot's control groups.
    WriteLimits,
    /// Make a network namespace.
    NewNetwork,
    /// Bring its loopback up.
    LoopbackUp,
    /// Bound the buffers of its TCP connections.
    BoundBuffers,
    /// Make the `/proc` of the new process namespace, to be attached later: after that there is no
    /// privilege over the namespace any more.
    OpenProc,
    /// Make our own layers over the root filesystem that most launches ask for, to be attached
    /// later: the process cannot come back to where it is.
    TakeRoot,
    /// Enter the mount namespace that contains only an empty directory.
    EnterVoid,
    /// Limit what the kernel keeps for a process: descriptors, cores, priorities, queues.
    LimitResources,
    /// Become the first user of the slot, keeping capabilities: the kernel counts resources per
    /// user, and each sandbox is to be counted by itself.
    BecomeSlotUser,
    /// Make a user namespace and wait until the launcher has mapped the slot's users into it.
    NewUserNamespace,
    /// Become user 0 of that namespace.
    BecomeRootInside,
    /// Leave the key ring of the launcher.
    NewKeyRing,
    /// Empty the bounding set, so that no program can gain a capability.
    EmptyBoundingSet,
    /// Make namespaces for System V objects, the host name, and the view of control groups.
    NewSmallNamespaces,
    /// Make a mount namespace. It begins with the empty directory and nothing else, so there is
    /// nothing to unmount, which would take long.
    NewMounts,
    /// Attach the layers of `TakeRoot`, or those that were handed over instead, over the empty
    /// directory.
    AttachRoot,
    /// Attach the `/proc` of `OpenProc`.
    MountProc,
    /// Open the kernel's table of locks for the guest, which alone may read it: it shows locks of
    /// other sandboxes, too.
    OpenLocks,
    /// Hide a file or directory of the root behind an empty one.
    Mask(&'static str),
    /// Make a directory of the root read-only.
    ReadOnly(&'static str),
    /// Mount memory for `/tmp`, `/dev/shm`, secrets and the scale file, as one file system at four paths:
    /// every additional file system costs each sandbox of the machine something.
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
    /// Attach the mount that the launcher handed over.
    MountGiven {
        /// Where.
        path: &'static str,
    },
    /// Attach the next mount of a host directory. No link is followed on the way.
    MountShown {
        /// Where.
        at: String,
    },
    /// Mount a `devpts` of its own.
    MountTerminals {
        /// Whether terminals belong to the group `tty`.
        own_group: bool,
    },
    /// Make it the root directory.
    EnterRoot,
    /// Take a host name.
    Hostname(String),
    /// Keep only the capabilities to set ids and to signal.
    KeepFewCapabilities,
    /// Keep none.
    DropCapabilities,
    /// Limit the number of processes of the users in this namespace.
    LimitProcesses(u32),
    /// Use files as the user of programs.
    UseFilesAsUser,
    /// Forbid all processes inside to look into this one.
    Undumpable,
    /// Die when the launcher dies, and end now if it has already.
    DieWithLauncher,
    /// Give up gaining privileges by starting a program.
    NoNewPrivileges,
    /// Allow only the reviewed system calls from now on.
    LoadFilter,
}

/// Files of `/proc` that show the host or other sandboxes, or that are dangerous. `locks` shows
/// locks of descriptors (`F_OFD_SETLK`) to all sandboxes, with ranges that their programs choose.
pub const MASKED: &[&str] = &[
    "proc/acpi",
    "proc/asound",
    "proc/bootconfig",
    "proc/cmdline",
    "proc/interrupts",
    "proc/kcore",
    "proc/key-users",
    "proc/keys",
    "proc/kmsg",
    "proc/latency_stats",
    "proc/locks",
    "proc/sched_debug",
    "proc/scsi",
    "proc/sysrq-trigger",
    "proc/timer_list",
];

/// Directories of `/proc` that are read-only.
pub const READ_ONLY: &[&str] = &["proc/bus", "proc/fs", "proc/irq", "proc/sys"];

/// The steps of a slot parent, once per slot, where a process cannot start in its control groups
/// but has to join them (v1).
pub fn join_groups() -> Vec<Step> {
    vec![Step::JoinGroups, Step::WriteLimits]
}

/// The half that preforks do before a launch. `limits`: whether the prefork has to write limits.
pub fn prepare(limits: bool, network: Network, users: Users) -> Vec<Step> {
    let mut steps = Vec::with_capacity(16);
    if limits {
        steps.push(Step::WriteLimits);
    }
    match network {
        Network::Spare => {
            steps.extend([Step::NewNetwork, Step::LoopbackUp, Step::BoundBuffers]);
        }
        Network::Fresh | Network::Shared => {}
    }
    steps.extend([Step::OpenProc, Step::LimitResources, Step::TakeRoot, Step::EnterVoid]);
    match users {
        Users::Ranges | Users::Subordinate => {
            steps.extend([Step::BecomeSlotUser, Step::NewUserNamespace, Step::BecomeRootInside]);
        }
        // There is no other user to become.
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

/// The half that is done at the launch.
pub fn enter(input: &PlanInput) -> Vec<Step> {
    let mut steps = Vec::with_capacity(40);
    match input.network {
        Network::Fresh => steps.extend([Step::NewNetwork, Step::LoopbackUp]),
        Network::Spare | Network::Shared => {}
    }
    steps.extend([Step::AttachRoot, Step::MountProc, Step::OpenLocks]);
    match input.network {
        // Not before there is a `/proc`, and not after its settings are read-only.
        Network::Fresh => steps.push(Step::BoundBuffers),
        Network::Spare | Network::Shared => {}
    }
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
    // The guest counts among them only where it has no user of its own.
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
            Self::BoundBuffers => f.write_str("bound socket buffers"),
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
            Self::OpenLocks => f.write_str("open /proc/locks"),
            Self::Mask(path) => write!(f, "mask /{path}"),
            Self::ReadOnly(path) => write!(f, "make /{path} read-only"),
            Self::MountMemory { path, bytes, mode } => {
                write!(f, "mount memory on /{path}, {bytes} bytes, mode {mode:o}")
            }
            Self::MountScratch { bytes } => {
                write!(f, "mount memory on /tmp, /dev/shm, {SECRETS} and {SCALE}, {bytes} bytes")
            }
            Self::MountGiven { path } => write!(f, "attach the given mount on /{path}"),
            Self::MountShown { at } => write!(f, "attach a host directory on /{at}"),
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
