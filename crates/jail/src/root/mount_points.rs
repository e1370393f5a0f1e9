//! Mount points in a root that has no such file or directory: they are made in a layer of their
//! own, over the root itself or over the part of it that contains them. Nothing of the root is
//! hidden or replaced, and no link of it is followed.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, chmodat, chownat, mkdirat, openat, statat,
};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::process::{Gid, Uid};

use super::copy::write_file;
use super::layers::Source;
use super::{Built, Layers, Part, memory, mount_on};
use crate::etc::is_trusted;
use crate::sys::mount::{Properties, set_properties};

/// The prefix of the names of these layers.
const LAYER: &str = "p";

/// A mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountPoint<'a> {
    /// Its path relative to the root.
    pub at: &'a str,
    /// Whether it is a directory or a file.
    pub is_directory: bool,
}

/// The same root with these mount points, built in a directory beside its own. They are sorted by
/// path. The original root must be kept as long. `empty` is an empty directory.
pub fn with_mount_points(
    base: &Built,
    directory: &str,
    empty: &str,
    points: &[MountPoint<'_>],
) -> io::Result<Built> {
    let seen = Layers::over(base, empty)?;
    let mut made: BTreeMap<Option<usize>, OwnedFd> = BTreeMap::new();
    let mut outer: Option<&str> = None;
    for point in points {
        if outer.is_some_and(|outer| is_beneath(point.at, outer)) {
            // It lies in an outer mount, which must already contain it.
            continue;
        }
        outer = Some(point.at);
        let part = holder(&base.parts, point.at);
        let (view, rest) = match part {
            None => (seen.root.as_fd(), point.at),
            Some(number) => {
                let above = base.parts[number].at.len() + 1;
                (seen.parts[number].1.as_fd(), point.at.get(above..).unwrap_or_default())
            }
        };
        let Missing::From(known) = look(view, rest, point.is_directory)? else { continue };
        if !part.is_none_or(|number| matches!(base.parts[number].source, Source::Layer(_))) {
            return Err(Errno::ROFS.into());
        }
        let layer = match made.entry(part) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => {
                vacant.insert(make_layer(&path_of(directory, part))?)
            }
        };
        make(layer.as_fd(), rest, &known, point.is_directory)?;
    }
    let mut built = base.clone();
    for (part, layer) in made {
        set_properties(layer.as_fd(), Properties { read_only: true, ..Properties::default() })?;
        match part {
            None => {
                // Layer paths are relative to the layers of the root, because they must be short.
                let last = directory.rsplit('/').next().unwrap_or(directory);
                built.layers.insert(0, format!("../{last}/{LAYER}"));
            }
            Some(number) => {
                if let Source::Layer(below) = &base.parts[number].source {
                    let above = path_of(directory, part);
                    built.parts[number].source = Source::Layer(format!("{above}:{below}"));
                }
            }
        }
    }
    Ok(built)
}

fn path_of(directory: &str, part: Option<usize>) -> String {
    match part {
        None => format!("{directory}/{LAYER}"),
        Some(number) => format!("{directory}/{LAYER}{number}"),
    }
}

fn is_beneath(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// The innermost part that contains a path.
fn holder(parts: &[Part], at: &str) -> Option<usize> {
    let holds = |part: &Part| part.at == at || is_beneath(at, &part.at);
    let held = parts.iter().enumerate().filter(|(_, part)| holds(part));
    held.max_by_key(|(_, part)| part.at.len()).map(|(number, _)| number)
}

/// What a root lacks of a path.
enum Missing {
    /// Nothing.
    Nothing,
    /// Everything after these directories.
    From(Vec<Stat>),
}

fn look(view: BorrowedFd<'_>, path: &str, is_directory: bool) -> io::Result<Missing> {
    let mut known = Vec::new();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut above = openat(view, ".", flags, Mode::empty())?;
    let mut names = path.split('/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let found = match statat(&above, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(Missing::From(known)),
            found => found?,
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => {}
            FileType::RegularFile if names.peek().is_none() && !is_directory => {
                return Ok(Missing::Nothing);
            }
            // A link of ours, in place of a file: the new layer has the file again.
            FileType::Symlink if names.peek().is_none() && !is_directory && is_trusted(path) => {
                return Ok(Missing::From(known));
            }
            FileType::Symlink => return Err(Errno::LOOP.into()),
            FileType::RegularFile
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => return Err(Errno::NOTDIR.into()),
        }
        above = openat(&above, name, flags, Mode::empty())?;
        known.push(found);
    }
    if is_directory { Ok(Missing::Nothing) } else { Err(Errno::ISDIR.into()) }
}

fn make_layer(at: &str) -> io::Result<OwnedFd> {
    mkdirat(CWD, at, Mode::from_raw_mode(0o755))?;
    let layer = memory(&[("size", "64k"), ("mode", "755")], MountAttrFlags::empty())?;
    mount_on(&layer, CWD, at)?;
    Ok(openat(CWD, at, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Makes a path in a layer. Directories that the root has get the same owner and permissions: the
/// topmost layer decides how they appear.
fn make(layer: BorrowedFd<'_>, path: &str, known: &[Stat], is_directory: bool) -> io::Result<()> {
    let names: Vec<&str> = path.split('/').collect();
    let mut so_far = String::new();
    for (number, name) in names.iter().enumerate() {
        if number > 0 {
            so_far.push('/');
        }
        so_far.push_str(name);
        if number + 1 == names.len() && !is_directory {
            return write_file(layer, &so_far, b"", 0o644);
        }
        match mkdirat(layer, so_far.as_str(), Mode::from_raw_mode(0o755)) {
            Ok(()) => {}
            Err(Errno::EXIST) => continue,
            Err(error) => return Err(error.into()),
        }
        if let Some(theirs) = known.get(number) {
            let owner = (Uid::from_raw(theirs.st_uid), Gid::from_raw(theirs.st_gid));
            // Without root, the owner cannot be set; all users may enter the directory as before.
            let _ = chownat(layer, so_far.as_str(), Some(owner.0), Some(owner.1), AtFlags::empty());
            let mode = Mode::from_raw_mode(theirs.st_mode & 0o7777);
            chmodat(layer, so_far.as_str(), mode, AtFlags::empty())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_root_part_holds_a_path() {
        let part = |at: &str| Part { at: at.to_owned(), source: Source::Layer(at.to_owned()) };
        let parts = ["dev", "usr", "usr/local"].map(part);
        for (at, expected) in [
            ("data", None),
            ("usr", Some(1)),
            ("usr/share/x", Some(1)),
            ("usr/local/x", Some(2)),
            ("usr/localx", Some(1)),
            ("usrx", None),
        ] {
            assert_eq!(holder(&parts, at), expected, "{at}");
        }
    }

    #[test]
    fn missing_mount_points_are_found_without_following_links() {
        let point = std::env::temp_dir().join(format!("jail-points-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&point);
        std::fs::create_dir_all(point.join("a/b")).unwrap();
        std::fs::write(point.join("a/file"), "").unwrap();
        std::os::unix::fs::symlink("a", point.join("link")).unwrap();
        let view = std::fs::File::open(&point).unwrap();
        let lacks = |path: &str, is_directory| match look(view.as_fd(), path, is_directory) {
            Ok(Missing::Nothing) => Ok(None),
            Ok(Missing::From(known)) => Ok(Some(known.len())),
            Err(error) => Err(error.raw_os_error()),
        };
        let errno = |errno: Errno| Err(Some(errno.raw_os_error()));
        for (path, is_directory, expected) in [
            ("a/b", true, Ok(None)),
            ("a/file", false, Ok(None)),
            ("a/b/c/d", true, Ok(Some(2))),
            ("x", false, Ok(Some(0))),
            ("a/b", false, errno(Errno::ISDIR)),
            ("a/file", true, errno(Errno::NOTDIR)),
            ("a/file/x", true, errno(Errno::NOTDIR)),
            ("link/x", true, errno(Errno::LOOP)),
            ("link", true, errno(Errno::LOOP)),
        ] {
            assert_eq!(lacks(path, is_directory), expected, "{path}");
        }
        std::fs::remove_dir_all(&point).unwrap();
    }
}
