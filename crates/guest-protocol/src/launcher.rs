//! The messages between a runtime and the launcher: one message per packet of a sequenced packet
//! socket. The host names what it wants made; it never sends a path of the host or a uid. A file or
//! directory of the host is named by the number of a configured directory and a path beneath it.

use serde::{Deserialize, Serialize};

use crate::network::{NetworkFeature, NetworkRequest, RefusedAddress};

/// The most bytes a packet may have.
pub const MAX_PACKET_BYTES: usize = 32 * 1024;

/// An instance. The bytes of its id.
pub type InstanceBytes = [u8; 16];

/// A disk workspace. The bytes of its id.
pub type WorkspaceBytes = [u8; 16];

/// An image. The bytes of its id.
pub type ImageBytes = [u8; 32];

/// The configuration of the launcher, passed once at its start through a sealed memory file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LauncherConfig {
    /// The name of this run of the launcher, which labels everything it makes. Letters, digits and
    /// dashes.
    pub run: String,
    /// First host uid of the first slot. Slot n owns 65,536 uids from `uid_base + n * 65536`.
    pub uid_base: u32,
    /// How many sandboxes may live at once.
    pub slots: u32,
    /// How many preforks are kept ready.
    pub spares: u32,
    /// How sandboxes get network namespaces.
    pub network: NetworkMode,
    /// Directories beneath which root filesystems are found by name; the first match counts.
    pub directories: Vec<String>,
    /// The image store, if there is one.
    pub images: Option<String>,
    /// Where disk workspaces are, if there are any: a directory per workspace, named by its id.
    pub workspaces: Option<String>,
    /// Directories elsewhere that are workspaces for this run. Only if `workspaces` is not set.
    pub lent: Vec<(WorkspaceBytes, String)>,
    /// Directories of the host that sandboxes may see, without links in their paths.
    pub mounts: Vec<String>,
    /// The directory of lock files, one per run: `shoal clean` sees by them which runs have ended.
    pub run_directory: String,
    /// Whether cgroup limits are applied. Off only to measure their cost.
    pub limits: bool,
    /// The user and group to become first, if started as root.
    pub user: Option<u32>,
    /// Whether to use subordinate users in rootless mode, if there are any.
    pub subordinate_users: bool,
    /// Whether the kernel's tables are used, if it has them. Off only to test what sandboxes do
    /// without.
    pub tables: bool,
}

/// How sandboxes get network namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkMode {
    /// Each prefork has one already.
    Spare,
    /// Made with the sandbox.
    Fresh,
    /// All sandboxes share one that has only loopback. Only to measure the cost of the others.
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
    /// Another root, with more names at its top that lead to the workspace.
    Aliased {
        /// That root. Not `Aliased` itself.
        root: Box<Root>,
        /// Each a single name, sorted.
        names: Vec<String>,
    },
    /// Another root, with mount points. Only the launcher makes it, from the mounts of a spec;
    /// hosts never send it.
    Pointed {
        /// That root. Not `Pointed` itself.
        root: Box<Root>,
        /// The mount points, sorted by path.
        points: Vec<Point>,
    },
}

/// A mount point in a root.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Point {
    /// Its path relative to the root.
    pub at: String,
    /// Whether it is a directory or a file.
    pub is_directory: bool,
}

/// A file or directory of the host that a sandbox sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// The number of the configured directory.
    pub directory: u32,
    /// Its path beneath that directory; empty for the directory itself.
    pub path: String,
    /// Its path in the sandbox, relative to the root.
    pub at: String,
    /// Whether programs inside cannot change it.
    pub read_only: bool,
}

/// To the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToLauncher {
    /// Make a sandbox. One descriptor comes with it: the guest's end of its connection. The guest
    /// itself says on it when it is ready.
    Launch {
        /// Repeated in the answer.
        ticket: u64,
        /// What to make.
        spec: Spec,
    },
    /// Mount a disk workspace on `/workspace` of a sandbox that was made without one.
    Attach {
        /// Repeated in the answer.
        ticket: u64,
        /// Which.
        instance: InstanceBytes,
        /// The workspace to mount. Its directory exists already.
        workspace: WorkspaceBytes,
    },
    /// Kill a sandbox and remove everything that was made for it. A sandbox that does not exist is
    /// fine.
    Kill {
        /// Repeated in the answer.
        ticket: u64,
        /// Which.
        instance: InstanceBytes,
    },
    /// List all sandboxes.
    List {
        /// Repeated in the answer.
        ticket: u64,
    },
    /// Do something with the network of a sandbox.
    Network {
        /// Repeated in the answer.
        ticket: u64,
        /// Which.
        instance: InstanceBytes,
        /// What.
        request: NetworkRequest,
    },
}

/// A sandbox to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Its id.
    pub instance: InstanceBytes,
    /// Its root filesystem.
    pub root: Root,
    /// Its limits.
    pub limits: SandboxLimits,
    /// What `/workspace` is.
    pub workspace: Workspace,
    /// Files and directories of the host that it sees, sorted by path.
    pub mounts: Vec<Mount>,
}

/// The limits of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLimits {
    /// Memory, everything counted, without swap.
    pub memory_bytes: u64,
    /// Thousandths of a processor.
    pub cpu_milli: u32,
    /// Processes and threads.
    pub pids: u32,
    /// The size of `/workspace` while it is in memory.
    pub workspace_bytes: u64,
    /// The size of `/tmp` and `/dev/shm` together.
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
        /// The features of this machine.
        features: LauncherFeatures,
    },
    /// A sandbox has a process. The guest says when it is ready.
    Launched {
        /// That of the request.
        ticket: u64,
        /// Its process id on the host.
        pid: u32,
        /// The paths of its control groups, for reading and freezing.
        cgroup: CgroupPaths,
    },
    /// The request succeeded, and there is nothing more to say.
    Done {
        /// That of the request.
        ticket: u64,
    },
    /// The request failed; nothing of it is left.
    Refused {
        /// That of the request.
        ticket: u64,
        /// Why.
        refusal: LaunchRefusal,
    },
    /// Part of the answer to `List`.
    Listed {
        /// That of the request.
        ticket: u64,
        /// Some of them.
        instances: Vec<InstanceBytes>,
        /// Whether more packets of this answer follow.
        more: bool,
    },
    /// A sandbox has ended and everything that was made for it is gone. Sent once for each launched
    /// sandbox, also after `Kill`.
    Died {
        /// Which.
        instance: InstanceBytes,
        /// How its first process ended.
        status: crate::message::ExitStatus,
        /// Whether the kernel killed a process in it because memory ran out.
        out_of_memory: bool,
    },
    /// The network of a sandbox is made. Its sockets come with this: that for connections first.
    Armed {
        /// That of the request.
        ticket: u64,
    },
    /// Which addresses were refused in a sandbox.
    RefusedAddresses {
        /// That of the request.
        ticket: u64,
        /// They, at most 256.
        addresses: Vec<RefusedAddress>,
    },
}

/// The features of the launcher on this machine.
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
    /// Which users sandboxes have.
    pub users: Users,
    /// Why guests have no users of their own, if they have none.
    pub alone_because: Option<AloneBecause>,
    /// How sandboxes with a policy reach the network.
    pub network: NetworkFeature,
}

/// Why a launcher in rootless mode has no subordinate users for guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AloneBecause {
    /// The configuration says so.
    Wanted,
    /// `newuidmap` or `newgidmap` is missing.
    NoPrograms,
    /// `/etc/subuid` or `/etc/subgid` gives the user none.
    NoRange,
    /// They give the user fewer than there may be sandboxes.
    RangeTooShort,
    /// `newuidmap` or `newgidmap` refused to map them.
    MappingRefused,
}

/// Which users of the host sandboxes have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Users {
    /// Each sandbox has a range of its own: the launcher is root.
    Ranges,
    /// Programs run as the user that started the launcher; each guest has a subordinate user of its
    /// own.
    Subordinate,
    /// Programs and guests run as the user that started the launcher.
    Alone,
}

/// Paths of a sandbox's control groups on the host; `None` where there is no such group.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPaths {
    /// The directory that freezes: with `cgroup.freeze` and `cgroup.events` (v2) or `freezer.state`
    /// (v1).
    pub freezer: Option<String>,
    /// The directory with `memory.events` (v2) or `memory.oom_control` (v1).
    pub memory: Option<String>,
    /// The value of its kill counter at the start: groups are used again.
    pub out_of_memory_kills: u64,
}

/// Why the launcher refused a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchRefusal {
    /// The kind of reason.
    pub code: RefusalCode,
    /// The step that failed, in words.
    pub step: String,
    /// The kernel's error number, 0 if there is none.
    pub errno: i32,
}

/// Kinds of reasons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCode {
    /// All slots are in use.
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
