//! Removes a tree that untrusted programs made: of any depth, with any permissions and names. No
//! program can reach it any more, so `..` leads back up, and one descriptor is enough for every
//! depth. Only directories far above the current one are read a second time.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, IFlags, Mode, OFlags, ResolveFlags, chmodat, fstat,
    ioctl_getflags, ioctl_setflags, openat, openat2, unlinkat,
};
use rustix::io::Errno;

/// Directories above the one that is being emptied whose place in their list is remembered.
const REMEMBERED: usize = 64;

/// A directory on the way down.
struct Level {
    directory: OwnedFd,
    entries: Dir,
    /// Its name in its parent; empty if that was forgotten.
    name: CString,
    /// Something could not be removed from it.
    failed: Option<io::Error>,
}

impl Level {
    fn of(directory: OwnedFd, name: &CStr) -> io::Result<Self> {
        let entries = Dir::read_from(&directory)?;
        Ok(Self { directory, entries, name: name.to_owned(), failed: None })
    }
}

/// Removes a directory and everything in it.
pub(crate) fn remove_tree(parent: &OwnedFd, name: &CStr, stopped: &AtomicBool) -> io::Result<()> {
    let parent_found = fstat(parent)?;
    let mut below = 0_u64;
    let mut levels = VecDeque::from([Level::of(open_for_removal(parent, name)?, name)?]);
    loop {
        if stopped.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let Some(level) = levels.back_mut() else { break };
        if let Some(child) = empty(level, stopped)? {
            levels.push_back(child);
            below += 1;
            if levels.len() > REMEMBERED {
                levels.pop_front();
            }
            continue;
        }
        // A directory that is not empty keeps all those above it.
        if let Some(error) = level.failed.take() {
            return Err(error);
        }
        if below == 0 {
            break;
        }
        let Some(emptied) = levels.pop_back() else { break };
        below -= 1;
        if levels.is_empty() {
            let above = openat(&emptied.directory, "..", DIRECTORY, Mode::empty())?;
            let found = fstat(&above)?;
            if (found.st_dev, found.st_ino) == (parent_found.st_dev, parent_found.st_ino) {
                return Err(io::Error::other("a tree that is being removed was moved"));
            }
            // Its first look finds the one that was emptied, and removes it.
            levels.push_back(Level::of(above, c"")?);
        } else if let Some(above) = levels.back_mut() {
            unlinkat(&above.directory, emptied.name, AtFlags::REMOVEDIR)?;
        }
    }
    drop(levels);
    Ok(unlinkat(parent, name, AtFlags::REMOVEDIR)?)
}

/// Removes what is in a directory until it comes to a directory that is not empty, which it opens.
fn empty(level: &mut Level, stopped: &AtomicBool) -> io::Result<Option<Level>> {
    while let Some(entry) = level.entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match remove_one(&level.directory, name, entry.file_type()) {
            Ok(true) => {}
            Ok(false) => {
                let child = open_for_removal(&level.directory, name)?;
                return Ok(Some(Level::of(child, name)?));
            }
            Err(error) => level.failed = Some(error),
        }
        if stopped.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    Ok(None)
}

/// Removes one name. False if it is a directory that is not empty.
fn remove_one(directory: &OwnedFd, name: &CStr, kind: FileType) -> io::Result<bool> {
    if kind != FileType::Directory {
        match freeing(directory, name, || unlinkat(directory, name, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => return Ok(true),
            Err(Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match freeing(directory, name, || unlinkat(directory, name, AtFlags::REMOVEDIR)) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens a directory, whatever its permissions.
fn open_for_removal(parent: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let open = || openat2(parent, name, DIRECTORY, Mode::empty(), resolve);
    match open() {
        Err(Errno::ACCESS) => {
            let place = path_of(parent, name)?;
            permit(&place)?;
            Ok(open()?)
        }
        opened => Ok(opened?),
    }
}

/// Tries an operation on a name in a directory. If it is denied, clears the permissions and flags
/// that forbid it, and tries once more.
fn freeing<T>(
    directory: &OwnedFd,
    name: &CStr,
    act: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match act() {
        Err(Errno::ACCESS | Errno::PERM) => {
            let _ = permit(directory);
            unflag(directory);
            if let Ok(place) = path_of(directory, name) {
                let _ = permit(&place);
                let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                if let Ok(opened) = openat(directory, name, flags, Mode::empty()) {
                    unflag(&opened);
                }
            }
            act()
        }
        done => done,
    }
}

fn path_of(directory: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty())
}

/// Gives the owner all permissions. Through `/proc`, because that works for `O_PATH` descriptors,
/// and never follows a link.
fn permit(place: &OwnedFd) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    chmodat(CWD, path, Mode::RWXU, AtFlags::empty())
}

fn unflag(file: &OwnedFd) {
    if let Ok(flags) = ioctl_getflags(file)
        && flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND)
    {
        let _ = ioctl_setflags(file, flags - (IFlags::IMMUTABLE | IFlags::APPEND));
    }
}
