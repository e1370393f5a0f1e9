//! Copies a tree into an empty one, as it is: files share their bytes where the file system can,
//! holes stay holes, names of one file stay names of one file, links stay links, and everything
//! keeps its permissions, owners, times and the attributes of users.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, linkat, mkdirat, mknodat, openat2, symlinkat,
};
use rustix::io::Errno;

use crate::directory::Size;
use crate::file_contents::{About, copy_contents, each_attribute, set_attribute};
use crate::scan::Usage;
use crate::walk::{Place, Visitor, Walk};

struct Copy<'a> {
    /// The directories on the way down, and what is to be said about each at its end.
    open: Vec<(OwnedFd, About)>,
    go_on: &'a mut dyn FnMut(u64) -> bool,
}

/// Copies what is beneath one directory into another. Says what there was.
pub(crate) fn copy_tree(
    from: OwnedFd,
    to: OwnedFd,
    limit: Size,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<Usage> {
    let about = About::of(&rustix::fs::fstat(&from)?);
    copy_attributes(&from, &to)?;
    // Both are asked: the walk between files, the copy within a large one.
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
        top.ok_or_else(|| io::Error::other("the tree is over"))
    }
}

impl Visitor for Copy<'_> {
    fn enter(&mut self, place: &Place<'_>, directory: &OwnedFd) -> io::Result<()> {
        let here = self.here()?;
        mkdirat(here, place.name, Mode::RWXU)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat2(here, place.name, flags, Mode::empty(), RESOLVE)?;
        copy_attributes(directory, &made)?;
        self.open.push((made, About::of(&place.found)));
        Ok(())
    }

    fn leave(&mut self) -> io::Result<()> {
        let Some((directory, about)) = self.open.pop() else { return Ok(()) };
        Ok(about.put_on(&directory)?)
    }

    fn file(&mut self, place: &Place<'_>, file: &OwnedFd) -> io::Result<()> {
        let made = new_file(self.here()?, place.name)?;
        let size = u64::try_from(place.found.st_size).unwrap_or(0);
        copy_contents(file, &made, size, self.go_on)?;
        copy_attributes(file, &made)?;
        Ok(About::of(&place.found).put_on(&made)?)
    }

    fn another_name(&mut self, place: &Place<'_>, first: &[u8]) -> io::Result<bool> {
        // Nobody else can reach the copy, so all on the way to it is what we made.
        match linkat(self.top()?, first, self.here()?, place.name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // Where that cannot be, or its first name was gone before it came to be copied.
            Err(Errno::NOENT | Errno::NAMETOOLONG | Errno::MLINK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn link(&mut self, place: &Place<'_>, target: &CStr) -> io::Result<()> {
        let here = self.here()?;
        symlinkat(target, here, place.name)?;
        Ok(About::of(&place.found).put_on_name(here, place.name)?)
    }

    fn special(&mut self, place: &Place<'_>, kind: FileType) -> io::Result<()> {
        match kind {
            FileType::Fifo | FileType::Socket => {
                let here = self.here()?;
                let mode = Mode::from_raw_mode(place.found.st_mode & 0o777);
                mknodat(here, place.name, kind, mode, 0)?;
                Ok(About::of(&place.found).put_on_name(here, place.name)?)
            }
            // No program could have made one, and none is to get one.
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
