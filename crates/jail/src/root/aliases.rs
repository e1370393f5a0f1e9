//! Other names of the workspace: links at the top of a root, in a layer of their own over the
//! others. A name that the root already has is not replaced.

use std::io;
use std::os::fd::AsFd as _;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, statat, symlinkat};
use rustix::mount::MountAttrFlags;

use super::{Built, memory, mount_on};
use crate::plan::WORKSPACE;
use crate::sys::mount::{Properties, set_properties};

/// The name of the layer.
const LAYER: &str = "a";

/// The same root with names that lead to the workspace, built in a directory beside its own. The
/// original root must be kept as long. `AlreadyExists` if it has one of the names.
pub fn with_aliases(base: &Built, directory: &str, names: &[String]) -> io::Result<Built> {
    for name in names {
        let is_there = |layer: &String| {
            let path = format!("{}/{layer}/{name}", base.directory);
            statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        };
        if base.layers.iter().any(is_there) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
    }
    let at = format!("{directory}/{LAYER}");
    mkdirat(CWD, at.as_str(), Mode::from_raw_mode(0o755))?;
    let layer = memory(&[("size", "64k"), ("mode", "755")], MountAttrFlags::empty())?;
    mount_on(&layer, CWD, &at)?;
    let opened = openat(CWD, at.as_str(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    for name in names {
        symlinkat(WORKSPACE, &opened, name.as_str())?;
    }
    set_properties(opened.as_fd(), Properties { read_only: true, ..Properties::default() })?;
    // Layer paths are relative to the layers of the root: the kernel accepts 255 bytes for all of
    // them.
    let place = directory.rsplit('/').next().unwrap_or(directory);
    let own = format!("../{place}/{LAYER}");
    let layers = std::iter::once(own).chain(base.layers.iter().cloned()).collect();
    Ok(Built { directory: base.directory.clone(), layers, parts: base.parts.clone() })
}
