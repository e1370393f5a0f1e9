//! Where control groups are on this machine and which of them we may use. There are two generations
//! and every mixture of them; this module finds out which directory serves each use. It only reads:
//! it must never make or change a group.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::files::Files;
use super::parse::{Membership, Mount, memberships, mounts, version};
use crate::groups::{Hierarchy, Use, VACATED_TO, Version};

/// Which generations are mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    /// One hierarchy for everything.
    V2,
    /// One per controller.
    V1,
    /// Both: controllers on v1, and v2 beside them.
    Hybrid,
    /// Neither.
    None,
}

/// Whether a group can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// We may make groups in it.
    Writable,
    /// It is mounted read-only, as in most containers.
    ReadOnly,
    /// It belongs to another user.
    Denied,
    /// Its threads are in groups of their own, so it cannot contain whole processes.
    Threaded,
}

/// Where one use is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The generation.
    pub version: Version,
    /// The directory beneath which ours are made.
    pub directory: PathBuf,
    /// Whether we may use it.
    pub access: Access,
    /// `directory` itself contains processes, and it is not the top of its hierarchy: on v2 they
    /// must move into a child before its children can have controllers.
    pub must_be_vacated: bool,
}

/// Control groups of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupLayout {
    /// Which generations.
    pub arrangement: Arrangement,
    /// Limits memory.
    pub memory: Option<Placement>,
    /// Limits processor time.
    pub cpu: Option<Placement>,
    /// Limits processes.
    pub pids: Option<Placement>,
    /// Freezes.
    pub freezer: Option<Placement>,
}

/// Since this version v2 itself can freeze; the top of a hierarchy, where we look, does not show
/// it.
const FREEZE_SINCE: (u32, u32) = (5, 2);

/// All uses, in the order of reports.
pub const USES: [Use; 4] = [Use::Memory, Use::Cpu, Use::Pids, Use::Freezer];

impl CgroupLayout {
    /// Finds them. `is_root`: whether we may use groups that are not ours.
    pub fn find(files: &dyn Files, is_root: bool) -> Self {
        let read = |path| files.text(Path::new(path)).unwrap_or_default();
        let mounts = visible(mounts(&read("/proc/self/mountinfo")));
        let ours = memberships(&read("/proc/self/cgroup"));
        let v2 = mounts.iter().find(|mount| mount.kind == "cgroup2");
        let v2 = v2.map(|mount| place_v2(files, mount, &ours, is_root));
        let can_freeze = version(&read("/proc/sys/kernel/osrelease")) >= Some(FREEZE_SINCE);
        let v1 = |controller: &str| {
            let carries = |mount: &&Mount| mount.options.iter().any(|option| option == controller);
            let mount = mounts.iter().filter(|mount| mount.kind == "cgroup").find(carries)?;
            Some(place_v1(files, mount))
        };
        let serve = |used: Use| {
            let offers = |found: &&FoundV2| match used {
                Use::Freezer => can_freeze,
                Use::Memory | Use::Cpu | Use::Pids => found.controls(controller_of(used)),
            };
            let by_v2 = v2.as_ref().filter(offers);
            let by_v2 = by_v2.map(|found| found.placement.clone());
            match by_v2 {
                Some(placement) if placement.access == Access::Writable => Some(placement),
                other => v1(controller_of(used)).or(other),
            }
        };
        let any_v1 = USES.iter().any(|used| v1(controller_of(*used)).is_some());
        let arrangement = match (v2.is_some(), any_v1) {
            (true, true) => Arrangement::Hybrid,
            (true, false) => Arrangement::V2,
            (false, true) => Arrangement::V1,
            (false, false) => Arrangement::None,
        };
        Self {
            arrangement,
            memory: serve(Use::Memory),
            cpu: serve(Use::Cpu),
            pids: serve(Use::Pids),
            freezer: serve(Use::Freezer),
        }
    }

    /// Where this use is served, if it is.
    pub const fn placement(&self, used: Use) -> Option<&Placement> {
        match used {
            Use::Memory => self.memory.as_ref(),
            Use::Cpu => self.cpu.as_ref(),
            Use::Pids => self.pids.as_ref(),
            Use::Freezer => self.freezer.as_ref(),
        }
    }

    /// What we may use, by directory.
    pub fn hierarchies(&self) -> Vec<Hierarchy> {
        let mut found: Vec<Hierarchy> = Vec::new();
        for used in USES {
            let placement = self.placement(used);
            let Some(placement) = placement.filter(|found| found.access == Access::Writable) else {
                continue;
            };
            match found.iter_mut().find(|one| one.directory == placement.directory) {
                Some(hierarchy) => hierarchy.uses.push(used),
                None => found.push(Hierarchy {
                    version: placement.version,
                    directory: placement.directory.clone(),
                    uses: vec![used],
                }),
            }
        }
        found
    }

    /// The directory whose processes must move into a child first, if there is one.
    pub fn to_vacate(&self) -> Option<&Path> {
        USES.iter()
            .filter_map(|used| self.placement(*used))
            .find(|found| found.access == Access::Writable && found.must_be_vacated)
            .map(|found| found.directory.as_path())
    }
}

/// The name of the controller that serves a use.
pub const fn controller_of(used: Use) -> &'static str {
    match used {
        Use::Memory => "memory",
        Use::Cpu => "cpu",
        Use::Pids => "pids",
        Use::Freezer => "freezer",
    }
}

/// Of several mounts at one path, only the last is visible.
fn visible(mounts: Vec<Mount>) -> Vec<Mount> {
    let mut seen: Vec<Mount> = Vec::new();
    for mount in mounts {
        seen.retain(|earlier| earlier.point != mount.point);
        seen.push(mount);
    }
    seen
}

struct FoundV2 {
    placement: Placement,
    controllers: Vec<String>,
}

impl FoundV2 {
    fn controls(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }
}

fn place_v2(files: &dyn Files, mount: &Mount, ours: &[Membership], is_root: bool) -> FoundV2 {
    let own = ours.iter().find(|one| one.controllers.is_empty());
    let own = own.map_or_else(|| mount.point.clone(), |one| beneath(mount, &one.path));
    let directory = match handed_over(files, &own, &mount.point) {
        Some(directory) => directory.to_owned(),
        None if is_root => mount.point.clone(),
        None => without_ours(&own).to_owned(),
    };
    // The top of the whole hierarchy has no type; the top of what a container sees has one.
    let kind = files.text(&directory.join("cgroup.type"));
    let is_top = !files.exists(&directory.join("cgroup.type"));
    let access = match kind.as_deref().map(str::trim) {
        Some("domain") | None => access(files, mount, &directory),
        Some(_) => Access::Threaded,
    };
    let occupied =
        files.text(&directory.join("cgroup.procs")).is_some_and(|text| !text.trim().is_empty());
    let controllers = files.text(&directory.join("cgroup.controllers")).unwrap_or_default();
    FoundV2 {
        controllers: controllers.split_whitespace().map(str::to_owned).collect(),
        placement: Placement {
            version: Version::V2,
            access,
            must_be_vacated: !is_top && occupied,
            directory,
        },
    }
}

/// A group that was delegated to us is the one to use: the group we are in, or the one around it if
/// we are in a child of it. Without delegation, root uses the top, beside all others, and other
/// users can only try the group they are in.
fn handed_over<'a>(files: &dyn Files, own: &'a Path, top: &Path) -> Option<&'a Path> {
    let own = without_ours(own);
    let mut candidates = std::iter::once(own).chain(own.parent());
    candidates.find(|group| *group != top && files.is_delegated(group) && !is_of_a_session(group))
}

/// The group of a session manager was delegated to that, not to us.
fn is_of_a_session(group: &Path) -> bool {
    let name = group.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("user@"))
}

/// The group we were in before a process of ours moved all processes into a child of it.
fn without_ours(own: &Path) -> &Path {
    match own.parent() {
        Some(around) if own.file_name() == Some(OsStr::new(VACATED_TO)) => around,
        Some(_) | None => own,
    }
}

fn place_v1(files: &dyn Files, mount: &Mount) -> Placement {
    Placement {
        version: Version::V1,
        directory: mount.point.clone(),
        access: access(files, mount, &mount.point),
        must_be_vacated: false,
    }
}

/// The directory of a group, from its path in the hierarchy and the part of it that is mounted.
fn beneath(mount: &Mount, path: &str) -> PathBuf {
    let shown = Path::new(path).strip_prefix(&mount.root);
    // A group outside of what is mounted is written with "..": then only the top can be used.
    match shown {
        Ok(relative) if !path.contains("..") => {
            if relative.as_os_str().is_empty() {
                mount.point.clone()
            } else {
                mount.point.join(relative)
            }
        }
        Ok(_) | Err(_) => mount.point.clone(),
    }
}

fn access(files: &dyn Files, mount: &Mount, directory: &Path) -> Access {
    if mount.read_only {
        Access::ReadOnly
    } else if files.may_change(directory) {
        Access::Writable
    } else {
        Access::Denied
    }
}
