//! Root filesystems of sandboxes, each built once in the launcher's own mount namespace: everything
//! that is the same for all sandboxes that use it. A sandbox never gets the root itself but layers
//! over it: through a file that two sandboxes shared, each could observe the other by notifications
//! and locks.

mod aliases;
mod bundle;
mod copy;
mod devices;
mod host;
mod layered;
mod layers;
mod mount_points;
mod own_files;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

pub use aliases::with_aliases;
pub use bundle::{BundleRoot, mount_bundle_root};
pub use devices::{Builder, DEVICES, build_devices};
pub use host::{build_from_host, fill_from_host};
pub use layered::{LAYERS_AT_MOST, build_from_layers, fill_over_layers};
pub use layers::{Built, Layers, Part, Source};
pub use mount_points::{MountPoint, with_mount_points};

/// A tmpfs that is not attached yet.
pub fn memory(options: &[(&str, &str)], attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value)?;
    }
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// A copy of the mounts at a path, not attached yet.
pub fn copy_of(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    recursive: bool,
) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    Ok(open_tree(directory, path.as_ref(), flags)?)
}

/// Attaches a mount.
pub fn mount_on(mount: impl AsFd, directory: impl AsFd, path: impl AsRef<Path>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(mount, "", directory, path.as_ref(), flags)?)
}
