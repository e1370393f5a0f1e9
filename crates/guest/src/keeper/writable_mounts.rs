//! The writable mounts of a container: each is thrown away whole and replaced by an empty one. The
//! old contents are never read, so their amount does not matter.

use std::os::fd::OwnedFd;

use guest_protocol::keeper::WritableMountSpec;
use jail::plan::SCALE;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags, flistxattr, fstat, fstatfs,
    mkdirat, openat, statat, statx,
};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MoveMountFlags, UnmountFlags, move_mount, unmount};
use rustix::process::fchdir;

use super::process::{Process, foreign, open_beneath};
use super::{Named as _, Refusal, leftover};

const MEMORY_MAGIC: i64 = 0x0102_1994;

/// The smallest unit of the kernel.
const PAGE_BYTES: u64 = 4096;

/// About what a file costs the kernel besides its contents.
const FILE_BYTES: u64 = 1024;

/// Old mounts hold much memory if they use one part in this many of their total size.
const MUCH: u64 = 4;

/// Files that the guest itself keeps in the directory of the scale file, and their maximum size.
const OWN_FILES: [&str; 2] = ["scale", ".new"];
const OWN_FILE_BYTES: u64 = 16;

/// More entries than any mount has that should be empty.
const MAX_ENTRIES: usize = 8;

/// How many files fit: each costs the kernel memory of its own.
fn inodes(place: &WritableMountSpec) -> u64 {
    (place.bytes / PAGE_BYTES).max(1024)
}

/// A new, empty file system that is not attached yet.
pub(super) fn fresh(process: &Process, place: &WritableMountSpec) -> Result<OwnedFd, Refusal> {
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    if place.no_programs {
        attributes |= MountAttrFlags::MOUNT_ATTR_NOEXEC;
    }
    let options = [
        ("size", place.bytes.to_string()),
        ("nr_inodes", inodes(place).to_string()),
        ("mode", format!("{:o}", place.mode)),
        ("uid", process.outside("uid_map", place.uid)?.to_string()),
        ("gid", process.outside("gid_map", place.uid)?.to_string()),
    ];
    let options = options.each_ref().map(|(name, value)| (*name, value.as_str()));
    jail::root::memory(&options, attributes).named("make a file system in memory")
}

/// Puts each new mount in place of its old one, and returns the last descriptors of all old ones.
/// Must be called in the mount namespace of the container.
pub(super) fn replace_all(
    root: &OwnedFd,
    fresh: Vec<(&WritableMountSpec, OwnedFd)>,
) -> Result<Vec<OwnedFd>, Refusal> {
    let mut old = Vec::with_capacity(fresh.len() + 1);
    for (place, _) in &fresh {
        old.push(open_old(root, place)?);
    }
    let batch = UnmountBatch::make(root, old.len()).named("make a directory for old mounts")?;
    // Not every mount can be moved.
    let moved = old.iter().zip(&batch.targets).take_while(|(old, target)| put(old, target).is_ok());
    let moved = moved.count();
    for (index, (place, fresh)) in fresh.into_iter().enumerate() {
        if index >= moved {
            unmount_top(root, &old[index])?;
        }
        let target = open_beneath(root, &place.path, OFlags::PATH).named(&place.path)?;
        if is_mount(&target)? {
            return Err(foreign(format!("{} is mounted more than once", place.path)));
        }
        put(&fresh, &target).named("attach an empty mount")?;
    }
    unmount_top(root, &batch.beneath)?;
    old.push(batch.mount);
    Ok(old)
}

/// Whether old mounts hold so much memory that the next user could miss it. Then the keeper waits
/// until they are gone.
pub(super) fn hold_much_memory(places: &[WritableMountSpec], old: &[OwnedFd]) -> bool {
    let held: u64 = old
        .iter()
        .filter_map(|old| fstatfs(old).ok())
        .filter(|found| found.f_type == MEMORY_MAGIC)
        .map(|found| {
            let block_bytes = u64::try_from(found.f_bsize).unwrap_or(PAGE_BYTES);
            let blocks = found.f_blocks.saturating_sub(found.f_bfree);
            let files = found.f_files.saturating_sub(found.f_ffree);
            blocks.saturating_mul(block_bytes).saturating_add(files.saturating_mul(FILE_BYTES))
        })
        .fold(0, u64::saturating_add);
    let may_hold = places.iter().map(|place| place.bytes).fold(0, u64::saturating_add);
    held > may_hold / MUCH
}

fn put(mount: &OwnedFd, target: &OwnedFd) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount, "", target, "", flags)
}

fn open_old(root: &OwnedFd, place: &WritableMountSpec) -> Result<OwnedFd, Refusal> {
    let old = open_beneath(root, &place.path, OFlags::PATH).named(&place.path)?;
    let identity = |directory| fstat(directory).map(|found| (found.st_dev, found.st_ino));
    if identity(&old).named(&place.path)? == identity(root).named("inspect the root")? {
        return Err(foreign("the root is not a writable mount"));
    }
    if !is_mount(&old)? || fstatfs(&old).named(&place.path)?.f_type != MEMORY_MAGIC {
        return Err(foreign(format!("{} is not a separate tmpfs", place.path)));
    }
    Ok(old)
}

/// The directory to which old mounts are moved, in order to unmount them together: at each unmount
/// the kernel waits for every processor. It is mounted over `/proc` for that moment, because
/// `/proc` always exists and is not a writable mount; nothing in the container runs meanwhile.
struct UnmountBatch {
    mount: OwnedFd,
    beneath: OwnedFd,
    targets: Vec<OwnedFd>,
}

impl UnmountBatch {
    fn make(root: &OwnedFd, count: usize) -> std::io::Result<Self> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let mount = jail::root::memory(&[("size", "4k"), ("mode", "0")], attributes)?;
        let mut targets = Vec::with_capacity(count);
        for number in 0..count {
            let name = number.to_string();
            mkdirat(&mount, &name, Mode::empty())?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            targets.push(openat(&mount, &name, flags, Mode::empty())?);
        }
        let beneath = open_beneath(root, "/proc", OFlags::PATH)?;
        put(&mount, &beneath)?;
        Ok(Self { mount, beneath, targets })
    }
}

/// Unmounts the topmost mount at a directory. The kernel has no call that unmounts by descriptor,
/// and a path could lead elsewhere.
fn unmount_top(root: &OwnedFd, old: &OwnedFd) -> Result<(), Refusal> {
    fchdir(old).named("enter an old mount")?;
    let unmounted = unmount(".", UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
    fchdir(root).named("leave an old mount")?;
    unmounted.named("unmount an old mount")
}

/// Whether a directory is the top of a mount.
fn is_mount(directory: &OwnedFd) -> Result<bool, Refusal> {
    let found = statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::empty());
    let found = found.named("inspect a writable mount")?;
    if !found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(Errno::NOSYS).named("inspect a writable mount");
    }
    Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Checks that a mount is as if it were new: empty, and with the settings that were requested.
pub(super) fn prove(process: &Process, place: &WritableMountSpec) -> Result<(), Refusal> {
    let WritableMountSpec { path, bytes, mode, uid, no_programs: _ } = place;
    let top = open_beneath(&process.root()?, path, OFlags::RDONLY).named(path)?;
    let about = fstat(&top).named(path)?;
    let system = fstatfs(&top).named(path)?;
    if !is_mount(&top)? || system.f_type != MEMORY_MAGIC {
        return Err(foreign(format!("{path} is not a separate tmpfs")));
    }
    let owner = (process.outside("uid_map", *uid)?, process.outside("gid_map", *uid)?);
    if (about.st_uid, about.st_gid) != owner || about.st_mode & 0o7777 != *mode {
        return Err(leftover(format!("{path} has another owner or other permissions")));
    }
    let pages = bytes.div_ceil(PAGE_BYTES);
    if system.f_blocks != pages || system.f_files != inodes(place) {
        return Err(leftover(format!("{path} has another size")));
    }
    if let Some(attribute) = own_attribute(&top).named(path)? {
        return Err(leftover(format!("{path} has the attribute {attribute}")));
    }
    let own = entries(&top, path)?;
    // The top counts as a file; so do files that are deleted but open.
    let files = system.f_files.saturating_sub(system.f_ffree);
    let pages = system.f_blocks.saturating_sub(system.f_bfree);
    if files != 1 + own || pages > own {
        return Err(leftover(format!("{path} holds {files} files and {pages} pages")));
    }
    Ok(())
}

/// Counts the files that the guest itself keeps. Any other entry is a leftover.
fn entries(top: &OwnedFd, path: &str) -> Result<u64, Refusal> {
    let mut own = 0;
    for entry in Dir::read_from(top).named(path)?.take(MAX_ENTRIES) {
        let entry = entry.named(path)?;
        let name = entry.file_name().to_string_lossy();
        if name == "." || name == ".." {
            continue;
        }
        let is_own = path == SCALE && OWN_FILES.contains(&name.as_ref());
        // Never opened: opening the scale file waits for the guest.
        let about = statat(top, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW).named(path)?;
        let is_plain = FileType::from_raw_mode(about.st_mode) == FileType::RegularFile
            && u64::try_from(about.st_size).is_ok_and(|size| size <= OWN_FILE_BYTES)
            && about.st_nlink == 1;
        if !is_own || !is_plain {
            return Err(leftover(format!("{path}/{name} exists")));
        }
        own += 1;
    }
    Ok(own)
}

/// An attribute that a program may have set on a directory.
fn own_attribute(top: &OwnedFd) -> Result<Option<String>, Errno> {
    let mut list = vec![0; 1024];
    let length = match flistxattr(top, &mut list[..]) {
        // There are no attributes at all, or more than any program needs.
        Err(Errno::OPNOTSUPP) => return Ok(None),
        Err(Errno::RANGE) => return Ok(Some("(many)".to_owned())),
        length => length?,
    };
    let names = list[..length].split(|&byte| byte == 0);
    let mut names = names.map(|name| String::from_utf8_lossy(name).into_owned());
    Ok(names.find(|name| name.starts_with("user.")))
}
