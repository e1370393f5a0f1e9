//! Goes through a tree that a stranger made, in the order in which it would be made again. It
//! follows no link, crosses no mount, opens nothing that could block, and needs no more memory for
//! a larger one: what is nested too deep is refused, and of files with many names only so many are
//! remembered.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat, statat,
};
use rustix::io::Errno;

use crate::directory::Size;
use crate::scan::{DEPTH_MAX, Usage, bytes_of};

/// After how many entries whoever waits is asked whether to go on.
const STRIDE: u64 = 64;

/// Bytes of paths that are remembered for files with many names. Those beyond become files of
/// their own.
const LINKED_BYTES_MAX: usize = 16 << 20;

/// What is being looked at.
pub(crate) struct Place<'a> {
    /// Its path beneath the top, without a slash at either end.
    pub(crate) path: &'a [u8],
    pub(crate) name: &'a CStr,
    pub(crate) found: Stat,
}

/// What is done with what is found.
pub(crate) trait Visitor {
    /// A directory begins.
    fn enter(&mut self, place: &Place<'_>, directory: &OwnedFd) -> io::Result<()>;
    /// The last directory that began is over.
    fn leave(&mut self) -> io::Result<()>;
    /// A file, open for reading.
    fn file(&mut self, place: &Place<'_>, file: &OwnedFd) -> io::Result<()>;
    /// Another name of a file that came before, by its path. False if it must be treated as a file
    /// of its own.
    fn another_name(&mut self, place: &Place<'_>, first: &[u8]) -> io::Result<bool>;
    /// A link, and what it says.
    fn link(&mut self, place: &Place<'_>, target: &CStr) -> io::Result<()>;
    /// Neither of those: a pipe, a socket, a device.
    fn special(&mut self, place: &Place<'_>, kind: FileType) -> io::Result<()>;
}

/// How to go through a tree.
pub(crate) struct Walk<'a> {
    /// More than this is refused.
    pub(crate) limit: Size,
    /// Asked now and then, with how many entries were passed since. False ends it.
    pub(crate) go_on: &'a mut dyn FnMut(u64) -> bool,
}

struct Level {
    directory: OwnedFd,
    entries: Dir,
    /// How much of the path is the way to it, with the slash that follows.
    prefix: usize,
}

/// Files with many names, by their number.
#[derive(Default)]
struct Linked {
    first: BTreeMap<u64, Box<[u8]>>,
    bytes: usize,
}

impl Linked {
    /// The first name of a file that was met before; else this is the first.
    fn first(&mut self, found: &Stat, path: &[u8]) -> Option<Box<[u8]>> {
        if found.st_nlink < 2 {
            return None;
        }
        if let Some(first) = self.first.get(&found.st_ino) {
            return Some(first.clone());
        }
        if self.bytes < LINKED_BYTES_MAX {
            self.bytes += path.len();
            self.first.insert(found.st_ino, path.into());
        }
        None
    }
}

impl Walk<'_> {
    /// Visits everything beneath a directory; says what that takes on disk.
    pub(crate) fn through(self, top: OwnedFd, visitor: &mut impl Visitor) -> io::Result<Usage> {
        let top_found = fstat(&top)?;
        let mut usage = Usage { bytes: bytes_of(&top_found), files: 1, hidden: false };
        let mut linked = Linked::default();
        let mut path = Vec::new();
        let mut levels = vec![Level { entries: Dir::read_from(&top)?, directory: top, prefix: 0 }];
        let mut since: u64 = 0;
        while let Some(level) = levels.last_mut() {
            path.truncate(level.prefix);
            let Some(entry) = level.entries.read() else {
                levels.pop();
                if !levels.is_empty() {
                    visitor.leave()?;
                }
                continue;
            };
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            since += 1;
            if since == STRIDE {
                if !(self.go_on)(since) {
                    return Err(called_off());
                }
                since = 0;
            }
            // What is gone by now was never there.
            let found = match statat(&level.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                found => found?,
            };
            if found.st_dev != top_found.st_dev {
                continue;
            }
            path.extend_from_slice(name.to_bytes());
            let place = Place { path: &path, name, found };
            let kind = FileType::from_raw_mode(found.st_mode);
            let first = match kind {
                FileType::Directory => None,
                FileType::RegularFile
                | FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => linked.first(&found, &path),
            };
            if let Some(first) = first
                && visitor.another_name(&place, &first)?
            {
                continue;
            }
            usage.files += 1;
            usage.bytes = usage.bytes.saturating_add(bytes_of(&found));
            if usage.bytes > self.limit.bytes() || usage.files > self.limit.files() {
                return Err(too_much(self.limit));
            }
            match kind {
                FileType::Directory => {
                    let Some(opened) = open_below(&level.directory, name, OFlags::DIRECTORY)?
                    else {
                        continue;
                    };
                    if levels.len() == DEPTH_MAX {
                        let cause = format!("directories are nested deeper than {DEPTH_MAX}");
                        return Err(io::Error::new(io::ErrorKind::InvalidData, cause));
                    }
                    visitor.enter(&place, &opened)?;
                    path.push(b'/');
                    let entries = Dir::read_from(&opened)?;
                    levels.push(Level { directory: opened, entries, prefix: path.len() });
                }
                FileType::RegularFile => {
                    let opened = open_below(&level.directory, name, OFlags::NONBLOCK)?;
                    let Some(opened) = opened else { continue };
                    let found = fstat(&opened)?;
                    // Somebody may have put something else in its place.
                    if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
                        visitor.file(&Place { found, ..place }, &opened)?;
                    }
                }
                FileType::Symlink => match readlinkat(&level.directory, name, Vec::new()) {
                    Ok(target) => visitor.link(&place, &target)?,
                    Err(Errno::NOENT | Errno::INVAL) => {}
                    Err(error) => return Err(error.into()),
                },
                FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => visitor.special(&place, kind)?,
            }
        }
        Ok(usage)
    }
}

/// Opens what is there for reading; none if it is gone, or a link by now.
fn open_below(directory: &OwnedFd, name: &CStr, with: OFlags) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | with;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(directory, name, flags, Mode::empty(), resolve) {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn called_off() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "it was called off")
}

pub(crate) fn too_much(limit: Size) -> io::Error {
    let (mb, files) = (limit.bytes() >> 20, limit.files());
    let cause = format!("there is more in it than {mb} MB in {files} files");
    io::Error::new(io::ErrorKind::QuotaExceeded, cause)
}
