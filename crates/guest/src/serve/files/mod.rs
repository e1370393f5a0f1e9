//! Files, as the user of the sandbox would find them. Whatever is at a path, opening it must never
//! block the guest nor lead it into `/proc`, where it would show itself.

pub(super) mod file_reader;
pub(super) mod file_writer;
pub(super) mod links;
pub(super) mod listing;
pub(super) mod metadata;
pub(super) mod path_resolution;
pub(super) mod removal;

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use guest_protocol::message::{Entry, EntryKind, Fault, FaultCode};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, RenameFlags, Stat, fstat, fstatfs,
    mkdirat, readlinkat, renameat, renameat_with, statat,
};
use rustix::io::Errno;

use super::fault::{fault, refused};

/// Permissions of a new directory.
const DIRECTORY_MODE: u32 = 0o755;

/// The bits of a mode that are permissions.
pub(super) const PERMISSIONS: u32 = 0o7777;

/// The bits that a written file may have: never set-user-id or set-group-id.
const SETTABLE: u32 = 0o1777;

/// Opens a path without waiting for a process at the other end of a pipe.
fn open(path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    // A terminal must not become the guest's controlling terminal. `O_PATH` does not take that
    // flag.
    let never_own = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
    let flags = flags | never_own | OFlags::CLOEXEC;
    path_resolution::open(CWD, path, flags)
}

/// Refuses files of `/proc`.
pub(super) fn refuse_proc(descriptor: impl AsFd, path: &str) -> Result<(), Fault> {
    match fstatfs(descriptor) {
        Ok(filesystem) if filesystem.f_type == PROC_SUPER_MAGIC => {
            Err(fault(FaultCode::Denied, format!("{path} is not a file of the sandbox")))
        }
        Ok(_) => Ok(()),
        Err(errno) => Err(refused(errno, path)),
    }
}

/// A path as its directory and its last name.
fn split(path: &str) -> Result<(&str, &str), Fault> {
    let trimmed = path.trim_end_matches('/');
    match trimmed.rsplit_once('/') {
        Some((_, "" | "." | "..")) | None => {
            Err(fault(FaultCode::Invalid, format!("{path:?} does not end in a name")))
        }
        Some(("", name)) => Ok(("/", name)),
        Some((directory, name)) => Ok((directory, name)),
    }
}

/// Opens the directory in which something is.
fn open_directory_of(path: &str) -> Result<(OwnedFd, &str), Fault> {
    let (directory, name) = split(path)?;
    let opened = open(directory, OFlags::PATH | OFlags::DIRECTORY)
        .map_err(|errno| refused(errno, directory))?;
    refuse_proc(&opened, path)?;
    Ok((opened, name))
}

/// Describes a file without following a last link.
pub(super) fn stat(path: &str) -> Result<Entry, Fault> {
    let file = open(path, OFlags::PATH | OFlags::NOFOLLOW).map_err(|errno| refused(errno, path))?;
    refuse_proc(&file, path)?;
    let found = fstat(&file).map_err(|errno| refused(errno, path))?;
    let target = match kind_of(&found) {
        EntryKind::Link => readlinkat(&file, "", Vec::new()).ok().map(CString::into_bytes),
        EntryKind::File | EntryKind::Directory | EntryKind::Other => None,
    };
    Ok(entry(last_name(path), &found, target))
}

/// The name that is shown for a path.
fn last_name(path: &str) -> &[u8] {
    split(path).map_or(b"/", |(_, name)| name.as_bytes())
}

/// A file as it is described to the host.
fn entry(name: &[u8], found: &Stat, target: Option<Vec<u8>>) -> Entry {
    Entry {
        name: name.to_vec(),
        kind: kind_of(found),
        size: u64::try_from(found.st_size).unwrap_or(0),
        mode: found.st_mode & PERMISSIONS,
        modified_ms: milliseconds(found),
        target,
        shared: (kind_of(found) == EntryKind::File && found.st_nlink > 1).then_some(found.st_ino),
    }
}

pub(super) fn kind_of(found: &Stat) -> EntryKind {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Link,
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => EntryKind::Other,
    }
}

pub(super) fn milliseconds(found: &Stat) -> i64 {
    let nanoseconds = i64::try_from(found.st_mtime_nsec).unwrap_or(0);
    found.st_mtime.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
}

/// Makes a directory.
pub(super) fn make_directory(path: &str, parents: bool) -> Result<(), Fault> {
    if parents {
        return make_all(path);
    }
    let (directory, name) = open_directory_of(path)?;
    mkdirat(&directory, name, Mode::from(DIRECTORY_MODE)).map_err(|errno| refused(errno, path))
}

/// Makes a directory and the missing ones above it: goes up to the first that exists, then down
/// again.
fn make_all(path: &str) -> Result<(), Fault> {
    let mut missing = Vec::new();
    let mut rest = path.trim_end_matches('/');
    let mut directory = loop {
        let place = if rest.is_empty() { "/" } else { rest };
        match open(place, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(directory) => break directory,
            Err(Errno::NOENT) if place != "/" => {
                let (above, name) = rest.rsplit_once('/').unwrap_or(("", rest));
                missing.push(name);
                rest = above.trim_end_matches('/');
            }
            Err(errno) => return Err(refused(errno, place)),
        }
    };
    refuse_proc(&directory, path)?;
    while let Some(name) = missing.pop() {
        match mkdirat(&directory, name, Mode::from(DIRECTORY_MODE)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(refused(errno, path)),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        directory = path_resolution::open(directory.as_fd(), name, flags)
            .map_err(|errno| refused(errno, path))?;
    }
    Ok(())
}

/// Renames a file or directory.
pub(super) fn rename(from: &str, to: &str, overwrite: bool) -> Result<(), Fault> {
    let (from_directory, from_name) = open_directory_of(from)?;
    let (to_directory, to_name) = open_directory_of(to)?;
    let renamed = if overwrite {
        renameat(&from_directory, from_name, &to_directory, to_name)
    } else {
        let flags = RenameFlags::NOREPLACE;
        renameat_with(&from_directory, from_name, &to_directory, to_name, flags)
    };
    renamed.map_err(|errno| {
        let is_missing = errno == Errno::NOENT
            && statat(&from_directory, from_name, AtFlags::SYMLINK_NOFOLLOW).is_err();
        let at = if errno == Errno::NOENT && is_missing { from } else { to };
        refused(errno, &format!("cannot move {from} to {to}: {at}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_at_their_last_name() {
        assert_eq!(split("/a"), Ok(("/", "a")));
        assert_eq!(split("/a/b/"), Ok(("/a", "b")));
        assert_eq!(split("/w//a//"), Ok(("/w/", "a")));
        for path in ["", "/", "//", "/a/.", "/a/..", "a", "/a/../"] {
            assert!(split(path).is_err(), "{path}");
        }
    }
}
