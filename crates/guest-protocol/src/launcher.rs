//! What a runtime and the launcher say to each other: one message per packet of a sequenced
//! packet socket. The host names what it wants made; it never names a path of the host or a uid. What
//! of the host is to be seen inside it names by the number of a configured directory and a path
//! beneath it.

use serde::{Deserialize, Serialize};

/// The most bytes a packet may have.
pub const MAX_PACKET_BYTES: usize = 32 * 1024;

/// Names a launched thing. The bytes of the instance id.
pub type InstanceBytes = [u8; 16];

/// Names a disk workspace. The bytes of the workspace id.
pub type WorkspaceBytes = [u8; 16];

/// Names an image. The bytes of its id.
pub type ImageBytes = [u8; 32];

/// What the launcher is told once, at its start, through a sealed memory file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherConfig {
    /// Names this run of the launcher: labels everything it makes. Letters, digits and dashes.
    pub run: String,
    /// First host uid of the first slot. Slot n owns 65,536 uids from `uid_base + n * 65536`.
    pub uid_base: u32,
    /// How many sandboxes may live at once.
    pub slots: u32,
    /// How many spares are kept ready.
    pub spares: u32,
    /// How network namespaces come about.
    pub network: NetworkMode,
    /// Directories beneath which root filesystems are found by name; the first that has it counts.
    pub directories: Vec<String>,
    /// The image store, if there is one.
    pub images: Option<String>,
    /// Where disk workspaces are, if there are any: a directory per workspace, named by its id.
    pub workspaces: Option<String>,
    /// Directories elsewhere that are workspaces for this run. Only where there is no directory of
    /// workspaces.
    pub lent: Vec<(WorkspaceBytes, String)>,
    /// Directories of which sandboxes may be shown something, without links in their names.
    pub mounts: Vec<String>,
    /// Directory of lock files, one per run: `shoal clean` tells by them which runs are over.
    pub run_directory: String,
    /// Whether the limits of cgroups are applied. Off only to measure their price.
    pub limits: bool,
    /// Whom to become first, if started as root: the user and group of this number.
    pub user: Option<u32>,
    /// Whether subordinate users are used where somebody who is not root has some.
    pub subordinate_users: bool,
}

/// How network namespaces come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkMode {
    /// Each spare has one already.
    Spare,
    /// Made when a sandbox is.
    Fresh,
    /// All sandboxes share one that has nothing but loopback. Only to measure the price of the others.
    Shared,
}

/// A root filesystem.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Root {
    /// The host's `/usr` and a synthetic `/etc`.
    Host,
    /// A directory beneath one of the configured ones.
    Directory(String),
    /// An image of the store.
    Image(ImageBytes),
    /// Another one, with more names at its top that lead to the workspace.
    Aliased {
        /// Which. Not such a one itself.
        root: Box<Root>,
        /// Each a single name, in their order.
        names: Vec<String>,
    },
    /// Another one, with places at which something is mounted. The launcher makes it out of the
    /// mounts of a spec; nobody asks for it.
    Pointed {
        /// Which. Not such a one itself.
        root: Box<Root>,
        /// The places, in the order of their paths.
        points: Vec<Point>,
    },
}

/// A place in a root at which something is mounted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point {
    /// Where, from the top of the root.
    pub at: String,
    /// Whether that is a directory, or else a file.
    pub is_directory: bool,
}

/// Something of the host that is seen inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// In which of the configured directories it is, by its number.
    pub directory: u32,
    /// Its path from there; empty for the directory itself.
    pub path: String,
    /// Where it is seen, from the top of the root.
    pub at: String,
    /// Whether nobody inside can change it.
    pub read_only: bool,
}

/// To the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToLauncher {
    /// Make a sandbox. One descriptor comes along: the guest's end of its connection. The guest
    /// itself says on it when it is ready.
    Launch {
        /// Named by the answer.
        ticket: u64,
        /// What to make.
        spec: Spec,
    },
    /// Mount a disk workspace on `/workspace` of a sandbox that was made without one.
    Attach {
        /// Named by the answer.
        ticket: u64,
        /// Which.
        instance: InstanceBytes,
        /// What to mount. Its directory exists already.
        workspace: WorkspaceBytes,
    },
    /// Kill a sandbox and remove everything that was made for it. That it does not exist is fine.
    Kill {
        /// Named by the answer.
        ticket: u64,
        /// Which.
        instance: InstanceBytes,
    },
    /// Tell which sandboxes exist.
    List {
        /// Named by the answer.
        ticket: u64,
    },
}

/// A sandbox to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Its label.
    pub instance: InstanceBytes,
    /// What `/` is made of.
    pub root: Root,
    /// What it may use.
    pub limits: SandboxLimits,
    /// What `/workspace` is.
    pub workspace: Workspace,
    /// What of the host is seen inside, in the order of the paths inside.
    pub mounts: Vec<Mount>,
}

/// What a sandbox may use in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLimits {
    /// Memory, everything counted, without swap.
    pub memory_bytes: u64,
    /// Thousandths of a processor.
    pub cpu_milli: u32,
    /// Processes and threads.
    pub pids: u32,
    /// What `/workspace` may hold while it is in memory.
    pub workspace_bytes: u64,
    /// What `/tmp` and `/dev/shm` may hold, together.
    pub scratch_bytes: u64,
}

/// What `/workspace` is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Workspace {
    /// In memory: gone with the sandbox. A disk workspace may be attached over it later.
    Memory,
    /// A directory on disk that exists already.
    Disk(WorkspaceBytes),
}

/// From the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromLauncher {
    /// The launcher is configured and listens.
    Up {
        /// What it can do on this machine.
        features: LauncherFeatures,
    },
    /// A sandbox has a process. Whether it becomes ready the guest says.
    Launched {
        /// Of the request.
        ticket: u64,
        /// Its process as the host sees it.
        pid: u32,
        /// Where its control group files are, for reading and freezing.
        cgroup: CgroupPaths,
    },
    /// `Attach`, `Kill` are done.
    Done {
        /// Of the request.
        ticket: u64,
    },
    /// It could not be done; nothing of it is left.
    Refused {
        /// Of the request.
        ticket: u64,
        /// Why.
        refusal: LaunchRefusal,
    },
    /// Part of the answer to `List`.
    Listed {
        /// Of the request.
        ticket: u64,
        /// Some of them.
        instances: Vec<InstanceBytes>,
        /// Whether more packets of this answer follow.
        more: bool,
    },
    /// A sandbox is over and everything that was made for it is gone. Told once for each that was
    /// launched, also after `Kill`.
    Died {
        /// Which.
        instance: InstanceBytes,
        /// How its first process ended.
        status: crate::message::ExitStatus,
        /// Whether the kernel killed something in it for want of memory.
        out_of_memory: bool,
    },
}

/// What the launcher can do on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherFeatures {
    /// Memory limits are enforced.
    pub memory_limit: bool,
    /// Processor limits are enforced.
    pub cpu_limit: bool,
    /// Process limits are enforced.
    pub pids_limit: bool,
    /// Sandboxes can be frozen.
    pub freeze: bool,
    /// Disk workspaces can be attached.
    pub disk_workspaces: bool,
    /// Whose the users of sandboxes are.
    pub users: Users,
    /// Why guests have no users of their own, if they have none.
    pub alone_because: Option<AloneBecause>,
}

/// Why somebody who is not root has no subordinate users to give to guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AloneBecause {
    /// It was wished so.
    Wanted,
    /// `newuidmap` or `newgidmap` is not there.
    NoPrograms,
    /// `/etc/subuid` or `/etc/subgid` gives him none.
    NoRange,
    /// They give him fewer than there may be sandboxes.
    RangeTooShort,
    /// The programs refused to map them.
    MappingRefused,
}

/// Whose the users of sandboxes are on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Users {
    /// Each sandbox has a range of its own: the launcher is root.
    Ranges,
    /// Programs are whoever started the launcher, each guest has a subordinate user of its own.
    Subordinate,
    /// Programs and guests alike are whoever started the launcher.
    Alone,
}

/// Files of a sandbox's control groups, as absolute paths on the host; none where there is no such thing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPaths {
    /// The directory that freezes: with `cgroup.freeze` and `cgroup.events` (v2) or `freezer.state` (v1).
    pub freezer: Option<String>,
    /// The directory with `memory.events` (v2) or `memory.oom_control` (v1).
    pub memory: Option<String>,
    /// What the counter of kills in there says at the start: groups are used again.
    pub out_of_memory_kills: u64,
}

/// Why the launcher did not do something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRefusal {
    /// What kind of reason.
    pub code: RefusalCode,
    /// Which step, in words.
    pub step: String,
    /// What the kernel said, 0 if it was not asked.
    pub errno: i32,
}

/// Kinds of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCode {
    /// All slots are taken.
    Full,
    /// No such root filesystem.
    UnknownRoot,
    /// No such sandbox, or no such workspace.
    Unknown,
    /// The label is in use.
    Duplicate,
    /// The machine cannot do what was asked.
    Unsupported,
    /// The kernel refused a step.
    System,
    /// No device is free for the image of a workspace.
    NoDevice,
}
