//! Writes a tree as an archive. It has everything that a copy keeps, except holes, which become
//! zeros that compress to nothing, and sockets, which no archive can hold.

use std::ffi::CStr;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, fstat};
use tar_stream::{Attribute, Kind, NewEntry, end, padding};

use crate::directory::Size;
use crate::file_contents::{FileMetadata, each_attribute, read_some};
use crate::walk::{Visitor, Walk, WalkEntry, called_off};

const BUFFER_BYTES: usize = 256 << 10;

/// How many times the limit the sizes of sparse files may add up to. A file with a size of a
/// million times the limit would take hours to read.
const CLAIMED_MAX: u64 = 16;

struct Pack<'a, W> {
    to: &'a mut W,
    header: Vec<u8>,
    buffer: Vec<u8>,
    /// What the sizes of further files may add up to.
    claims_left: u64,
    go_on: &'a mut dyn FnMut(u64) -> bool,
}

/// Writes what is beneath a directory.
pub(crate) fn pack_tree(
    from: OwnedFd,
    to: &mut impl Write,
    limit: Size,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<()> {
    let go_on = std::cell::RefCell::new(go_on);
    let mut within = |passed| (*go_on.borrow_mut())(passed);
    let mut between = |passed| (*go_on.borrow_mut())(passed);
    let claims_left = limit.bytes().saturating_mul(CLAIMED_MAX);
    let (header, buffer) = (Vec::new(), vec![0; BUFFER_BYTES]);
    let mut pack = Pack { to, header, buffer, claims_left, go_on: &mut within };
    let about = FileMetadata::of(&fstat(&from)?);
    let attributes = attributes_of(&from)?;
    pack.write(Kind::Directory, b"./", about, 0, b"", &attributes)?;
    Walk { limit, go_on: &mut between }.through(from, &mut pack)?;
    let mut last = Vec::new();
    end(&mut last);
    to.write_all(&last)
}

impl<W: Write> Pack<'_, W> {
    fn write(
        &mut self,
        kind: Kind,
        path: &[u8],
        about: FileMetadata,
        size: u64,
        target: &[u8],
        attributes: &[Attribute],
    ) -> io::Result<()> {
        self.header.clear();
        let modified_ns = u32::try_from(about.modified.tv_nsec).unwrap_or(0);
        let written = NewEntry {
            kind,
            path,
            mode: about.mode,
            owner: (about.user, about.group),
            size,
            modified: (about.modified.tv_sec, modified_ns),
            target,
            attributes,
            comment: None,
        };
        written.write(&mut self.header);
        self.to.write_all(&self.header)
    }
}

impl<W: Write> Visitor for Pack<'_, W> {
    fn enter(&mut self, entry: &WalkEntry<'_>, directory: &OwnedFd) -> io::Result<()> {
        let attributes = attributes_of(directory)?;
        let path = [entry.path, b"/"].concat();
        self.write(Kind::Directory, &path, FileMetadata::of(&entry.found), 0, b"", &attributes)
    }

    fn leave(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn file(&mut self, entry: &WalkEntry<'_>, file: &OwnedFd) -> io::Result<()> {
        let size = u64::try_from(entry.found.st_size).unwrap_or(0);
        self.claims_left = self.claims_left.checked_sub(size).ok_or_else(|| {
            let cause = "the sizes of sparse files add up to far more than the limit";
            io::Error::new(io::ErrorKind::QuotaExceeded, cause)
        })?;
        let attributes = attributes_of(file)?;
        self.write(Kind::File, entry.path, FileMetadata::of(&entry.found), size, b"", &attributes)?;
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER_BYTES);
            let read = read_some(file, &mut self.buffer[..most])?;
            if read == 0 {
                // The archive already states its size.
                return Err(io::Error::other("a file became shorter while it was read"));
            }
            self.to.write_all(&self.buffer[..read])?;
            left -= read as u64;
            if !(self.go_on)(1) {
                return Err(called_off());
            }
        }
        self.buffer[..512].fill(0);
        self.to.write_all(&self.buffer[..padding(size) as usize])
    }

    fn another_name(&mut self, entry: &WalkEntry<'_>, first: &[u8]) -> io::Result<bool> {
        self.write(Kind::Hardlink, entry.path, FileMetadata::of(&entry.found), 0, first, &[])?;
        Ok(true)
    }

    fn link(&mut self, entry: &WalkEntry<'_>, target: &CStr) -> io::Result<()> {
        let about = FileMetadata::of(&entry.found);
        self.write(Kind::Symlink, entry.path, about, 0, target.to_bytes(), &[])
    }

    fn special(&mut self, entry: &WalkEntry<'_>, kind: FileType) -> io::Result<()> {
        match kind {
            FileType::Fifo => {
                self.write(Kind::Fifo, entry.path, FileMetadata::of(&entry.found), 0, b"", &[])
            }
            // A socket has no listener after a restore, and no archive can hold one.
            FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown
            | FileType::RegularFile
            | FileType::Directory
            | FileType::Symlink => Ok(()),
        }
    }
}

fn attributes_of(file: &OwnedFd) -> io::Result<Vec<Attribute>> {
    let mut attributes = Vec::new();
    each_attribute(file, |name, value| {
        attributes.push((name.to_bytes().into(), value.into()));
        Ok(())
    })?;
    Ok(attributes)
}
