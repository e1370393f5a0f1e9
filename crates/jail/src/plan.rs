//! What has to be done to turn a fresh process into the first process of a sandbox, as a list.
//! Pure: the same wish always gives the same list, and the list can be read. There are two halves.
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

/// What is wished for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Which of the prepared root filesystems.
    pub root: usize,
    /// Its name for itself.
    pub hostname: String,
    /// What `/tmp` and `/dev/shm` may hold, each.
    pub scratch_bytes: u64,
    /// What `/workspace` is.
    pub workspace: Workspace,
    /// How it gets its network.
    pub network: Network,
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
    /// Make a layer of one's own over each prepared root filesystem, to be mounted later: there is
    /// no way back to where they are.
    TakeRoots,
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
    /// Mount one of the roots that were taken, over the empty directory.
    AttachRoot(usize),
    /// Mount what `OpenProc` made.
    MountProc,
    /// Hide a file or directory of the root behind an empty one.
    Mask(&'static str),
    /// Make a directory of the root read-only.
    ReadOnly(&'static str),
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
    /// Mount a terminal directory of its own.
    MountTerminals,
    /// Make it the root of every name.
    EnterRoot,
    /// Take a host name.
    Hostname(String),
    /// Keep only the capabilities to set ids and to signal.
    DropCapabilities,
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
const MASKED: &[&str] = &[
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
const READ_ONLY: &[&str] = &["proc/bus", "proc/fs", "proc/irq", "proc/sys"];

/// What comes before both, once for all sandboxes of a slot, where a process cannot be born in its
/// control groups but has to write itself into them (v1).
pub fn settle() -> Vec<Step> {
    vec![Step::JoinGroups, Step::WriteLimits]
}

/// The half that spares have behind them. `limits`: whether there are limits to write that are not
/// written yet.
pub fn prepare(limits: bool, network: Network) -> Vec<Step> {
    let mut steps = Vec::with_capacity(16);
    if limits {
        steps.push(Step::WriteLimits);
    }
    match network {
        Network::Spare => steps.extend([Step::NewNetwork, Step::LoopbackUp]),
        Network::Fresh | Network::Shared => {}
    }
    steps.extend([
        Step::OpenProc,
        Step::LimitResources,
        Step::TakeRoots,
        Step::EnterVoid,
        Step::BecomeSlotUser,
        Step::NewUserNamespace,
        Step::BecomeRootInside,
        Step::NewKeyRing,
        Step::EmptyBoundingSet,
        Step::NewSmallNamespaces,
        Step::NewMounts,
    ]);
    steps
}

/// The half that is done when someone asks.
pub fn enter(wish: &Wish) -> Vec<Step> {
    let mut steps = Vec::with_capacity(40);
    match wish.network {
        Network::Fresh => steps.extend([Step::NewNetwork, Step::LoopbackUp]),
        Network::Spare | Network::Shared => {}
    }
    steps.extend([Step::AttachRoot(wish.root), Step::MountProc]);
    steps.extend(MASKED.iter().copied().map(Step::Mask));
    steps.extend(READ_ONLY.iter().copied().map(Step::ReadOnly));
    for path in ["tmp", "dev/shm"] {
        steps.push(Step::MountMemory { path, bytes: wish.scratch_bytes, mode: 0o1777 });
    }
    steps.push(Step::MountTerminals);
    steps.push(match wish.workspace {
        Workspace::Memory(bytes) => Step::MountMemory { path: "workspace", bytes, mode: 0o755 },
        Workspace::Given => Step::MountGiven { path: "workspace" },
    });
    steps.extend([
        Step::EnterRoot,
        Step::Hostname(wish.hostname.clone()),
        Step::DropCapabilities,
        Step::UseFilesAsUser,
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
            Self::TakeRoots => f.write_str("make layers over the prepared roots"),
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
            Self::AttachRoot(root) => write!(f, "attach root {root}"),
            Self::MountProc => f.write_str("mount /proc"),
            Self::Mask(path) => write!(f, "mask /{path}"),
            Self::ReadOnly(path) => write!(f, "make /{path} read-only"),
            Self::MountMemory { path, bytes, mode } => {
                write!(f, "mount memory on /{path}, {bytes} bytes, mode {mode:o}")
            }
            Self::MountGiven { path } => write!(f, "mount what was handed over on /{path}"),
            Self::MountTerminals => f.write_str("mount /dev/pts"),
            Self::EnterRoot => f.write_str("enter the root"),
            Self::Hostname(name) => write!(f, "set host name {name}"),
            Self::DropCapabilities => f.write_str("drop capabilities"),
            Self::UseFilesAsUser => write!(f, "use files as user {USER}"),
            Self::Undumpable => f.write_str("become undumpable"),
            Self::DieWithLauncher => f.write_str("die with the launcher"),
            Self::NoNewPrivileges => f.write_str("no new privileges"),
            Self::LoadFilter => f.write_str("load system call filter"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(network: Network, workspace: Workspace) -> Wish {
        Wish { root: 0, hostname: "shoal-1".to_owned(), scratch_bytes: 1 << 20, workspace, network }
    }

    fn text(steps: &[Step]) -> String {
        steps.iter().map(|step| step.to_string() + "\n").collect()
    }

    /// Compares with a file beside this one. To accept a change on purpose, write what the failed
    /// test prints into the file.
    #[track_caller]
    fn snapshot(name: &str, expected: &str, steps: &[Step]) {
        let found = text(steps);
        assert!(found == expected, "{name}: the plan is now\n{found}");
    }

    #[test]
    fn plans_are_as_they_were_reviewed() {
        snapshot("settle", include_str!("plan/settle.txt"), &settle());
        snapshot(
            "prepare_limits",
            include_str!("plan/prepare_limits.txt"),
            &prepare(true, Network::Spare),
        );
        snapshot(
            "prepare_bare",
            include_str!("plan/prepare_bare.txt"),
            &prepare(false, Network::Fresh),
        );
        snapshot(
            "enter_memory",
            include_str!("plan/enter_memory.txt"),
            &enter(&wish(Network::Spare, Workspace::Memory(4 << 20))),
        );
        snapshot(
            "enter_disk_fresh",
            include_str!("plan/enter_disk_fresh.txt"),
            &enter(&wish(Network::Fresh, Workspace::Given)),
        );
    }

    #[test]
    fn the_order_is_the_security_argument() {
        for network in [Network::Spare, Network::Fresh, Network::Shared] {
            for limits in [false, true] {
                for workspace in [Workspace::Memory(1), Workspace::Given] {
                    let mut steps = prepare(limits, network);
                    steps.extend(enter(&wish(network, workspace)));
                    let at = |wanted: &Step| {
                        steps.iter().position(|step| step == wanted).expect("step is in the plan")
                    };
                    let ordered = [
                        Step::OpenProc,
                        Step::TakeRoots,
                        Step::EnterVoid,
                        Step::BecomeSlotUser,
                        Step::NewUserNamespace,
                        Step::BecomeRootInside,
                        Step::NewMounts,
                        Step::MountProc,
                        Step::EnterRoot,
                        Step::DropCapabilities,
                        Step::UseFilesAsUser,
                        Step::Undumpable,
                        Step::DieWithLauncher,
                        Step::NoNewPrivileges,
                        Step::LoadFilter,
                    ];
                    assert!(ordered.windows(2).all(|two| at(&two[0]) < at(&two[1])), "{steps:?}");
                    assert_eq!(steps.last(), Some(&Step::LoadFilter));
                    for mounted in steps.iter().filter(|step| {
                        matches!(step, Step::Mask(_) | Step::ReadOnly(_) | Step::MountMemory { .. })
                    }) {
                        assert!(at(mounted) < at(&Step::EnterRoot), "{mounted}");
                    }
                }
            }
        }
    }
}
