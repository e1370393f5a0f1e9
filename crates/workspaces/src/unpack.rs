//! Makes a tree from an archive, in a directory that no program can reach yet. Everything is made
//! beneath our own descriptors, nothing may go through a link, and nothing may be replaced: an
//! archive with a duplicate name is damaged. Blocks of zeros become holes.

use std::ffi::CString;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, SeekFrom, Timespec, ftruncate, linkat, mkdirat,
    mknodat, openat2, seek, symlinkat,
};
use rustix::io::Errno;
use tar_stream::{Bounds, Entries, Entry, Kind};

use crate::copy::new_file;
use crate::directory::Size;
use crate::file_contents::{FileMetadata, c_name, set_attribute, write_all};
use crate::scan::DEPTH_MAX;
use crate::walk::{called_off, too_much};

/// What is read at once, and the smallest hole.
const HOLE_BYTES: u16 = 4096;
const BUFFER_BYTES: usize = 64 * HOLE_BYTES as usize;

struct Unpack<'a> {
    /// The open directories on the path of the last entry, each with its name and the metadata to
    /// set when it is left. The first is the top.
    open: Vec<(Vec<u8>, OwnedFd, Option<FileMetadata>)>,
    limit: Size,
    bytes: u64,
    files: u64,
    go_on: &'a mut dyn FnMut(u64) -> bool,
}

/// Makes what an archive describes beneath an empty directory.
pub(crate) fn unpack_tree(
    from: impl Read,
    to: OwnedFd,
    limit: Size,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<()> {
    let mut entries = Entries::whole(from, Bounds::NONE);
    let open = vec![(Vec::new(), to, None)];
    let mut unpack = Unpack { open, limit, bytes: 0, files: 1, go_on };
    while let Some(entry) = entries.next_entry()? {
        if !(unpack.go_on)(1) {
            return Err(called_off());
        }
        unpack.entry(&entry, &mut entries).map_err(|error| {
            let twice = error.kind() == io::ErrorKind::AlreadyExists;
            if twice { damaged("a name occurs twice") } else { error }
        })?;
    }
    unpack.back_to(0)
}

impl Unpack<'_> {
    fn entry(&mut self, entry: &Entry, entries: &mut Entries<impl Read>) -> io::Result<()> {
        let names = path_names(&entry.path)?;
        let about = about(entry);
        let Some((name, parents)) = names.split_last() else {
            if entry.kind != Kind::Directory {
                return Err(damaged("a file without a name"));
            }
            self.back_to(1)?;
            if let Some((_, top, known)) = self.open.first_mut() {
                put_attributes(top, entry)?;
                *known = Some(about);
            }
            return Ok(());
        };
        self.go(parents)?;
        let name = c_name(name)?;
        if entry.kind != Kind::Hardlink {
            self.count(0, 1)?;
        }
        let here = self.here()?;
        match entry.kind {
            Kind::Directory => {
                mkdirat(here, &name, Mode::RWXU)?;
                let made = open_directory(here, &name)?;
                put_attributes(&made, entry)?;
                self.open.push((name.into_bytes(), made, Some(about)));
            }
            // Our own archives have no sparse files.
            Kind::File if entry.sparse.is_some() => return Err(damaged("a sparse file")),
            Kind::File => {
                let made = new_file(here, &name)?;
                self.contents(&made, entry.size, entries)?;
                put_attributes(&made, entry)?;
                about.apply_to(&made)?;
            }
            Kind::Symlink => {
                symlinkat(c_name(&entry.target)?, here, &name)?;
                about.apply_to_name(here, &name)?;
            }
            Kind::Hardlink => self.another_name(&name, &entry.target)?,
            Kind::Fifo => {
                let mode = Mode::from_raw_mode(entry.mode & 0o777);
                mknodat(here, &name, FileType::Fifo, mode, 0)?;
                about.apply_to_name(here, &name)?;
            }
            Kind::Device | Kind::Other(_) => {
                return Err(damaged("an entry of an unexpected kind"));
            }
        }
        Ok(())
    }

    fn here(&self) -> io::Result<&OwnedFd> {
        let here = self.open.last().map(|(_, directory, _)| directory);
        here.ok_or_else(|| io::Error::other("the tree is finished already"))
    }

    /// Goes to a directory that an earlier entry made.
    fn go(&mut self, parents: &[&[u8]]) -> io::Result<()> {
        let names = self.open.iter().skip(1);
        let same = names.zip(parents).take_while(|((open, _, _), name)| open == *name).count();
        self.back_to(same + 1)?;
        for name in &parents[same..] {
            // Our own archives name each directory before what is in it, and never come back.
            let directory = open_directory(self.here()?, &c_name(name)?)?;
            self.open.push((name.to_vec(), directory, None));
        }
        Ok(())
    }

    /// Leaves all but `depth` directories, and sets the metadata of each.
    fn back_to(&mut self, depth: usize) -> io::Result<()> {
        while self.open.len() > depth {
            if let Some((_, directory, Some(about))) = self.open.pop() {
                about.apply_to(&directory)?;
            }
        }
        Ok(())
    }

    fn another_name(&self, name: &CString, first: &[u8]) -> io::Result<()> {
        let (here, top) = (self.here()?, self.open.first().map(|(_, top, _)| top));
        let Some(top) = top else { return Err(damaged("the tree has no top")) };
        let first = path_names(first)?;
        let Some((last, parents)) = first.split_last() else {
            return Err(damaged("a hard link without a target"));
        };
        let mut parent = rustix::io::dup(top)?;
        for part in parents {
            parent = open_directory(&parent, &c_name(part)?)?;
        }
        match linkat(&parent, c_name(last)?, here, name, AtFlags::empty()) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(damaged("a hard link to a missing file")),
            Err(error) => Err(error.into()),
        }
    }

    fn contents(
        &mut self,
        file: &OwnedFd,
        size: u64,
        entries: &mut Entries<impl Read>,
    ) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut filled = 0;
        loop {
            let read = entries.read(&mut buffer[filled..])?;
            filled += read;
            if read > 0 && filled < BUFFER_BYTES {
                continue;
            }
            self.write_but_holes(file, &buffer[..filled])?;
            filled = 0;
            if read == 0 {
                break;
            }
            if !(self.go_on)(1) {
                return Err(called_off());
            }
        }
        Ok(ftruncate(file, size)?)
    }

    fn write_but_holes(&mut self, file: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
        let hole = usize::from(HOLE_BYTES);
        for block in bytes.chunks(hole) {
            if block.len() == hole && block.iter().all(|byte| *byte == 0) {
                seek(file, SeekFrom::Current(HOLE_BYTES.into()))?;
            } else {
                self.count(block.len() as u64, 0)?;
                write_all(file, block)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, bytes: u64, files: u64) -> io::Result<()> {
        self.bytes += bytes;
        self.files += files;
        if self.bytes > self.limit.bytes() || self.files > self.limit.files() {
            return Err(too_much(self.limit));
        }
        Ok(())
    }
}

fn about(entry: &Entry) -> FileMetadata {
    let (user, group) = entry.owner;
    let (tv_sec, nanoseconds) = entry.modified;
    let modified = Timespec { tv_sec, tv_nsec: nanoseconds.into() };
    FileMetadata { mode: entry.mode, user, group, modified }
}

fn put_attributes(file: &OwnedFd, entry: &Entry) -> io::Result<()> {
    for (name, value) in &entry.attributes {
        if name.starts_with(b"user.") {
            set_attribute(file, &c_name(name)?, value)?;
        }
    }
    Ok(())
}

fn open_directory(parent: &OwnedFd, name: &CString) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(parent, name, flags, Mode::empty(), resolve) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
            Err(damaged("an entry in something that is no directory"))
        }
        opened => Ok(opened?),
    }
}

/// The names on the path of an entry. Our archives have neither `..` nor a leading slash.
pub(crate) fn path_names(path: &[u8]) -> io::Result<Vec<&[u8]>> {
    if path.starts_with(b"/") {
        return Err(damaged("an absolute path"));
    }
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(damaged("a path with `..` in it")),
            name => names.push(name),
        }
    }
    if names.len() > DEPTH_MAX {
        return Err(damaged("a path that is too deep"));
    }
    Ok(names)
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the archive cannot be read: {why}"))
}
