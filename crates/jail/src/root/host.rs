//! The root made of the host's own programs: its `/usr`, read-only, and around it only files that
//! we write, or copy because programs do not work without them.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, mkdirat, openat, readlinkat, statat, symlinkat,
};
use rustix::mount::MountAttrFlags;

use super::copy::{copy_beneath, write_file};
use super::layers::{devices, whole_where_mounted};
use super::own_files::link_own_files;
use super::{Builder, Built, Part, copy_of, memory, mount_on};
use crate::etc;
use crate::sys::mount::{Properties, set_properties};

/// The name of the layer.
const LAYER: &str = "s";

/// Builds it in a directory of the launcher's own root. `host` is the host's root directory.
pub fn build_from_host(
    host: BorrowedFd<'_>,
    directory: &str,
    builder: Builder,
) -> io::Result<Built> {
    let at = format!("{directory}/{LAYER}");
    mkdirat(CWD, at.as_str(), Mode::from_raw_mode(0o755))?;
    let root = memory(&[("size", "64m"), ("mode", "755")], MountAttrFlags::empty())?;
    mount_on(&root, CWD, &at)?;
    let root = openat(CWD, at.as_str(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let root = root.as_fd();
    for name in fill_from_host(host, root)? {
        bind_read_only(host, root, name)?;
    }
    link_own_files(root, root)?;
    set_properties(root, Properties { read_only: true, ..Properties::default() })?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let mut parts = Part::beneath(&at, &mounts);
    if builder == Builder::Rootless {
        parts = whole_where_mounted(parts);
    }
    parts.push(devices(builder));
    Ok(Built { directory: directory.to_owned(), layers: vec![LAYER.to_owned()], parts })
}

/// Directories, links and files of every root.
pub(super) fn skeleton(root: BorrowedFd<'_>, directories: &[&str]) -> io::Result<()> {
    for name in directories {
        mkdirat(root, *name, Mode::from_raw_mode(0o755))?;
    }
    for (name, target) in etc::LINKS {
        symlinkat(*target, root, *name)?;
    }
    mkdirat(root, etc::EMPTY_DIRECTORY, Mode::from_raw_mode(0o555))?;
    write_file(root, etc::EMPTY_FILE, b"", 0o444)
}

/// Fills an empty directory with everything that is not mounted, and returns the names at its top
/// on which directories of the host are mounted.
pub fn fill_from_host(host: BorrowedFd<'_>, root: BorrowedFd<'_>) -> io::Result<Vec<&'static str>> {
    skeleton(root, etc::DIRECTORIES)?;
    for (name, contents) in etc::written() {
        write_file(root, name, contents.as_bytes(), 0o644)?;
    }
    let mut budget = etc::COPIED_BYTES_AT_MOST;
    for name in etc::COPIED {
        copy_beneath(host, root, &Path::new("etc").join(name), &mut budget)?;
    }
    let mut mounted = vec!["usr"];
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        if mirror(host, root, name)? {
            mounted.push(name);
        }
    }
    Ok(mounted)
}

/// Mirrors a name at the top of the host: a link as a link, and a directory as an empty one.
/// Returns whether the host's directory has to be mounted on it. A name that does not exist is left
/// out.
fn mirror(host: BorrowedFd<'_>, root: BorrowedFd<'_>, name: &str) -> io::Result<bool> {
    let Ok(found) = statat(host, name, AtFlags::SYMLINK_NOFOLLOW) else { return Ok(false) };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => {
            symlinkat(readlinkat(host, name, Vec::new())?, root, name)?;
            Ok(false)
        }
        FileType::Directory => {
            mkdirat(root, name, Mode::from_raw_mode(0o755))?;
            Ok(true)
        }
        FileType::RegularFile
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Ok(false),
    }
}

fn bind_read_only(host: BorrowedFd<'_>, root: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let copy = copy_of(host, name, true)?;
    let properties =
        Properties { read_only: true, no_devices: true, recursive: true, ..Properties::default() };
    set_properties(copy.as_fd(), properties)?;
    mount_on(copy, root, name)
}
