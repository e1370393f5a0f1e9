//! A root for a container that an OCI runtime makes. The runtime needs a directory, and each
//! sandbox needs layers of its own over the shared ones. So the layers are mounted on that
//! directory in a new mount namespace: the runtime that is started in it sees them, the host never
//! does, and nothing has to be unmounted later.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2};
use rustix::mount::{MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::process::chdir;

use super::layers::layer;
use super::{copy_of, memory, mount_on};
use crate::sys::mount::{Properties, set_properties};
use crate::sys::namespaces::{self, Namespace};

/// Names are as short as possible: programs inside see them.
const EMPTY: &str = "e";

/// What to mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BundleRoot {
    /// A directory for the layers while they are mounted.
    pub gathered: PathBuf,
    /// The directory for the root.
    pub root: PathBuf,
    /// Its layers, topmost first.
    pub layers: Vec<PathBuf>,
    /// Mounts in it, outer ones first: the path relative to the root, and the source.
    pub parts: Vec<(PathBuf, PathBuf)>,
    /// Mounts of the host to leave out.
    pub without: Vec<PathBuf>,
}

/// Makes a mount namespace and mounts a root in it.
pub fn mount_bundle_root(wanted: &BundleRoot) -> io::Result<()> {
    namespaces::make(&[Namespace::Mount])?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    for path in &wanted.without {
        unmount(path, UnmountFlags::DETACH)?;
    }
    let gathered = memory(&[("size", "64k"), ("mode", "755")], MountAttrFlags::empty())?;
    mount_on(gathered, CWD, &wanted.gathered)?;
    // Layer paths are relative, because the kernel accepts 255 bytes for all of them.
    chdir(&wanted.gathered)?;
    let made = attach(wanted);
    chdir("/")?;
    unmount(&wanted.gathered, UnmountFlags::DETACH)?;
    made
}

fn attach(wanted: &BundleRoot) -> io::Result<()> {
    let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    mkdirat(CWD, EMPTY, Mode::from_raw_mode(0o755))?;
    let mut names = Vec::with_capacity(wanted.layers.len() + 1);
    for (number, path) in wanted.layers.iter().enumerate() {
        let name = number.to_string();
        gather(path, &name)?;
        names.push(name);
    }
    if names.len() == 1 {
        names.push(EMPTY.to_owned());
    }
    mount_on(layer(&names.join(":"), read_only)?, CWD, &wanted.root)?;
    for (number, (at, path)) in wanted.parts.iter().enumerate() {
        let place = wanted.root.join(at);
        if !path.is_dir() {
            // An overlay over a single file is not possible.
            mount_on(safe_copy(&opened(path, OFlags::empty())?)?, CWD, &place)?;
            continue;
        }
        let name = format!("p{number}");
        gather(path, &name)?;
        // The topmost layer may have something at this path, which must stay visible.
        let above = Path::new("0").join(at);
        let above = if above.is_dir() { above } else { PathBuf::from(EMPTY) };
        mount_on(layer(&format!("{}:{name}", above.display()), read_only)?, CWD, place)?;
    }
    Ok(())
}

/// Mounts a copy of a directory here, under a short name.
fn gather(path: &Path, name: &str) -> io::Result<()> {
    mkdirat(CWD, name, Mode::from_raw_mode(0o755))?;
    mount_on(safe_copy(&opened(path, OFlags::DIRECTORY)?)?, CWD, name)
}

/// Opens a path without links: its maker has resolved them.
fn opened(path: &Path, kind: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC | kind, Mode::empty(), resolve)?)
}

fn safe_copy(opened: &OwnedFd) -> io::Result<OwnedFd> {
    let copy = copy_of(opened, "", false)?;
    let properties = Properties { read_only: true, no_devices: true, ..Properties::default() };
    set_properties(copy.as_fd(), properties)?;
    Ok(copy)
}
