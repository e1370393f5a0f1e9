//! Copies small files into a root that is being built: only files that all users may read, links as
//! links, and never more than a budget allows. No link is ever followed.

use std::io::{self, Read as _, Write as _};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, mkdirat, openat, readlinkat, statat, symlinkat};

/// Writes a file that is not there yet.
pub(super) fn write_file(
    root: BorrowedFd<'_>,
    name: &str,
    contents: &[u8],
    mode: u32,
) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(root, name, flags, Mode::from_raw_mode(mode))?;
    std::fs::File::from(file).write_all(contents)
}

/// Copies what all users may read, links as links, as long as the budget lasts. A file that does
/// not exist or is not readable for all is left out.
pub(super) fn copy_beneath(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    path: &Path,
    budget: &mut u64,
) -> io::Result<()> {
    if statat(from, path, AtFlags::SYMLINK_NOFOLLOW).is_err() {
        return Ok(());
    }
    make_parents(to, path)?;
    copy_one(from, to, path, budget)
}

/// The same for a path whose directory exists already.
fn copy_one(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    path: &Path,
    budget: &mut u64,
) -> io::Result<()> {
    let Ok(found) = statat(from, path, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
    let copied = match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => symlinkat(readlinkat(from, path, Vec::new())?, to, path),
        FileType::Directory if found.st_mode & 0o005 == 0o005 => {
            return copy_directory(from, to, path, budget);
        }
        FileType::RegularFile if found.st_mode & 0o004 != 0 => {
            let size = found.st_size.cast_unsigned();
            if size > *budget {
                return Ok(());
            }
            *budget -= size;
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let mut contents = Vec::new();
            std::fs::File::from(openat(from, path, flags, Mode::empty())?)
                .take(size)
                .read_to_end(&mut contents)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(0o444 | (found.st_mode & 0o111));
            match openat(to, path, flags, mode) {
                Ok(file) => return std::fs::File::from(file).write_all(&contents),
                Err(errno) => Err(errno),
            }
        }
        FileType::Directory
        | FileType::RegularFile
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Ok(()),
    };
    match copied {
        // A file that we wrote ourselves has priority over the host's.
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(other) => Err(other.into()),
    }
}

fn copy_directory(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    path: &Path,
    budget: &mut u64,
) -> io::Result<()> {
    match mkdirat(to, path, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(other) => return Err(other.into()),
    }
    for name in names_in(from, path)? {
        copy_one(from, to, &path.join(name), budget)?;
    }
    Ok(())
}

fn make_parents(root: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    let mut so_far = std::path::PathBuf::new();
    for part in parent {
        so_far.push(part);
        match mkdirat(root, &so_far, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}

fn names_in(directory: BorrowedFd<'_>, path: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    use std::os::unix::ffi::OsStrExt as _;
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = openat(directory, path, flags, Mode::empty())?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(opened)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(std::ffi::OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}
