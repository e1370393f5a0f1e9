//! The directory of workspaces: one entry for each, named by its id. A workspace is made aside and
//! gets its name when it is complete; a removal takes the name away first and deletes the files in
//! the background.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jail::sys::{btrfs, project};
use model::WorkspaceId;
use model::template::WorkspaceLimit;
use rustix::fs::{AtFlags, Gid, Mode, Uid, fchmod, fchown, fstat, fstatvfs, mkdirat, statat};
use rustix::io::Errno;

use crate::deleted_but_open::DeletedFilesScan;
use crate::error::{During as _, WorkspaceError};
use crate::hard_limits::{self, HardBy, HardLimit};
use crate::layout::{IMAGE, Layout, move_to, names_in, open_directory, workspace_named};
use crate::project_ids::{self, ProjectIds};
use crate::reserved_space::{self, ReservedSpace};
use crate::scan::{Scan, Usage};
use crate::spare_images::SpareImages;
use crate::trash::Trash;

/// The user of a workspace's files, as it is written on disk and seen in every sandbox.
pub(crate) const WORKSPACE_USER: u32 = 1000;

const BLOCK_BYTES: u64 = 4096;

/// How much a workspace may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    bytes: u64,
}

impl Size {
    /// The smallest that there is: a file system needs some room for itself.
    pub const SMALLEST: Self = Self { bytes: 4 << 20 };

    /// This many bytes, or the smallest that there is.
    pub const fn of_bytes(bytes: u64) -> Self {
        if bytes < Self::SMALLEST.bytes { Self::SMALLEST } else { Self { bytes } }
    }

    /// Bytes on disk.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Files and directories: enough for small ones, and too few to use up all inodes of the disk.
    pub const fn files(self) -> u64 {
        model::limits::files_in(self.bytes)
    }

    /// The size of an image whose file system holds this much: with its own tables, and with the
    /// blocks that ext4 reserves for delayed writes.
    pub(crate) const fn image_bytes(self) -> u64 {
        const INODE_BYTES: u64 = 256;
        const GROUP_BLOCKS: u64 = 32_768;
        let data = self.bytes.div_ceil(BLOCK_BYTES);
        let tables = (self.files() * INODE_BYTES).div_ceil(BLOCK_BYTES);
        let kept_back = (data + tables) / 49;
        let kept_back = if kept_back > 4096 { 4096 } else { kept_back };
        let groups = (data + tables + kept_back) / GROUP_BLOCKS + 1;
        // Two bitmaps, the end of a table, a copy of what describes all groups.
        let described = groups.div_ceil(BLOCK_BYTES / 64) + 1;
        (data + tables + kept_back + groups * (4 + described) + 16) * BLOCK_BYTES
    }
}

/// What a workspace is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    Subvolume,
    Project,
    Image,
}

impl Kind {
    pub(crate) fn name(self, workspace: WorkspaceId) -> String {
        match self {
            Self::Directory | Self::Subvolume | Self::Project => workspace.to_string(),
            Self::Image => format!("{workspace}{IMAGE}"),
        }
    }

    /// The most that one of a size can take on disk.
    pub(crate) const fn takes(self, size: Size) -> u64 {
        match self {
            Self::Directory | Self::Subvolume | Self::Project => size.bytes(),
            Self::Image => size.image_bytes(),
        }
    }
}

/// The workspaces of a node.
pub struct Workspaces {
    path: PathBuf,
    pub(crate) layout: Arc<Layout>,
    hard: HardLimit,
    known: Mutex<BTreeMap<WorkspaceId, Kind>>,
    pub(crate) reserved: ReservedSpace,
    project_ids: ProjectIds,
    spares: SpareImages,
    pub(crate) trash: Trash,
}

impl fmt::Debug for Workspaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspaces").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Workspaces {
    /// Opens the directory of workspaces, finds out which hard limits work there, and begins to
    /// remove unfinished and half-removed workspaces of an earlier run.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, WorkspaceError> {
        let path = path.into();
        let layout = Arc::new(Layout::open(&path).during("open the directory of workspaces")?);
        for subdirectory in [&layout.new, &layout.spares] {
            for name in names_in(subdirectory).during("look for what is left of an earlier run")? {
                layout
                    .throw_away(subdirectory, &name)
                    .during("put away what is left of an earlier run")?;
            }
        }
        let hard = hard_limits::find(&layout);
        let trash = Trash::start(Arc::clone(&layout)).during("start to remove what is left")?;
        let spares =
            SpareImages::start(Arc::clone(&layout)).during("start to keep spare images")?;
        let project_ids = ProjectIds::starting_at(layout.run());
        let known = Mutex::default();
        let reserved = ReservedSpace::default();
        let opened = Self { path, layout, hard, known, reserved, project_ids, spares, trash };
        opened.learn()?;
        opened.trash.wake();
        Ok(opened)
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What enforces hard limits here, and what does not.
    pub fn hard(&self) -> &HardLimit {
        &self.hard
    }

    /// All there are.
    pub fn list(&self) -> Vec<WorkspaceId> {
        self.known().keys().copied().collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.known().len()
    }

    /// Whether there is one of this id on the disk. One that was removed by other means is
    /// forgotten.
    pub fn has(&self, workspace: WorkspaceId) -> bool {
        let mut known = self.known();
        let Some(kind) = known.get(&workspace) else { return false };
        let name = kind.name(workspace);
        let found = statat(&self.layout.top, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_gone = found.is_err_and(|error| error == Errno::NOENT);
        if is_gone {
            known.remove(&workspace);
            // Not under the lock: a thread that holds the reserved space may wait for `known`.
            drop(known);
            self.reserved.forget(workspace);
        }
        !is_gone
    }

    /// Distinguishes a workspace from a later one of the same id, for example after an archive and
    /// a restore. None if there is none.
    pub fn incarnation(&self, workspace: WorkspaceId) -> Option<u64> {
        let kind = self.known().get(&workspace).copied()?;
        let found = statat(&self.layout.top, kind.name(workspace), AtFlags::SYMLINK_NOFOLLOW);
        found.ok().map(|found| found.st_ino)
    }

    /// Whether its usage is known without walking through it.
    pub fn is_counted(&self, workspace: WorkspaceId) -> bool {
        match self.known().get(&workspace) {
            Some(Kind::Image | Kind::Project) => true,
            Some(Kind::Directory | Kind::Subvolume) | None => false,
        }
    }

    /// The free bytes of the file system.
    pub fn free_bytes(&self) -> Result<u64, WorkspaceError> {
        let found = fstatvfs(&self.layout.top).during("ask how much is free")?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Makes an empty workspace. One with a hard limit reserves its space: it is made only if all
    /// of them together can be filled while at least `spared_bytes` stay free.
    pub fn create(
        &self,
        workspace: WorkspaceId,
        size: Size,
        limit: WorkspaceLimit,
        spared_bytes: u64,
    ) -> Result<(), WorkspaceError> {
        let kind = self.kind_for(limit)?;
        self.refuse_known(workspace)?;
        match limit {
            WorkspaceLimit::Soft => self.make(workspace, kind, size)?,
            WorkspaceLimit::Hard => {
                self.reserve_space(workspace, kind.takes(size), spared_bytes)?;
                if let Err(error) = self.make(workspace, kind, size) {
                    self.reserved.forget(workspace);
                    return Err(error);
                }
            }
        }
        self.known().insert(workspace, kind);
        Ok(())
    }

    /// The kind of a workspace with this limit.
    pub(crate) fn kind_for(&self, limit: WorkspaceLimit) -> Result<Kind, WorkspaceError> {
        match (limit, self.hard.by) {
            (WorkspaceLimit::Soft, _) => Ok(Kind::Directory),
            (WorkspaceLimit::Hard, Some(HardBy::Btrfs)) => Ok(Kind::Subvolume),
            (WorkspaceLimit::Hard, Some(HardBy::ProjectQuota)) => Ok(Kind::Project),
            (WorkspaceLimit::Hard, Some(HardBy::Image)) => Ok(Kind::Image),
            (WorkspaceLimit::Hard, None) => {
                Err(WorkspaceError::unsupported("make a workspace", &self.hard.reasons()))
            }
        }
    }

    pub(crate) fn refuse_known(&self, workspace: WorkspaceId) -> Result<(), WorkspaceError> {
        if self.known().contains_key(&workspace) {
            return Err(WorkspaceError::new("make a workspace", Errno::EXIST.into()));
        }
        Ok(())
    }

    fn make(&self, workspace: WorkspaceId, kind: Kind, size: Size) -> Result<(), WorkspaceError> {
        const STEP: &str = "make a workspace";
        let name = kind.name(workspace);
        if kind == Kind::Image && self.spares.take(size, &name).during(STEP)? {
            return Ok(());
        }
        self.make_aside(&name, kind, size).during(STEP)?;
        move_to(&self.layout.new, &name, &self.layout.top, &name).during(STEP)
    }

    /// Makes an empty one in `new`. Returns an open directory, or none for an image.
    pub(crate) fn make_aside(
        &self,
        name: &str,
        kind: Kind,
        size: Size,
    ) -> io::Result<Option<OwnedFd>> {
        let made = match kind {
            Kind::Directory => self.make_directory(name)?,
            Kind::Subvolume => {
                let made = hard_limits::make_subvolume(&self.layout, name, size.bytes())?;
                reserved_space::store_on(&made, size.bytes());
                made
            }
            Kind::Project => {
                let directory = self.make_directory(name)?;
                self.limit_project(&directory, size)?;
                reserved_space::store_on(&directory, size.bytes());
                directory
            }
            Kind::Image => {
                hard_limits::make_image(&self.layout, name, size)?;
                return Ok(None);
            }
        };
        give_to_user(&made)?;
        Ok(Some(made))
    }

    /// Reserves space, or fails if there is too little.
    pub(crate) fn reserve_space(
        &self,
        workspace: WorkspaceId,
        bytes: u64,
        spared_bytes: u64,
    ) -> Result<(), WorkspaceError> {
        let free = self.free_bytes()?;
        let used = |one| self.used_by(one);
        let left = self.reserved.reserve(workspace, bytes, free.saturating_sub(spared_bytes), used);
        left.map_err(|left| {
            let why = format!(
                "the workspace needs {} MB, and {} MB are left that are neither kept free nor \
                 reserved for other workspaces with a hard limit",
                bytes >> 20,
                left >> 20
            );
            WorkspaceError::new("make a workspace", io::Error::new(io::ErrorKind::StorageFull, why))
        })
    }

    /// How much of its reserved space one already uses, if that is cheap to know; else 0, which
    /// leaves less for others than there is.
    fn used_by(&self, workspace: WorkspaceId) -> u64 {
        if !self.is_counted(workspace) {
            return 0;
        }
        let scan = Scan { enough: Size::SMALLEST, go_on: &mut |_| false };
        self.usage(workspace, scan).map_or(0, |usage| usage.bytes)
    }

    /// Removes a workspace. It is gone when this returns; its files are deleted in the background.
    /// Succeeds also if it does not exist.
    pub fn remove(&self, workspace: WorkspaceId) -> Result<(), WorkspaceError> {
        let Some(kind) = self.known().remove(&workspace) else { return Ok(()) };
        let name = kind.name(workspace);
        if let Err(error) = self.layout.throw_away(&self.layout.top, &name) {
            self.known().insert(workspace, kind);
            return Err(error).during("remove a workspace");
        }
        self.reserved.forget(workspace);
        self.trash.wake();
        Ok(())
    }

    /// The usage of a workspace. Counted by walking through it, unless the file system knows it.
    pub fn usage(&self, workspace: WorkspaceId, scan: Scan<'_>) -> Result<Usage, WorkspaceError> {
        const STEP: &str = "measure a workspace";
        let kind = self.known().get(&workspace).copied();
        let Some(kind) = kind else { return Err(WorkspaceError::unknown(STEP, workspace)) };
        let name = kind.name(workspace);
        match kind {
            Kind::Image => {
                let found = statat(&self.layout.top, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)
                    .during(STEP)?;
                Ok(Usage::of_bytes(found.st_blocks.cast_unsigned() * 512))
            }
            Kind::Project => {
                let directory = open_directory(&self.layout.top, &name).during(STEP)?;
                let project = project::project_of(directory.as_fd()).during(STEP)?;
                let held = project::held_by(directory.as_fd(), project).during(STEP)?;
                Ok(Usage { bytes: held.bytes, files: held.files, hidden: false })
            }
            Kind::Directory | Kind::Subvolume => {
                let directory = open_directory(&self.layout.top, &name).during(STEP)?;
                scan.walk(directory).during(STEP)
            }
        }
    }

    /// The usage of files that were removed and are still open or mapped, which no scan finds.
    /// `go_on` is called as by a scan; if it returns false, the result has what was found until
    /// then.
    pub fn deleted_but_open(
        &self,
        wanted: &BTreeSet<WorkspaceId>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<BTreeMap<WorkspaceId, Usage>, WorkspaceError> {
        let device = fstat(&self.layout.top).during("look for removed files")?.st_dev;
        Ok(DeletedFilesScan { device, wanted, go_on }.find())
    }

    /// Waits until nothing of what was removed is left. False if it takes longer than this.
    pub fn wait_until_removed(&self, patience: Duration) -> bool {
        self.trash.wait_until_empty(patience)
    }

    /// Why the last removal failed, if it did.
    pub fn stuck(&self) -> Option<String> {
        self.trash.stuck()
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Kind>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the workspaces that exist on disk.
    fn learn(&self) -> Result<(), WorkspaceError> {
        const STEP: &str = "look for workspaces";
        for name in names_in(&self.layout.top).during(STEP)? {
            let Some(workspace) = workspace_named(&name) else { continue };
            let (kind, reserved) = if name.ends_with(IMAGE) {
                let found = statat(&self.layout.top, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
                (Kind::Image, found.map_or(0, |found| found.st_size.cast_unsigned()))
            } else {
                match open_directory(&self.layout.top, &name) {
                    Ok(directory) => {
                        (self.kind_of(&directory), reserved_space::stored_on(&directory))
                    }
                    // Not a directory, so not ours: it is never used, and can be removed.
                    Err(_) => (Kind::Directory, 0),
                }
            };
            self.reserved.learn(workspace, reserved);
            self.known().insert(workspace, kind);
        }
        Ok(())
    }

    fn kind_of(&self, directory: &OwnedFd) -> Kind {
        let top_of_subvolume =
            || fstat(directory).is_ok_and(|found| found.st_ino == btrfs::SUBVOLUME_INODE);
        if hard_limits::is_btrfs(&self.layout) && top_of_subvolume() {
            return Kind::Subvolume;
        }
        match project::project_of(directory.as_fd()) {
            Ok(project) if project_ids::is_ours(project) => Kind::Project,
            Ok(_) | Err(_) => Kind::Directory,
        }
    }

    fn make_directory(&self, name: &str) -> io::Result<OwnedFd> {
        mkdirat(&self.layout.new, name, Mode::RWXU)?;
        Ok(open_directory(&self.layout.new, name)?)
    }

    fn limit_project(&self, directory: &OwnedFd, size: Size) -> io::Result<()> {
        let project = self.project_ids.take(directory.as_fd())?;
        project::set_project(directory.as_fd(), project)?;
        project::limit_project(directory.as_fd(), project, size.bytes(), size.files())
    }
}

/// Gives a directory in `new` to the user of workspaces.
fn give_to_user(directory: &OwnedFd) -> io::Result<()> {
    fchmod(directory, Mode::from_raw_mode(0o755))?;
    if rustix::process::geteuid().is_root() {
        let (user, group) = (Uid::from_raw(WORKSPACE_USER), Gid::from_raw(WORKSPACE_USER));
        fchown(directory, Some(user), Some(group))?;
    }
    Ok(())
}
