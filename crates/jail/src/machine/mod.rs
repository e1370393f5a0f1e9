//! What this machine can do: kernel, control groups, limits, and our privileges. Facts only; their
//! users decide what they mean. Reading them must never change anything.

pub mod cgroups;
pub mod files;
pub mod parse;

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use cgroups::{Access, Arrangement, CgroupLayout, Placement};
pub use files::{Files, Host};

/// Whether the kernel has a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It has.
    There,
    /// It does not: it is too old, or was built without it.
    Missing,
    /// It may have it, but we are not allowed to use it.
    Denied,
}

/// Which calls the kernel has. `sys::probe` asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calls {
    /// Building mounts piece by piece (Linux 5.2).
    pub new_mount_api: Presence,
    /// Changing mounts recursively (5.12).
    pub mount_setattr: Presence,
    /// Handles to mounts (5.2).
    pub open_tree: Presence,
    /// Making processes with a structure of arguments (5.3).
    pub clone3: Presence,
    /// Opening beneath a directory (5.6).
    pub openat2: Presence,
    /// Handles to processes (5.3).
    pub pidfd_open: Presence,
    /// Closing many descriptors (5.9).
    pub close_range: Presence,
    /// System call filters that kill processes (4.14).
    pub seccomp: Presence,
    /// The Landlock version, if it is enabled.
    pub landlock_abi: Option<u32>,
}

/// User namespaces, whose root has no privileges outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserNamespaces {
    /// The kernel has them.
    pub there: bool,
    /// How many there may be.
    pub most: u64,
    /// An ordinary user may make one.
    pub for_unprivileged: bool,
}

/// A privilege that the launcher needs, with the kernel's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// Its name without the prefix, as in the manual.
    pub name: &'static str,
    /// Its bit.
    pub bit: u8,
}

/// The privileges of root that the launcher needs.
pub const NEEDED: &[Capability] = &[
    Capability { name: "CHOWN", bit: 0 },
    Capability { name: "DAC_OVERRIDE", bit: 1 },
    Capability { name: "KILL", bit: 5 },
    Capability { name: "SETGID", bit: 6 },
    Capability { name: "SETUID", bit: 7 },
    Capability { name: "SETPCAP", bit: 8 },
    Capability { name: "NET_ADMIN", bit: 12 },
    Capability { name: "SYS_ADMIN", bit: 21 },
];

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The kernel's name for itself.
    pub release: String,
    /// Its version: the first two numbers, 0 if it cannot be read.
    pub version: (u32, u32),
    /// Control groups.
    pub cgroups: CgroupLayout,
    /// User namespaces.
    pub user_namespaces: UserNamespaces,
    /// The other kinds of namespaces that the kernel lacks.
    pub namespaces_missing: Vec<&'static str>,
    /// Calls.
    pub calls: Calls,
    /// A process can start in a control group.
    pub clone_into_cgroup: bool,
    /// A mount can show other owners than its files have.
    pub idmapped_mounts: bool,
    /// Overlays can be mounted in a user namespace.
    pub overlay_in_userns: bool,
    /// Whether we are root.
    pub is_root: bool,
    /// Which of [`NEEDED`] we lack.
    pub capabilities_missing: Vec<Capability>,
    /// Whether a system call filter already applies to us.
    pub filtered: bool,
    /// Open files: soft and hard limit, none is unlimited.
    pub open_files: (Option<u64>, Option<u64>),
    /// Processes of the whole machine.
    pub pid_max: u64,
    /// Memory of the whole machine.
    pub memory_bytes: u64,
    /// Swap of the whole machine.
    pub swap_bytes: u64,
    /// Whether `/usr` exists and can be shown in sandboxes.
    pub usr: bool,
}

impl Machine {
    /// The machine we are on.
    pub fn probe() -> Self {
        Self::describe(&Host, crate::sys::probe::calls())
    }

    /// A machine, from its files and the answers of its kernel.
    pub fn describe(files: &dyn Files, calls: Calls) -> Self {
        let read = |path: &str| files.text(Path::new(path)).unwrap_or_default();
        let exists = |path: &str| files.exists(Path::new(path));
        let number = |path: &str| read(path).trim().parse::<u64>().ok();

        let release = read("/proc/sys/kernel/osrelease").trim().to_owned();
        let version = parse::version(&release).unwrap_or((0, 0));
        let status = read("/proc/self/status");
        let is_root = effective_user(&status) == Some(0);
        let cgroups = CgroupLayout::find(files, is_root);
        let born_in_v2 = cgroups
            .hierarchies()
            .iter()
            .any(|hierarchy| hierarchy.version == crate::groups::Version::V2);
        let filesystems = read("/proc/filesystems");
        let has_overlay = filesystems.lines().any(|line| line.trim_end().ends_with("\toverlay"));
        let meminfo = read("/proc/meminfo");
        let namespaces = ["mnt", "pid", "net", "ipc", "uts", "cgroup"];
        let namespaces_missing = namespaces.into_iter();

        Self {
            user_namespaces: UserNamespaces {
                there: exists("/proc/self/ns/user"),
                most: number("/proc/sys/user/max_user_namespaces").unwrap_or(0),
                // Switches of two distributions; without them, all users may.
                for_unprivileged: number("/proc/sys/kernel/unprivileged_userns_clone") != Some(0)
                    && number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
                        .unwrap_or(0)
                        == 0,
            },
            namespaces_missing: namespaces_missing
                .filter(|name| !exists(&format!("/proc/self/ns/{name}")))
                .collect(),
            clone_into_cgroup: calls.clone3 == Presence::There && version >= (5, 7) && born_in_v2,
            idmapped_mounts: calls.mount_setattr == Presence::There && version >= (5, 12),
            overlay_in_userns: has_overlay && version >= (5, 11),
            calls,
            is_root,
            capabilities_missing: missing_capabilities(&status),
            filtered: parse::value_of(&status, "Seccomp").is_some_and(|mode| mode != "0"),
            open_files: parse::open_files(&read("/proc/self/limits")).unwrap_or((None, None)),
            pid_max: number("/proc/sys/kernel/pid_max").unwrap_or(32_768),
            memory_bytes: parse::memory_bytes(&meminfo, "MemTotal").unwrap_or(0),
            swap_bytes: parse::memory_bytes(&meminfo, "SwapTotal").unwrap_or(0),
            usr: exists("/usr/bin"),
            release,
            version,
            cgroups,
        }
    }
}

/// The second of the four ids in `Uid:`.
fn effective_user(status: &str) -> Option<u32> {
    parse::value_of(status, "Uid")?.split_whitespace().nth(1)?.parse().ok()
}

fn missing_capabilities(status: &str) -> Vec<Capability> {
    let effective = parse::value_of(status, "CapEff");
    let effective = effective.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
    NEEDED.iter().filter(|wanted| effective >> wanted.bit & 1 == 0).copied().collect()
}
