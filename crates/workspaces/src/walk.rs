//! Walks through a tree that untrusted programs made, in an order in which it can be made again. It
//! must follow no link, cross no mount, and open nothing that could block. Its memory is bounded:
//! trees that are too deep are refused, and only a bounded number of hard links is remembered.

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

/// How many entries are passed between two calls of `go_on`.
const STRIDE: u64 = 64;

/// Bytes of paths that are remembered for files with many names. Those beyond become files of
/// their own.
const LINKED_BYTES_MAX: usize = 16 << 20;

/// One entry of the tree.
pub(crate) struct WalkEntry<'a> {
    /// Its path beneath the top, without a slash at either end.
    pub(crate) path: &'a [u8],
    pub(crate) name: &'a CStr,
    pub(crate) found: Stat,
}

/// Handles the entries of a walk.
pub(crate) trait Visitor {
    /// A directory begins.
    fn enter(&mut self, entry: &WalkEntry<'_>, directory: &OwnedFd) -> io::Result<()>;
    /// The innermost directory has ended.
    fn leave(&mut self) -> io::Result<()>;
    /// A file, open for reading.
    fn file(&mut self, entry: &WalkEntry<'_>, file: &OwnedFd) -> io::Result<()>;
    /// Another name of a file that came before, by its path. False if it must be treated as a file
    /// of its own.
    fn another_name(&mut self, entry: &WalkEntry<'_>, first: &[u8]) -> io::Result<bool>;
    /// A symbolic link and its target.
    fn link(&mut self, entry: &WalkEntry<'_>, target: &CStr) -> io::Result<()>;
    /// A special file: a pipe, a socket, a device.
    fn special(&mut self, entry: &WalkEntry<'_>, kind: FileType) -> io::Result<()>;
}

/// How to go through a tree.
pub(crate) struct Walk<'a> {
    /// More than this is refused.
    pub(crate) limit: Size,
    /// Called now and then with the number of entries since the last call. False ends the walk.
    pub(crate) go_on: &'a mut dyn FnMut(u64) -> bool,
}

struct Level {
    directory: OwnedFd,
    entries: Dir,
    /// The length of its path, with the slash that follows.
    prefix: usize,
}

/// The first paths of hard-linked files, by inode.
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
    /// Visits everything beneath a directory; returns its disk usage.
    pub(crate) fn through(self, top: OwnedFd, visitor: &mut impl Visitor) -> io::Result<Usage> {
        let top_found = fstat(&top)?;
        let mut usage = Usage { bytes: bytes_of(&top_found), files: 1, hidden: false };
        let mut linked = Linked::default();
        let mut path = Vec::new();
        let mut levels = vec![Level { entries: Dir::read_from(&top)?, directory: top, prefix: 0 }];
        let mut since: u64 = 0;
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { break };
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
            // A file that is gone by now is skipped.
            let found = match statat(&level.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                found => found?,
            };
            if found.st_dev != top_found.st_dev {
                continue;
            }
            path.extend_from_slice(name.to_bytes());
            let entry = WalkEntry { path: &path, name, found };
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
                && visitor.another_name(&entry, &first)?
            {
                continue;
            }
            usage.files += 1;
            usage.bytes = usage.bytes.saturating_add(bytes_of(&found));
            if usage.bytes > self.limit.bytes() || usage.files > self.limit.files() {
                return Err(too_much(self.limit));
            }
            if let Some(directory) = visit(level, &entry, depth, visitor)? {
                path.push(b'/');
                let entries = Dir::read_from(&directory)?;
                levels.push(Level { directory, entries, prefix: path.len() });
            }
        }
        Ok(usage)
    }
}

/// Shows one entry to the visitor. Returns the directory to go into, if the entry is one.
fn visit(
    level: &Level,
    entry: &WalkEntry<'_>,
    depth: usize,
    visitor: &mut impl Visitor,
) -> io::Result<Option<OwnedFd>> {
    let name = entry.name;
    let kind = FileType::from_raw_mode(entry.found.st_mode);
    match kind {
        FileType::Directory => {
            let opened = open_below(&level.directory, name, OFlags::DIRECTORY)?;
            let Some(opened) = opened else { return Ok(None) };
            if depth == DEPTH_MAX {
                let cause = format!("directories are nested deeper than {DEPTH_MAX}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, cause));
            }
            visitor.enter(entry, &opened)?;
            return Ok(Some(opened));
        }
        FileType::RegularFile => {
            let opened = open_below(&level.directory, name, OFlags::NONBLOCK)?;
            let Some(opened) = opened else { return Ok(None) };
            let found = fstat(&opened)?;
            // A program may have replaced the file since it was listed.
            if FileType::from_raw_mode(found.st_mode) == FileType::RegularFile {
                visitor.file(&WalkEntry { found, ..*entry }, &opened)?;
            }
        }
        FileType::Symlink => match readlinkat(&level.directory, name, Vec::new()) {
            Ok(target) => visitor.link(entry, &target)?,
            Err(Errno::NOENT | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        },
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => visitor.special(entry, kind)?,
    }
    Ok(None)
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
    io::Error::new(io::ErrorKind::Interrupted, "the operation was cancelled")
}

pub(crate) fn too_much(limit: Size) -> io::Error {
    let (mb, files) = (limit.bytes() >> 20, limit.files());
    let cause = format!("the files exceed the limit of {mb} MB in {files} files");
    io::Error::new(io::ErrorKind::QuotaExceeded, cause)
}
