//! Measures the disk usage of a workspace, also while it is in use. It must follow no link and
//! cross no mount. It counts a hard-linked file once, and stops at the limit, so that the limit
//! bounds its cost.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, statat,
};
use rustix::io::Errno;

use crate::directory::Size;

/// How deep directories may be nested. Each level costs two descriptors while it is looked at, and
/// files that lie deeper cannot be measured.
pub const DEPTH_MAX: usize = 128;

/// Files with many names that are remembered. Those beyond count once for each name.
const LINKED_MAX: usize = 1_000_000;

/// How many entries are scanned between two calls of `go_on`.
const STRIDE: u64 = 256;

/// The disk usage of a workspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on disk: blocks, whatever files claim to have.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
    /// Whether some files are not counted: they lie too deep, or may not be read.
    pub hidden: bool,
}

impl Usage {
    /// Both together.
    #[must_use]
    pub const fn and(self, more: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(more.bytes),
            files: self.files.saturating_add(more.files),
            hidden: self.hidden || more.hidden,
        }
    }

    pub(crate) fn of_bytes(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }
}

/// How to measure.
pub struct Scan<'a> {
    /// The scan stops beyond this size.
    pub enough: Size,
    /// Called now and then with the number of entries since the last call. It may sleep, to slow
    /// the scan down. False ends the scan.
    pub go_on: &'a mut dyn FnMut(u64) -> bool,
}

struct Level {
    directory: OwnedFd,
    entries: Dir,
}

impl Level {
    fn of(directory: OwnedFd) -> Result<Self, Errno> {
        let entries = Dir::read_from(&directory)?;
        Ok(Self { directory, entries })
    }
}

impl Scan<'_> {
    pub(crate) fn walk(self, top: OwnedFd) -> io::Result<Usage> {
        let Scan { enough, go_on } = self;
        let top_found = fstat(&top)?;
        let device = top_found.st_dev;
        let mut usage = Usage { bytes: bytes_of(&top_found), files: 1, hidden: false };
        let mut linked = BTreeSet::new();
        let mut levels = vec![Level::of(top)?];
        let mut since: u64 = 0;
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { break };
            let Some(entry) = level.entries.read() else {
                levels.pop();
                continue;
            };
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            since += 1;
            if since == STRIDE {
                if !go_on(since) {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                since = 0;
            }
            // A file that is gone by now takes nothing.
            let Ok(found) = statat(&level.directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if found.st_dev != device {
                continue;
            }
            let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
            if !is_directory
                && found.st_nlink > 1
                && linked.len() < LINKED_MAX
                && !linked.insert(found.st_ino)
            {
                continue;
            }
            usage.files += 1;
            usage.bytes += bytes_of(&found);
            if usage.bytes > enough.bytes() || usage.files > enough.files() {
                return Ok(usage);
            }
            if is_directory {
                if depth == DEPTH_MAX {
                    usage.hidden = true;
                    continue;
                }
                let opened = open_below(&level.directory, name).and_then(Level::of);
                match opened {
                    Ok(below) => levels.push(below),
                    Err(Errno::ACCESS | Errno::PERM) => usage.hidden = true,
                    // It was moved or replaced.
                    Err(_) => {}
                }
            }
        }
        Ok(usage)
    }
}

fn open_below(directory: &OwnedFd, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(directory, name, flags, Mode::empty(), resolve)
}

pub(crate) fn bytes_of(found: &Stat) -> u64 {
    found.st_blocks.cast_unsigned() * 512
}
