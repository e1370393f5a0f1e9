//! A built root filesystem, and a sandbox's own layers over it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};
use rustix::process::chdir;

use super::{DEVICES, copy_of};

/// The most mounts of the host that are shown, those nearest to the root first: each is one more
/// mount for every sandbox, and all are sent in one packet.
const PARTS_AT_MOST: usize = 24;

/// A root filesystem that was built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// The directory of its layers in the launcher's own root.
    pub directory: String,
    /// Names of its layers in there, topmost first. Short: the kernel accepts 255 bytes for all of
    /// them.
    pub layers: Vec<String>,
    /// Mounts in it, outer ones first.
    pub parts: Vec<Part>,
}

/// A mount in a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its path relative to the root.
    pub at: String,
    /// What is mounted.
    pub source: Source,
}

/// The source of a part, as a path in the launcher's own root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A layer over a directory, without devices.
    Layer(String),
    /// A layer over a directory of device files.
    Devices(String),
    /// A copy of the mounts there: device files of the host cannot be in a layer.
    Copy(String),
}

impl Part {
    /// The mounts beneath a directory, as parts of a root with that directory as its top.
    pub(super) fn beneath(directory: &str, mountinfo: &str) -> Vec<Self> {
        let part = |at: String| {
            let path = format!("{directory}/{at}");
            // An overlay over a single file is not possible.
            let is_directory = std::fs::metadata(&path).is_ok_and(|about| about.is_dir());
            let source = if is_directory { Source::Layer(path) } else { Source::Copy(path) };
            Self { at, source }
        };
        let mut points = points_beneath(directory, mountinfo);
        points.dedup();
        points.into_iter().take(PARTS_AT_MOST).map(part).collect()
    }
}

/// The same for an ordinary user: only root may have a layer over a directory that has mounts in
/// it, because the layer would show what the mounts hide. Such a directory is copied whole, with
/// its mounts.
pub(super) fn whole_where_mounted(parts: Vec<Part>) -> Vec<Part> {
    let mut whole: Vec<Part> = Vec::with_capacity(parts.len());
    for part in parts {
        let is_beneath = |outer: &Part| {
            part.at.strip_prefix(outer.at.as_str()).is_some_and(|rest| rest.starts_with('/'))
        };
        match whole.iter_mut().find(|outer| is_beneath(outer)) {
            Some(outer) => {
                if let Source::Layer(path) = &outer.source {
                    outer.source = Source::Copy(path.clone());
                }
            }
            None => whole.push(part),
        }
    }
    whole
}

/// Mount points beneath a path. A name that a list of layers cannot hold is left out.
fn points_beneath(path: &str, mountinfo: &str) -> Vec<String> {
    let points = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    let beneath = points.filter_map(|point| point.strip_prefix(path)?.strip_prefix('/'));
    let mut found: Vec<String> = beneath
        .filter(|point| !point.is_empty() && !point.contains([':', ',', '\\']))
        .map(str::to_owned)
        .collect();
    found.sort();
    found
}

/// A sandbox's own layers over a root filesystem, not attached yet.
#[derive(Debug)]
pub struct Layers {
    /// That of the root itself.
    pub root: OwnedFd,
    /// Those of its parts.
    pub parts: Vec<(String, OwnedFd)>,
}

impl Layers {
    /// Makes layers over a root. `empty` is an empty directory: an overlay needs at least two
    /// directories.
    pub fn over(built: &Built, empty: &str) -> io::Result<Self> {
        let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let no_devices = read_only | MountAttrFlags::MOUNT_ATTR_NODEV;
        // Layer paths are relative, because they must be short.
        chdir(&built.directory)?;
        let mut names = built.layers.join(":");
        if built.layers.len() == 1 {
            names = format!("{names}:{empty}");
        }
        let root = layer(&names, no_devices);
        chdir("/")?;
        let root = root?;
        let mut parts = Vec::with_capacity(built.parts.len());
        for part in &built.parts {
            let made = match &part.source {
                Source::Layer(path) => layer(&format!("{path}:{empty}"), no_devices)?,
                Source::Devices(path) => {
                    let no_programs = read_only | MountAttrFlags::MOUNT_ATTR_NOEXEC;
                    layer(&format!("{path}:{empty}"), no_programs)?
                }
                Source::Copy(path) => copy_of(CWD, path, true)?,
            };
            parts.push((part.at.clone(), made));
        }
        Ok(Self { root, parts })
    }

    /// All its descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.root.as_fd()).chain(self.parts.iter().map(|(_, part)| part.as_fd()))
    }
}

/// The part that every root has.
pub(super) fn devices(builder: super::Builder) -> Part {
    let source = match builder {
        super::Builder::Root => Source::Devices(DEVICES.to_owned()),
        super::Builder::Rootless => Source::Copy(DEVICES.to_owned()),
    };
    Part { at: "dev".to_owned(), source }
}

/// One read-only layer. Its marks for removed or hidden files are user attributes, because not only
/// root writes them.
pub(super) fn layer(names: &str, attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "lowerdir", names)?;
    fsconfig_set_flag(&context, "userxattr")?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_parts_are_the_mounts_beneath() {
        let mountinfo = "\
            1 0 0:1 / / rw - tmpfs none rw\n\
            2 1 0:2 / /roots/0/s ro - tmpfs none rw\n\
            3 2 8:1 /usr /roots/0/s/usr ro - ext4 /dev/x rw\n\
            4 3 8:2 / /roots/0/s/usr/local ro - ext4 /dev/y rw\n\
            5 2 8:1 /odd /roots/0/s/a\\040b ro - ext4 /dev/x rw\n\
            6 1 0:3 / /roots/0/s1/usr ro - tmpfs none rw\n";
        assert_eq!(points_beneath("/roots/0/s", mountinfo), ["usr", "usr/local"]);
    }

    #[test]
    fn a_directory_with_mounts_is_copied_whole() {
        let layer =
            |at: &str| Part { at: at.to_owned(), source: Source::Layer(format!("/s/{at}")) };
        let copy = |at: &str| Part { at: at.to_owned(), source: Source::Copy(format!("/s/{at}")) };
        let found = ["lib", "usr", "usr/bin/x", "usr/local", "usr/local/y", "usrlib"].map(layer);
        let expected = [layer("lib"), copy("usr"), layer("usrlib")];
        assert_eq!(whole_where_mounted(found.to_vec()), expected);
    }
}
