//! Copies a tree into an empty one: files share their bytes where the file system can, holes stay
//! holes, hard links stay hard links, symbolic links stay links, and everything keeps its
//! permissions, owners, times and user attributes.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, linkat, mkdirat, mknodat, openat2, symlinkat,
};
use rustix::io::Errno;

use crate::directory::Size;
use crate::file_contents::{FileMetadata, copy_contents, each_attribute, set_attribute};
use crate::scan::Usage;
use crate::walk::{Visitor, Walk, WalkEntry};

struct Copy<'a> {
    /// The open directories from the top down, with the metadata to set when each is left.
    open: Vec<(OwnedFd, FileMetadata)>,
    go_on: &'a mut dyn FnMut(u64) -> bool,
}

/// Copies what is beneath one directory into another. Returns the usage of the source.
pub(crate) fn copy_tree(
    from: OwnedFd,
    to: OwnedFd,
    limit: Size,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Usage> {
    let about = FileMetadata::of(&rustix::fs::fstat(&from)?);
    copy_attributes(&from, &to)?;
    // The check runs between files (the walk) and within large files (the copy).
    let go_on = std::cell::RefCell::new(go_on);
    let mut within = |passed| (*go_on.borrow_mut())(passed);
    let mut copy = Copy { open: vec![(to, about)], go_on: &mut within };
    let mut between = |passed| (*go_on.borrow_mut())(passed);
    let usage = Walk { limit, go_on: &mut between }.through(from, &mut copy)?;
    copy.leave()?;
    Ok(usage)
}

impl Copy<'_> {
    fn here(&self) -> io::Result<&OwnedFd> {
        let here = self.open.last().map(|(directory, _)| directory);
        here.ok_or_else(|| io::Error::other("a directory ended twice"))
    }

    fn top(&self) -> io::Result<&OwnedFd> {
        let top = self.open.first().map(|(directory, _)| directory);
        top.ok_or_else(|| io::Error::other("the tree is finished already"))
    }
}

impl Visitor for Copy<'_> {
    fn enter(&mut self, entry: &WalkEntry<'_>, directory: &OwnedFd) -> io::Result<()> {
        let here = self.here()?;
        mkdirat(here, entry.name, Mode::RWXU)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat2(here, entry.name, flags, Mode::empty(), RESOLVE)?;
        copy_attributes(directory, &made)?;
        self.open.push((made, FileMetadata::of(&entry.found)));
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some((directory, about)) = self.open.pop() else { return Ok(()) };
        Ok(about.apply_to(&directory)?)
    }

    fn file(&mut self, entry: &WalkEntry<'_>, file: &OwnedFd) -> io::Result<()> {
        let made = new_file(self.here()?, entry.name)?;
        let size = u64::try_from(entry.found.st_size).unwrap_or(0);
        copy_contents(file, &made, size, self.go_on)?;
        copy_attributes(file, &made)?;
        Ok(FileMetadata::of(&entry.found).apply_to(&made)?)
    }

    fn another_name(&mut self, entry: &WalkEntry<'_>, first: &[u8]) -> io::Result<bool> {
        // No program can reach the copy, so every directory on the path is one that we made.
        match linkat(self.top()?, first, self.here()?, entry.name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // Not possible here, or the first name was removed before it was copied.
            Err(Errno::NOENT | Errno::NAMETOOLONG | Errno::MLINK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn link(&mut self, entry: &WalkEntry<'_>, target: &CStr) -> io::Result<()> {
        let here = self.here()?;
        symlinkat(target, here, entry.name)?;
        Ok(FileMetadata::of(&entry.found).apply_to_name(here, entry.name)?)
    }

    fn special(&mut self, entry: &WalkEntry<'_>, kind: FileType) -> io::Result<()> {
        match kind {
            FileType::Fifo | FileType::Socket => {
                let here = self.here()?;
                let mode = Mode::from_raw_mode(entry.found.st_mode & 0o777);
                mknodat(here, entry.name, kind, mode, 0)?;
                Ok(FileMetadata::of(&entry.found).apply_to_name(here, entry.name)?)
            }
            // No program can have made a device, and none may get one.
            FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown
            | FileType::RegularFile
            | FileType::Directory
            | FileType::Symlink => Ok(()),
        }
    }
}

const RESOLVE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

pub(crate) fn new_file(directory: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat2(directory, name, flags, Mode::RUSR | Mode::WUSR, RESOLVE)?)
}

fn copy_attributes(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    each_attribute(from, |name, value| set_attribute(to, name, value))
}
