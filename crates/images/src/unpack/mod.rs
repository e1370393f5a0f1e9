//! One layer: an archive becomes the contents of a directory.
//!
//! Nothing outside that directory is ever touched, whatever the archive says. What would give a
//! privilege is left out and counted: devices, fifos, setuid, setgid and sticky bits, owners,
//! extended attributes. Names that begin with `.wh.` hide a file of a layer below; they become the
//! marks of overlayfs, and no other mark of overlayfs gets in.

mod path;
mod tree;

use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, Timespec, Timestamps, fchmod, ftruncate, futimens};
use serde::{Deserialize, Serialize};
use tar_stream::{Bounds, Entries, Entry, Kind, Region};

use crate::error::{ImageError, ImageErrorCode};
use tree::Tree;
pub(crate) use tree::{DIRECTORY, OPAQUE, RESOLVE};

const BUFFER_BYTES: usize = 256 << 10;
/// The most headers of an entry besides its own: a long name, a long link, two extended ones.
const HEADERS_PER_ENTRY: u64 = 5;
/// The user and group of programs in a sandbox.
const USER_INSIDE: u32 = 1000;

/// The prefix of a name that hides another one.
pub(crate) const WHITEOUT: &[u8] = b".wh.";
/// The rest of such a name that is about its directory.
pub(crate) const OPAQUE_REST: &[u8] = b".wh..opq";

/// Limits of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all files together, holes included.
    pub max_bytes: u64,
    /// Entries; for an import, those of all layers together.
    pub max_entries: u64,
    /// Bytes of one path, and of one link target.
    pub path_bytes: usize,
    /// Directories in one path.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 64 << 30, max_entries: 4_000_000, path_bytes: 4095, depth: 256 }
    }
}

/// What was unpacked, and what was not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Entries of the archive.
    pub entries: u64,
    /// Bytes of all files, holes included.
    pub bytes: u64,
    /// Devices, fifos and unknown kinds: left out.
    pub left_out: u64,
    /// Entries that had setuid, setgid or sticky bits, which were dropped.
    pub bits_dropped: u64,
    /// Entries that had extended attributes, which were dropped.
    pub attributes_dropped: u64,
    /// Names of layers below that this one hides.
    pub whiteouts: u64,
    /// It hides everything of the layers below.
    pub hides_all_below: bool,
}

/// Unpacks an archive into an empty directory.
pub fn unpack(
    reader: impl Read,
    target: &impl AsFd,
    limits: &Limits,
) -> Result<Report, ImageError> {
    let reader = BufReader::with_capacity(BUFFER_BYTES, reader);
    unpack_watched(reader, target, limits, |_| ControlFlow::Continue(()))
}

/// The same; asks after every entry whether to go on.
pub(crate) fn unpack_watched(
    reader: impl BufRead,
    target: &impl AsFd,
    limits: &Limits,
    mut watch: impl FnMut(&Report) -> ControlFlow<()>,
) -> Result<Report, ImageError> {
    let headers = limits.max_entries.saturating_mul(HEADERS_PER_ENTRY).saturating_add(1);
    let mut unpacking = Unpacking {
        entries: Entries::new(reader, Bounds { headers, ..Bounds::NONE }),
        tree: Tree::new(target.as_fd()),
        limits,
        report: Report::default(),
    };
    while let Some(entry) = unpacking.entries.next_entry()? {
        unpacking.entry(&entry).map_err(|error| {
            let cause = format!("{} ({})", error.cause, entry.shown());
            if error.cause.contains(&entry.shown()) {
                error
            } else {
                ImageError::new(error.code, cause)
            }
        })?;
        if watch(&unpacking.report).is_break() {
            return Err(ImageError::new(ImageErrorCode::Cancelled, "the import was cancelled"));
        }
    }
    Ok(unpacking.report)
}

struct Unpacking<'a, R> {
    entries: Entries<R>,
    tree: Tree<'a>,
    limits: &'a Limits,
    report: Report,
}

impl<R: BufRead> Unpacking<'_, R> {
    fn entry(&mut self, entry: &Entry) -> Result<(), ImageError> {
        self.report.entries += 1;
        if self.report.entries > self.limits.max_entries {
            let cause = format!("the archive has more than {} entries", self.limits.max_entries);
            return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
        }
        self.report.bits_dropped += u64::from(entry.mode & 0o7000 != 0);
        self.report.attributes_dropped += u64::from(entry.has_attributes);
        let way = path::path_parts(&entry.path, self.limits)?;
        let Some((&name, parents)) = way.split_last() else {
            // The root keeps the permissions that a root needs.
            return if entry.kind == Kind::Directory {
                Ok(())
            } else {
                Err(refused("the entry has no name"))
            };
        };
        if parents.iter().any(|name| name.starts_with(WHITEOUT)) {
            return Err(refused("the name is reserved for whiteouts"));
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return self.whiteout(hidden, parents, entry);
        }
        match entry.kind {
            Kind::Device | Kind::Fifo | Kind::Other(_) => {
                self.report.left_out += 1;
                Ok(())
            }
            Kind::Directory => {
                self.tree.go(parents)?;
                self.tree.directory(name, directory_mode(entry))
            }
            Kind::Symlink => {
                let target = &entry.target;
                if target.is_empty() || target.len() > self.limits.path_bytes || target.contains(&0)
                {
                    return Err(refused("the target of the link is empty or too long"));
                }
                self.tree.go(parents)?;
                self.tree.symlink(name, target)
            }
            Kind::Hardlink => {
                let target = path::path_parts(&entry.target, self.limits)?;
                self.tree.go(parents)?;
                self.tree.hardlink(name, &target)
            }
            Kind::File => self.file(parents, name, entry),
        }
    }

    fn file(&mut self, parents: &[&[u8]], name: &[u8], entry: &Entry) -> Result<(), ImageError> {
        let size = entry.sparse.as_ref().map_or(entry.size, |sparse| sparse.real_size);
        self.report.bytes = self.report.bytes.saturating_add(size);
        if self.report.bytes > self.limits.max_bytes {
            let cause =
                format!("the archive has more than {} bytes of files", self.limits.max_bytes);
            return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
        }
        self.tree.go(parents)?;
        let file = self.tree.file(name)?;
        let written = |error| ImageError::store("cannot write", error);
        match &entry.sparse {
            None => self.contents(&file, Region { offset: 0, length: entry.size })?,
            Some(sparse) => {
                ftruncate(&file, sparse.real_size).map_err(written)?;
                for &region in &sparse.regions {
                    self.contents(&file, region)?;
                }
            }
        }
        fchmod(&file, file_mode(entry)).map_err(written)?;
        let (tv_sec, tv_nsec) = (entry.modified.0, entry.modified.1.into());
        let moment = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: moment, last_modification: moment };
        futimens(&file, &times).map_err(written)
    }

    /// Writes the stored bytes that belong there.
    fn contents(&mut self, file: &OwnedFd, region: Region) -> Result<(), ImageError> {
        let (mut offset, mut left) = (region.offset, region.length);
        while left > 0 {
            let data = self.entries.data()?;
            let wanted = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let written = match rustix::io::pwrite(file, &data[..wanted], offset) {
                Ok(0) => Err(rustix::io::Errno::IO),
                Err(rustix::io::Errno::INTR) => continue,
                written => written,
            };
            let written = written.map_err(|error| ImageError::store("cannot write", error))?;
            self.entries.take_data(written);
            offset += written as u64;
            left -= written as u64;
        }
        Ok(())
    }

    fn whiteout(
        &mut self,
        hidden: &[u8],
        parents: &[&[u8]],
        entry: &Entry,
    ) -> Result<(), ImageError> {
        if entry.kind != Kind::File {
            return Err(refused("the name is reserved for whiteouts"));
        }
        if hidden == OPAQUE_REST {
            self.report.whiteouts += 1;
            self.report.hides_all_below |= parents.is_empty();
            self.tree.go(parents)?;
            return self.tree.opaque();
        }
        if hidden.starts_with(WHITEOUT) {
            // A leftover of an old union file system.
            self.report.left_out += 1;
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(refused("the whiteout names no file"));
        }
        self.report.whiteouts += 1;
        self.tree.go(parents)?;
        self.tree.whiteout(hidden)
    }
}

fn refused(why: &str) -> ImageError {
    ImageError::new(ImageErrorCode::Unsafe, why.to_owned())
}

/// The owner of a layer can always read and remove it.
fn directory_mode(entry: &Entry) -> Mode {
    Mode::from_raw_mode(permissions(entry) | 0o700)
}

fn file_mode(entry: &Entry) -> Mode {
    Mode::from_raw_mode(permissions(entry) | 0o400)
}

/// Layers belong to the user that imports them, so files of the user inside get the permissions of
/// others.
fn permissions(entry: &Entry) -> u32 {
    let mode = entry.mode & 0o777;
    if entry.owner.0 == USER_INSIDE {
        mode | mode >> 6
    } else if entry.owner.1 == USER_INSIDE {
        mode | (mode >> 3 & 7)
    } else {
        mode
    }
}
