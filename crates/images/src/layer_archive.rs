//! Writes a layer of the store as an archive again: the same bytes for the same tree, wherever and
//! whenever it is written. Marks of overlayfs become the whiteout names of archives. Only what an
//! import makes is read: anything else in a layer is an error.
//!
//! The store does not keep owners. Everything belongs to user 0, which no process in a sandbox is,
//! so programs have the permissions of others, as they do where layers are mounted. Modification
//! times of directories and links are not kept either: they are 0.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fgetxattr, openat2, readlinkat, statat,
};
use rustix::io::Errno;
use tar_stream::{BLOCK, Kind, padding};

use crate::digest::{Digest, Hasher};
use crate::error::{ImageError, ImageErrorCode};
use crate::unpack::{DIRECTORY, OPAQUE, OPAQUE_REST, RESOLVE, WHITEOUT};

const FILE: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// How much of a file is in memory at once.
const BUFFER_BYTES: usize = 64 << 10;
/// How many bytes of names of hard links are remembered. Beyond that, each name becomes a file of
/// its own.
const LINKED_BYTES_MAX: usize = 64 << 20;

/// The size of a layer's archive. Contents are not read for that.
pub(crate) fn measure(layer: &OwnedFd) -> Result<u64, ImageError> {
    pack(layer, Length(0)).map(|length| length.0)
}

/// Writes the archive of a layer, and returns its digest and its size.
pub(crate) fn write(layer: &OwnedFd, to: impl Write) -> Result<(Digest, u64), ImageError> {
    let buffer = vec![0; BUFFER_BYTES];
    let written = pack(layer, HashedOutput { to, hasher: Hasher::default(), bytes: 0, buffer })?;
    Ok((written.hasher.finish(), written.bytes))
}

/// The receiver of the archive stopped reading it.
pub(crate) fn not_taken(error: io::Error) -> ImageError {
    match error.downcast::<ImageError>() {
        Ok(ours) => ours,
        Err(error) => {
            let cause = format!("the receiver of the archive stopped reading it: {error}");
            ImageError::new(ImageErrorCode::NotTaken, cause)
        }
    }
}

fn pack<T: Target>(layer: &OwnedFd, to: T) -> Result<T, ImageError> {
    let mut packing = Packing { to, header: Vec::new(), linked: Linked::default() };
    packing.directory(layer, b"")?;
    let mut last = Vec::new();
    tar_stream::end(&mut last);
    packing.to.write_all(&last).map_err(not_taken)?;
    Ok(packing.to)
}

/// The output of an archive.
trait Target: Write {
    /// Takes the contents of a file of this size.
    fn contents(
        &mut self,
        bytes: u64,
        open: impl FnOnce() -> Result<File, ImageError>,
    ) -> Result<(), ImageError>;
}

/// Counts only the length.
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Target for Length {
    fn contents(
        &mut self,
        bytes: u64,
        _open: impl FnOnce() -> Result<File, ImageError>,
    ) -> Result<(), ImageError> {
        self.0 += bytes + padding(bytes);
        Ok(())
    }
}

/// Hashes and counts what is written.
struct HashedOutput<W> {
    to: W,
    hasher: Hasher,
    bytes: u64,
    buffer: Vec<u8>,
}

impl<W: Write> Write for HashedOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.to.write(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<W: Write> Target for HashedOutput<W> {
    fn contents(
        &mut self,
        bytes: u64,
        open: impl FnOnce() -> Result<File, ImageError>,
    ) -> Result<(), ImageError> {
        let mut file = open()?.take(bytes);
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            let count = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(ImageError::store("cannot read a layer", error)),
            };
            self.write_all(&buffer[..count]).map_err(not_taken)?;
        }
        self.buffer = buffer;
        if file.limit() > 0 {
            return Err(changed());
        }
        self.write_all(&[0; BLOCK][..padding(bytes) as usize]).map_err(not_taken)
    }
}

/// A layer must never change, but it did.
pub(crate) fn changed() -> ImageError {
    ImageError::new(ImageErrorCode::Store, "a layer was changed while it was read")
}

struct Packing<T: Target> {
    to: T,
    /// The buffer in which a header is assembled.
    header: Vec<u8>,
    linked: Linked,
}

/// The header of an entry besides its path.
struct EntryHeader<'a> {
    kind: Kind,
    mode: u32,
    link: &'a [u8],
    bytes: u64,
    /// Seconds and nanoseconds.
    mtime: (i64, u32),
}

impl EntryHeader<'_> {
    const NOTHING: Self =
        Self { kind: Kind::File, mode: 0o644, link: b"", bytes: 0, mtime: (0, 0) };
}

impl<T: Target> Packing<T> {
    fn directory(&mut self, opened: &OwnedFd, at: &[u8]) -> Result<(), ImageError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(opened).map_err(unreadable(at))? {
            let entry = entry.map_err(unreadable(at))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        names.sort_unstable();
        if is_opaque(opened).map_err(unreadable(at))? {
            self.head(&beneath(at, &[WHITEOUT, OPAQUE_REST].concat()), &EntryHeader::NOTHING)?;
        }
        for name in names {
            self.entry(opened.as_fd(), &name, at)?;
        }
        Ok(())
    }

    fn entry(&mut self, parent: BorrowedFd<'_>, name: &[u8], at: &[u8]) -> Result<(), ImageError> {
        let path = beneath(at, name);
        let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(unreadable(&path))?;
        let kind = FileType::from_raw_mode(found.st_mode);
        if name.starts_with(WHITEOUT) {
            return Err(foreign(&path));
        }
        let mode = found.st_mode & 0o777;
        match kind {
            FileType::Directory => {
                let kind = Kind::Directory;
                self.head(&path, &EntryHeader { kind, mode, ..EntryHeader::NOTHING })?;
                let opened = openat2(parent, name, DIRECTORY, Mode::empty(), RESOLVE);
                self.directory(&opened.map_err(unreadable(&path))?, &path)
            }
            FileType::Symlink => {
                let link = readlinkat(parent, name, Vec::new()).map_err(unreadable(&path))?;
                let (kind, link) = (Kind::Symlink, link.as_bytes());
                self.head(&path, &EntryHeader { kind, mode: 0o777, link, ..EntryHeader::NOTHING })
            }
            FileType::RegularFile => {
                let mtime = (found.st_mtime, u32::try_from(found.st_mtime_nsec).unwrap_or(0));
                if let Some(first) = self.linked.first_name(&found, &path) {
                    let (kind, link) = (Kind::Hardlink, first.as_slice());
                    return self.head(&path, &EntryHeader { kind, mode, link, bytes: 0, mtime });
                }
                let bytes = found.st_size.cast_unsigned();
                self.head(&path, &EntryHeader { mode, bytes, mtime, ..EntryHeader::NOTHING })?;
                let open = || {
                    let opened = openat2(parent, name, FILE, Mode::empty(), RESOLVE);
                    opened.map(File::from).map_err(unreadable(&path))
                };
                self.to.contents(bytes, open)
            }
            FileType::CharacterDevice if found.st_rdev == 0 => {
                self.head(&beneath(at, &[WHITEOUT, name].concat()), &EntryHeader::NOTHING)
            }
            FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket
            | FileType::Unknown => Err(foreign(&path)),
        }
    }

    /// Writes the header of an entry, and an extended one before it for what does not fit.
    fn head(&mut self, path: &[u8], about: &EntryHeader<'_>) -> Result<(), ImageError> {
        let written = tar_stream::NewEntry {
            kind: about.kind,
            path,
            mode: about.mode,
            owner: (0, 0),
            size: about.bytes,
            modified: about.mtime,
            target: about.link,
            attributes: &[],
            comment: None,
        };
        self.header.clear();
        written.write(&mut self.header);
        self.to.write_all(&self.header).map_err(not_taken)
    }
}

/// Files with several names, by inode, and the first name of each.
#[derive(Default)]
struct Linked {
    names: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Linked {
    /// The first name of a file, if this is another one.
    fn first_name(&mut self, found: &Stat, path: &[u8]) -> Option<Vec<u8>> {
        if found.st_nlink < 2 {
            return None;
        }
        if let Some(first) = self.names.get(&found.st_ino) {
            return Some(first.clone());
        }
        if self.bytes + path.len() <= LINKED_BYTES_MAX {
            self.bytes += path.len();
            self.names.insert(found.st_ino, path.to_vec());
        }
        None
    }
}

fn beneath(at: &[u8], name: &[u8]) -> Vec<u8> {
    if at.is_empty() { name.to_vec() } else { [at, b"/", name].concat() }
}

fn is_opaque(directory: &OwnedFd) -> Result<bool, Errno> {
    match fgetxattr(directory, OPAQUE, &mut [0; 8][..]) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error),
    }
}

fn unreadable(path: &[u8]) -> impl FnOnce(Errno) -> ImageError {
    move |error| ImageError::store(format!("cannot read {} of a layer", path.escape_ascii()), error)
}

fn foreign(path: &[u8]) -> ImageError {
    let cause = format!("a layer has something that no import makes: {}", path.escape_ascii());
    ImageError::new(ImageErrorCode::Store, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_links_beyond_the_memory_limit_become_files() {
        let mut found = rustix::fs::stat(".").unwrap();
        let mut linked = Linked::default();
        let mut of = |linked: &mut Linked, inode, path: &[u8]| {
            (found.st_ino, found.st_nlink) = (inode, 2);
            linked.first_name(&found, path)
        };
        assert_eq!(of(&mut linked, 1, b"a"), None);
        assert_eq!(of(&mut linked, 1, b"b"), Some(b"a".to_vec()));
        linked.bytes = LINKED_BYTES_MAX;
        assert_eq!(of(&mut linked, 2, b"c"), None);
        assert_eq!(of(&mut linked, 2, b"d"), None);
        assert_eq!(of(&mut linked, 1, b"e"), Some(b"a".to_vec()));
    }
}
