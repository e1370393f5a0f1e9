//! Building the shared, read-only root filesystem of a template, once, in the launcher's own mount
//! namespace: everything that is the same for all its sandboxes, device files included. A sandbox
//! never gets it itself but a layer over it: a file that two sandboxes had in common would tell each
//! of them, by notifications and locks, what the other one does with it.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Mode, OFlags, makedev, mkdirat, mknodat, openat, readlinkat,
    statat, symlinkat,
};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::etc;
use crate::sys::mount::{Properties, set_properties};

/// A memory file system that is not mounted anywhere yet.
pub fn memory(options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value)?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A root filesystem as it was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// Where.
    pub path: String,
    /// What is mounted in it, as paths from its top, outer ones first.
    pub parts: Vec<String>,
}

impl Built {
    /// Looks at what is mounted at and beneath a path of the launcher's own root.
    pub fn at(path: String) -> io::Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let parts = parts_of(&path, &mounts);
        Ok(Self { path, parts })
    }
}

/// Mount points beneath a path. Those with a name that a list of layers cannot hold are left out.
fn parts_of(path: &str, mountinfo: &str) -> Vec<String> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    let beneath = points.filter_map(|point| point.strip_prefix(path)?.strip_prefix('/'));
    let mut parts: Vec<String> = beneath
        .filter(|part| !part.is_empty() && !part.contains([':', ',', '\\']))
        .map(str::to_owned)
        .collect();
    parts.sort();
    parts.dedup();
    parts
}

/// A sandbox's own layers over a root filesystem, not mounted anywhere yet.
#[derive(Debug)]
pub struct Layers {
    /// That of the root itself.
    pub root: OwnedFd,
    /// Those of what is mounted in it.
    pub parts: Vec<(String, OwnedFd)>,
}

impl Layers {
    /// Makes layers over a root. `empty` is an empty directory: there is no layer over one alone.
    pub fn over(built: &Built, empty: &str) -> io::Result<Self> {
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let root = layer(&built.path, empty, read_only)?;
        let mut parts = Vec::with_capacity(built.parts.len());
        for part in &built.parts {
            let path = format!("{}/{part}", built.path);
            let no_devices = read_only | MountAttrFlags::MOUNT_ATTR_NODEV;
            parts.push((part.clone(), layer(&path, empty, no_devices)?));
        }
        Ok(Self { root, parts })
    }

    /// Every descriptor of it.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(&self.root).chain(self.parts.iter().map(|(_, part)| part)).map(AsFd::as_fd)
    }
}

fn layer(over: &str, empty: &str, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "lowerdir", format!("{over}:{empty}"))?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A copy of the mounts at a path that is not mounted anywhere yet.
pub fn copy_of(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    recursive: bool,
) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(directory, path.as_ref(), flags)?)
}

/// Mounts what is not mounted yet.
pub fn mount_on(mount: impl AsFd, directory: impl AsFd, path: impl AsRef<Path>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(mount, "", directory, path.as_ref(), flags)?)
}

/// Builds the root of the host's `/usr` at a directory of the launcher's own root. `host` is the
/// host's root directory.
pub fn build_from_host(host: BorrowedFd<'_>, at: &Path) -> io::Result<()> {
    let root = memory(&[("size", "64m"), ("mode", "755")], MountAttrFlags::empty())?;
    mount_on(&root, CWD, at)?;
    let root = openat(CWD, at, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    skeleton(root.as_fd())?;
    for (name, contents) in etc::written() {
        write_file(root.as_fd(), name, contents.as_bytes(), 0o644)?;
    }
    let mut budget = etc::COPIED_BYTES_AT_MOST;
    for name in etc::COPIED {
        copy_beneath(host, root.as_fd(), &Path::new("etc").join(name), &mut budget)?;
    }
    bind_read_only(host, root.as_fd(), "usr")?;
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        mirror(host, root.as_fd(), name)?;
    }
    seal(root.as_fd())
}

/// Builds a root from a directory: whatever it has at its top is bound read-only, except for the
/// places that every sandbox has of its own.
pub fn build_from_directory(source: BorrowedFd<'_>, at: &Path) -> io::Result<()> {
    let root = memory(&[("size", "1m"), ("mode", "755")], MountAttrFlags::empty())?;
    mount_on(&root, CWD, at)?;
    let root = openat(CWD, at, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    skeleton(root.as_fd())?;
    for name in names_in(source, Path::new("."))? {
        // A name that is not text is left out: nothing that matters has one at the top.
        let Some(name) = name.to_str() else { continue };
        if !matches!(name, "dev" | "proc" | "sys" | "tmp" | "run" | "workspace") {
            mirror(source, root.as_fd(), name)?;
        }
    }
    seal(root.as_fd())
}

fn skeleton(root: BorrowedFd<'_>) -> io::Result<()> {
    for name in etc::DIRECTORIES {
        mkdirat(root, *name, Mode::from_raw_mode(0o755))?;
    }
    for (name, target) in etc::LINKS {
        symlinkat(*target, root, *name)?;
    }
    for (name, major, minor) in etc::DEVICES {
        let device: Dev = makedev(*major, *minor);
        let mode = Mode::from_raw_mode(0o666);
        mknodat(root, *name, FileType::CharacterDevice, mode, device)?;
    }
    mkdirat(root, etc::EMPTY_DIRECTORY, Mode::from_raw_mode(0o555))?;
    write_file(root, etc::EMPTY_FILE, b"", 0o444)
}

/// Makes the finished root read-only. Device files must work in it, so it is the only mount of a
/// sandbox that allows them; nobody inside can make one.
fn seal(root: BorrowedFd<'_>) -> io::Result<()> {
    set_properties(root, Properties { read_only: true, ..Properties::default() })
}

/// Shows a name of the source's top in the root: a link as a link, a directory as a bound one, a
/// file as a copy. What does not exist is left out.
fn mirror(source: BorrowedFd<'_>, root: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let Ok(found) = statat(source, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(()) };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => {
            let target = readlinkat(source, name, Vec::new())?;
            if statat(root, name, AtFlags::SYMLINK_NOFOLLOW).is_err() {
                symlinkat(target, root, name)?;
            }
            Ok(())
        }
        FileType::Directory => bind_read_only(source, root, name),
        FileType::RegularFile => {
            let mut budget = etc::COPIED_BYTES_AT_MOST;
            copy_beneath(source, root, Path::new(name), &mut budget)
        }
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Ok(()),
    }
}

fn bind_read_only(source: BorrowedFd<'_>, root: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match mkdirat(root, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(other) => return Err(other.into()),
    }
    let copy = copy_of(source, name, true)?;
    let properties =
        Properties { read_only: true, no_devices: true, recursive: true, ids_of: None };
    set_properties(copy.as_fd(), properties)?;
    mount_on(copy, root, name)
}

fn write_file(root: BorrowedFd<'_>, name: &str, contents: &[u8], mode: u32) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(root, name, flags, Mode::from_raw_mode(mode))?;
    std::fs::File::from(file).write_all(contents)
}

/// Copies what everyone may read, links as links, as long as the budget lasts. What does not exist
/// or is not for everyone is left out.
fn copy_beneath(
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

/// The same for what has its directory already.
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
        // What we have written ourselves goes before the host's.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_is_mounted_beneath() {
        let mountinfo = "\
            1 0 0:1 / / rw - tmpfs none rw\n\
            2 1 0:2 / /base/0 ro - tmpfs none rw\n\
            3 2 8:1 /usr /base/0/usr ro - ext4 /dev/x rw\n\
            4 3 8:2 / /base/0/usr/local ro - ext4 /dev/y rw\n\
            5 2 8:1 /odd /base/0/a\\040b ro - ext4 /dev/x rw\n\
            6 1 0:3 / /base/01/usr ro - tmpfs none rw\n";
        assert_eq!(parts_of("/base/0", mountinfo), ["usr", "usr/local"]);
    }
}
