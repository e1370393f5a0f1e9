//! Walks a tree of files in the order of names, a directory before its contents. No link beneath
//! the first directory is followed, `/proc` is never entered, and however wide or deep the tree is,
//! the number of names in memory is bounded.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::vec::IntoIter;

use guest_protocol::look::Which;
use guest_protocol::message::{EntryKind, Fault};
use guest_protocol::pattern::matches_any;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, RawDir, Stat, fstat, fstatfs, openat,
    statat,
};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::super::fault::refused;
use super::super::files::{kind_of, path_resolution, refuse_proc};

/// The most names held at once, of all directories on the current path.
pub(super) const MAX_NAMES: usize = 200_000;

/// Bytes read of a directory at once.
const BUFFER_BYTES: usize = 32 * 1024;

/// The kernel's maximum length of a path.
const MAX_PATH_BYTES: usize = 4095;

/// One file of a tree.
pub(super) struct Visit {
    /// Relative to the first directory.
    pub(super) path: Vec<u8>,
    pub(super) stat: Stat,
    /// Whether its name matches.
    pub(super) is_wanted: bool,
}

struct Level {
    /// How much of the path belongs to this directory.
    path_bytes: usize,
    device: u64,
    files: IntoIter<(Vec<u8>, Stat)>,
}

/// A walk through a tree.
pub(super) struct Walk<'a> {
    root: OwnedFd,
    which: &'a Which,
    max_depth: usize,
    levels: Vec<Level>,
    path: Vec<u8>,
    held: usize,
    /// Directories that could not be read.
    pub(super) unreadable: u64,
    /// Some names were left out.
    pub(super) is_cut: bool,
}

impl<'a> Walk<'a> {
    /// Begins at a directory. Returns the file instead if it is one.
    pub(super) fn start(
        path: &str,
        which: &'a Which,
        max_depth: Option<u32>,
    ) -> Result<Result<Self, OwnedFd>, Fault> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty()).map_err(|errno| refused(errno, path))?;
        refuse_proc(&root, path)?;
        let found = fstat(&root).map_err(|errno| refused(errno, path))?;
        if kind_of(&found) != EntryKind::Directory {
            return Ok(Err(root));
        }
        let mut walk = Self {
            root,
            which,
            max_depth: max_depth.map_or(usize::MAX, |depth| depth as usize),
            levels: Vec::new(),
            path: Vec::new(),
            held: 0,
            unreadable: 0,
            is_cut: false,
        };
        if walk.max_depth > 0 {
            let copy = walk.root.try_clone().map_err(|_| refused(Errno::MFILE, path))?;
            walk.enter(&copy, found.st_dev).map_err(|errno| refused(errno, path))?;
        }
        Ok(Ok(walk))
    }

    /// The next file, in order.
    pub(super) fn next(&mut self) -> Option<Visit> {
        loop {
            let level = self.levels.last_mut()?;
            let Some((name, stat)) = level.files.next() else {
                self.levels.pop();
                continue;
            };
            self.held -= 1;
            let (path_bytes, device) = (level.path_bytes, level.device);
            self.path.truncate(path_bytes);
            if path_bytes > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            let visit = Visit {
                path: self.path.clone(),
                stat,
                is_wanted: matches_any(&self.which.names, &name),
            };
            if kind_of(&stat) == EntryKind::Directory && self.levels.len() < self.max_depth {
                self.descend(stat.st_dev != device);
            }
            return Some(visit);
        }
    }

    /// Opens a file of the walk. Non-blocking, because something else may have replaced it.
    pub(super) fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open_as(path, OFlags::empty())
    }

    fn open_as(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        if path.len() > MAX_PATH_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let flags = flags
            | OFlags::RDONLY
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::NOFOLLOW
            | OFlags::CLOEXEC;
        path_resolution::open_beneath(self.root.as_fd(), path, flags)
    }

    fn descend(&mut self, is_elsewhere: bool) {
        let entered = self.open_as(&self.path, OFlags::DIRECTORY).and_then(|directory| {
            if is_elsewhere && fstatfs(&directory)?.f_type == PROC_SUPER_MAGIC {
                return Err(Errno::ACCESS);
            }
            let device = fstat(&directory)?.st_dev;
            self.enter(&directory, device)
        });
        // A directory that was removed meanwhile is left out.
        if entered.is_err_and(|errno| errno != Errno::NOENT) {
            self.unreadable += 1;
        }
    }

    fn enter(&mut self, directory: &OwnedFd, device: u64) -> Result<(), Errno> {
        let room = MAX_NAMES.saturating_sub(self.held);
        let mut names = self.names_in(directory, room)?;
        names.sort_unstable();
        if names.len() > room {
            names.truncate(room);
            self.is_cut = true;
        }
        let described = |name: Vec<u8>| {
            let stat = statat(directory, &name[..], AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let is_excluded = kind_of(&stat) == EntryKind::Directory
                && self.which.exclude_directories.iter().any(|one| one.as_bytes() == name);
            (!is_excluded).then_some((name, stat))
        };
        let files: Vec<_> = names.into_iter().filter_map(described).collect();
        self.held += files.len();
        let path_bytes = if self.levels.is_empty() { 0 } else { self.path.len() };
        self.levels.push(Level { path_bytes, device, files: files.into_iter() });
        Ok(())
    }

    /// Names to report or enter. If there are more than `room`, the first ones.
    fn names_in(&mut self, directory: &OwnedFd, room: usize) -> Result<Vec<Vec<u8>>, Errno> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut entries = RawDir::new(directory, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let may_be_directory =
                matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            let is_hidden = self.which.exclude_hidden && name.starts_with(b".");
            let is_of_use = may_be_directory || matches_any(&self.which.names, name);
            if name == b"." || name == b".." || is_hidden || !is_of_use {
                continue;
            }
            names.push(name.to_vec());
            if names.len() > room.saturating_mul(2).max(1024) {
                names.sort_unstable();
                names.truncate(room);
                self.is_cut = true;
            }
        }
        Ok(names)
    }
}

/// The time at which a look must end.
#[derive(Clone, Copy)]
pub(super) struct Deadline(u64);

impl Deadline {
    pub(super) fn after(time_ms: u32) -> Self {
        Self(now_ms().saturating_add(u64::from(time_ms)))
    }

    pub(super) fn has_passed(self) -> bool {
        now_ms() >= self.0
    }
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let milliseconds = now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000);
    u64::try_from(milliseconds).unwrap_or(0)
}
