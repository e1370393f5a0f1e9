//! The directory of workspaces: one entry for each, named by its id. One is made aside and gets its
//! name when it is whole; one that goes loses its name first and is taken apart in the background.

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

use crate::deleted_but_open::Look;
use crate::error::{During as _, WorkspaceError};
use crate::hard_limits::{self, HardBy, HardLimit};
use crate::layout::{IMAGE, Places, move_to, names_in, open_directory, workspace_named};
use crate::project_ids::{self, Numbers};
use crate::reserved_space::{self, Promises};
use crate::scan::{Scan, Usage};
use crate::spare_images::Spares;
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

    /// Files and directories: enough for small ones, but nobody may take all there are.
    pub const fn files(self) -> u64 {
        model::limits::files_in(self.bytes)
    }

    /// What an image must have for its file system to hold this much: with its own tables, and with
    /// what ext4 keeps back for blocks that are promised and not written yet.
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

    /// What one of a size can come to take on disk.
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
    pub(crate) places: Arc<Places>,
    hard: HardLimit,
    known: Mutex<BTreeMap<WorkspaceId, Kind>>,
    pub(crate) promises: Promises,
    numbers: Numbers,
    spares: Spares,
    pub(crate) trash: Trash,
}

impl fmt::Debug for Workspaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workspaces").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Workspaces {
    /// Opens the directory of workspaces, finds out what limits work there, and begins to remove
    /// what an earlier run left half made or half removed.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, WorkspaceError> {
        let path = path.into();
        let places = Arc::new(Places::open(&path).during("open the directory of workspaces")?);
        for room in [&places.new, &places.spares] {
            for name in names_in(room).during("look for what is left of an earlier run")? {
                places.throw_away(room, &name).during("put away what is left of an earlier run")?;
            }
        }
        let hard = hard_limits::find(&places);
        let trash = Trash::start(Arc::clone(&places)).during("start to remove what is left")?;
        let spares = Spares::start(Arc::clone(&places)).during("start to keep spare images")?;
        let numbers = Numbers::beginning_at(places.run());
        let known = Mutex::default();
        let promises = Promises::default();
        let opened = Self { path, places, hard, known, promises, numbers, spares, trash };
        opened.learn()?;
        opened.trash.wake();
        Ok(opened)
    }

    /// Where they are.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What keeps hard limits here, and what does not.
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

    /// Whether there is one of this id, by a look at the disk: one that somebody else took away is
    /// forgotten.
    pub fn has(&self, workspace: WorkspaceId) -> bool {
        let mut known = self.known();
        let Some(kind) = known.get(&workspace) else { return false };
        let name = kind.name(workspace);
        let found = statat(&self.places.top, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_gone = found.is_err_and(|error| error == Errno::NOENT);
        if is_gone {
            known.remove(&workspace);
            // Whoever holds the promises may be waiting for what is known.
            drop(known);
            self.promises.forget(workspace);
        }
        !is_gone
    }

    /// What tells a workspace from another that has its name later: one that was archived and brought
    /// back, say. None if there is none.
    pub fn incarnation(&self, workspace: WorkspaceId) -> Option<u64> {
        let kind = self.known().get(&workspace).copied()?;
        let found = statat(&self.places.top, kind.name(workspace), AtFlags::SYMLINK_NOFOLLOW);
        found.ok().map(|found| found.st_ino)
    }

    /// Whether what one takes can be had without walking through it.
    pub fn is_counted(&self, workspace: WorkspaceId) -> bool {
        match self.known().get(&workspace) {
            Some(Kind::Image | Kind::Project) => true,
            Some(Kind::Directory | Kind::Subvolume) | None => false,
        }
    }

    /// What is free to us on the file system.
    pub fn free_bytes(&self) -> Result<u64, WorkspaceError> {
        let found = fstatvfs(&self.places.top).during("ask how much is free")?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Makes an empty workspace. One with a hard limit is a promise: it is made only if all of
    /// them together can be filled without the disk having less than `spared_bytes` left.
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
                self.promise(workspace, kind.takes(size), spared_bytes)?;
                if let Err(error) = self.make(workspace, kind, size) {
                    self.promises.forget(workspace);
                    return Err(error);
                }
            }
        }
        self.known().insert(workspace, kind);
        Ok(())
    }

    /// What one with this limit is on disk.
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
        move_to(&self.places.new, &name, &self.places.top, &name).during(STEP)
    }

    /// Makes an empty one in `new`. A directory is given back open, an image is not.
    pub(crate) fn make_aside(
        &self,
        name: &str,
        kind: Kind,
        size: Size,
    ) -> io::Result<Option<OwnedFd>> {
        let made = match kind {
            Kind::Directory => self.make_directory(name)?,
            Kind::Subvolume => {
                let made = hard_limits::make_subvolume(&self.places, name, size.bytes())?;
                reserved_space::note_on(&made, size.bytes());
                made
            }
            Kind::Project => {
                let directory = self.make_directory(name)?;
                self.limit_project(&directory, size)?;
                reserved_space::note_on(&directory, size.bytes());
                directory
            }
            Kind::Image => {
                hard_limits::make_image(&self.places, name, size)?;
                return Ok(None);
            }
        };
        give_to_user(&made)?;
        Ok(Some(made))
    }

    /// Sets room aside, or says that there is none.
    pub(crate) fn promise(
        &self,
        workspace: WorkspaceId,
        bytes: u64,
        spared_bytes: u64,
    ) -> Result<(), WorkspaceError> {
        let free = self.free_bytes()?;
        let taken = |one| self.taken_by(one);
        let left = self.promises.add(workspace, bytes, free.saturating_sub(spared_bytes), taken);
        left.map_err(|left| {
            let why = format!(
                "{} MB are wanted, and {} MB are left of what is neither spared nor promised to \
                 other workspaces with a hard limit",
                bytes >> 20,
                left >> 20
            );
            WorkspaceError::new("make a workspace", io::Error::new(io::ErrorKind::StorageFull, why))
        })
    }

    /// What one has taken of what it was promised, if that is cheap to know; else nothing, which
    /// promises less to others than there is.
    fn taken_by(&self, workspace: WorkspaceId) -> u64 {
        if !self.is_counted(workspace) {
            return 0;
        }
        let scan = Scan { enough: Size::SMALLEST, go_on: &mut |_| false };
        self.usage(workspace, scan).map_or(0, |usage| usage.bytes)
    }

    /// Takes a workspace away. It is gone when this returns; what was in it goes in the background.
    /// That it never existed is fine.
    pub fn remove(&self, workspace: WorkspaceId) -> Result<(), WorkspaceError> {
        let Some(kind) = self.known().remove(&workspace) else { return Ok(()) };
        let name = kind.name(workspace);
        if let Err(error) = self.places.throw_away(&self.places.top, &name) {
            self.known().insert(workspace, kind);
            return Err(error).during("remove a workspace");
        }
        self.promises.forget(workspace);
        self.trash.wake();
        Ok(())
    }

    /// What a workspace takes on disk. Counted by walking through it, unless the file system knows.
    pub fn usage(&self, workspace: WorkspaceId, scan: Scan<'_>) -> Result<Usage, WorkspaceError> {
        const STEP: &str = "measure a workspace";
        let kind = self.known().get(&workspace).copied();
        let Some(kind) = kind else { return Err(WorkspaceError::unknown(STEP, workspace)) };
        let name = kind.name(workspace);
        match kind {
            Kind::Image => {
                let found = statat(&self.places.top, name.as_str(), AtFlags::SYMLINK_NOFOLLOW)
                    .during(STEP)?;
                Ok(Usage::of_bytes(found.st_blocks.cast_unsigned() * 512))
            }
            Kind::Project => {
                let directory = open_directory(&self.places.top, &name).during(STEP)?;
                let project = project::project_of(directory.as_fd()).during(STEP)?;
                let held = project::held_by(directory.as_fd(), project).during(STEP)?;
                Ok(Usage { bytes: held.bytes, files: held.files, hidden: false })
            }
            Kind::Directory | Kind::Subvolume => {
                let directory = open_directory(&self.places.top, &name).during(STEP)?;
                scan.walk(directory).during(STEP)
            }
        }
    }

    /// What some workspaces hold in files that were removed and are still in use, which no scan
    /// finds. `go_on` is asked as by a scan; what was found until it said no is what is known.
    pub fn nameless(
        &self,
        wanted: &BTreeSet<WorkspaceId>,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<BTreeMap<WorkspaceId, Usage>, WorkspaceError> {
        let device = fstat(&self.places.top).during("look for removed files")?.st_dev;
        Ok(Look { device, wanted, go_on }.find())
    }

    /// Waits until nothing of what was removed is left. False if it takes longer than this.
    pub fn wait_until_removed(&self, patience: Duration) -> bool {
        self.trash.wait_until_empty(patience)
    }

    /// What could not be removed when it was last tried, in words.
    pub fn stuck(&self) -> Option<String> {
        self.trash.stuck()
    }

    pub(crate) fn known(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Kind>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds what an earlier run left.
    fn learn(&self) -> Result<(), WorkspaceError> {
        const STEP: &str = "look for workspaces";
        for name in names_in(&self.places.top).during(STEP)? {
            let Some(workspace) = workspace_named(&name) else { continue };
            let (kind, promised) = if name.ends_with(IMAGE) {
                let found = statat(&self.places.top, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
                (Kind::Image, found.map_or(0, |found| found.st_size.cast_unsigned()))
            } else {
                match open_directory(&self.places.top, &name) {
                    Ok(directory) => {
                        (self.kind_of(&directory), reserved_space::noted_on(&directory))
                    }
                    // Whatever it is, it is none of ours: it is never used, and can be removed.
                    Err(_) => (Kind::Directory, 0),
                }
            };
            self.promises.learn(workspace, promised);
            self.known().insert(workspace, kind);
        }
        Ok(())
    }

    fn kind_of(&self, directory: &OwnedFd) -> Kind {
        let top_of_subvolume =
            || fstat(directory).is_ok_and(|found| found.st_ino == btrfs::SUBVOLUME_INODE);
        if hard_limits::is_btrfs(&self.places) && top_of_subvolume() {
            return Kind::Subvolume;
        }
        match project::project_of(directory.as_fd()) {
            Ok(project) if project_ids::is_ours(project) => Kind::Project,
            Ok(_) | Err(_) => Kind::Directory,
        }
    }

    fn make_directory(&self, name: &str) -> io::Result<OwnedFd> {
        mkdirat(&self.places.new, name, Mode::RWXU)?;
        Ok(open_directory(&self.places.new, name)?)
    }

    fn limit_project(&self, directory: &OwnedFd, size: Size) -> io::Result<()> {
        let project = self.numbers.take(directory.as_fd())?;
        project::set_project(directory.as_fd(), project)?;
        project::limit_project(directory.as_fd(), project, size.bytes(), size.files())
    }
}

/// A directory in `new` belongs to the user of workspaces.
fn give_to_user(directory: &OwnedFd) -> io::Result<()> {
    fchmod(directory, Mode::from_raw_mode(0o755))?;
    if rustix::process::geteuid().is_root() {
        let (user, group) = (Uid::from_raw(WORKSPACE_USER), Gid::from_raw(WORKSPACE_USER));
        fchown(directory, Some(user), Some(group))?;
    }
    Ok(())
}
