//! Writes a directory as an archive, the same bytes for the same contents: sorted names, numeric
//! owners, hard links written once. Mounts in it are left out, and no link is followed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use tar::{Builder, EntryType, Header};

use crate::error::{ImageError, ImageErrorCode};

/// The deepest nesting of directories. Deeper ones would be refused when they are unpacked.
const DEPTH_MAX: usize = 256;
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Writes a directory as an archive, for a server that imports it.
pub fn write_archive(path: &Path, to: impl Write) -> Result<(), ImageError> {
    pack(path, None, to)
}

/// Writes a directory as an archive. `except` is left out: the store itself may be in there.
pub(crate) fn pack(path: &Path, except: Option<&Stat>, to: impl Write) -> Result<(), ImageError> {
    let root = File::open(path).map_err(|error| unreadable(path, error))?;
    let found = fstat(&root).map_err(|error| unreadable(path, error.into()))?;
    let mut packing = Packing {
        builder: Builder::new(to),
        device: found.st_dev,
        except: except.map(|except| (except.st_dev, except.st_ino)),
        linked: BTreeMap::new(),
    };
    packing.directory(&root.into(), Path::new(""), 0)?;
    packing.builder.into_inner().map(drop).map_err(|error| unreadable(path, error))
}

struct Packing<W: Write> {
    builder: Builder<W>,
    device: u64,
    except: Option<(u64, u64)>,
    /// Files with several names, by inode, and the first name of each.
    linked: BTreeMap<u64, PathBuf>,
}

impl<W: Write> Packing<W> {
    fn directory(&mut self, opened: &OwnedFd, at: &Path, depth: usize) -> Result<(), ImageError> {
        if depth > DEPTH_MAX {
            let cause = format!("{} is too deep", at.display());
            return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
        }
        let failed = |error: rustix::io::Errno| unreadable(at, error.into());
        let mut names = Vec::new();
        for entry in Dir::read_from(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        names.sort_unstable();
        for name in names {
            let path = at.join(std::ffi::OsStr::from_bytes(&name));
            self.entry(opened.as_fd(), &name, &path, depth)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &[u8],
        path: &Path,
        depth: usize,
    ) -> Result<(), ImageError> {
        let failed = |error: rustix::io::Errno| unreadable(path, error.into());
        let found = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        if Some((found.st_dev, found.st_ino)) == self.except {
            return Ok(());
        }
        let mut header = header(&found);
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {
                header.set_entry_type(EntryType::Directory);
                self.append(&mut header, path, io::empty())?;
                if found.st_dev != self.device {
                    return Ok(());
                }
                let opened = openat(parent, name, DIRECTORY, Mode::empty()).map_err(failed)?;
                self.directory(&opened, path, depth + 1)
            }
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new()).map_err(failed)?;
                let target = std::ffi::OsString::from_vec(target.into_bytes());
                header.set_entry_type(EntryType::Symlink);
                self.link(&mut header, path, Path::new(&target))
            }
            FileType::RegularFile => {
                if found.st_nlink > 1 {
                    if let Some(first) = self.linked.get(&found.st_ino).cloned() {
                        header.set_entry_type(EntryType::Link);
                        return self.link(&mut header, path, &first);
                    }
                    self.linked.insert(found.st_ino, path.to_owned());
                }
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
                let file = File::from(openat(parent, name, flags, Mode::empty()).map_err(failed)?);
                let size = found.st_size.cast_unsigned();
                header.set_size(size);
                self.append(&mut header, path, Exactly { file, left: size })
            }
            // Written, so that they are counted, but without device numbers.
            FileType::CharacterDevice | FileType::BlockDevice => {
                header.set_entry_type(EntryType::Char);
                self.append(&mut header, path, io::empty())
            }
            FileType::Fifo | FileType::Socket | FileType::Unknown => {
                header.set_entry_type(EntryType::Fifo);
                self.append(&mut header, path, io::empty())
            }
        }
    }

    fn append(
        &mut self,
        header: &mut Header,
        path: &Path,
        data: impl Read,
    ) -> Result<(), ImageError> {
        self.builder.append_data(header, path, data).map_err(|error| unreadable(path, error))
    }

    fn link(&mut self, header: &mut Header, path: &Path, to: &Path) -> Result<(), ImageError> {
        self.builder.append_link(header, path, to).map_err(|error| unreadable(path, error))
    }
}

fn header(found: &Stat) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(found.st_mode & 0o7777);
    header.set_uid(found.st_uid.into());
    header.set_gid(found.st_gid.into());
    header.set_mtime(u64::try_from(found.st_mtime).unwrap_or_default());
    header.set_size(0);
    header
}

fn unreadable(path: &Path, error: io::Error) -> ImageError {
    match error.downcast::<ImageError>() {
        Ok(ours) => ours,
        Err(error) => {
            let cause = format!("cannot read {}: {error}", path.display());
            ImageError::new(ImageErrorCode::SourceUnreadable, cause)
        }
    }
}

/// Reads exactly the promised number of bytes of a file, or fails: a program may write to it
/// meanwhile.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let wanted = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.file.read(&mut into[..wanted])?;
        if count == 0 && wanted > 0 {
            return Err(io::Error::other("the file became shorter while it was read"));
        }
        self.left -= count as u64;
        Ok(count)
    }
}
