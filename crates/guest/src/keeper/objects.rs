//! Objects that programs leave in shared memory, without any file: System V segments, semaphores
//! and queues, and POSIX queues. The kernel's own lists show all of them. The caller must already
//! be in the ipc namespace of the container.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use jail::sys::ipc::{self, Kind};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::disposer::Disposer;
use super::namespaces::OwnNamespaces;
use super::{Named as _, Refusal, leftover};

/// The kernel's lists.
const LISTS: [(Kind, &str); 3] = [
    (Kind::Memory, "sysvipc/shm"),
    (Kind::Semaphores, "sysvipc/sem"),
    (Kind::Queue, "sysvipc/msg"),
];

/// More of a list is not read: what is left then makes the proof fail.
const MAX_LIST_BYTES: usize = 16 * 1024 * 1024;

/// The most queues that are removed, for the same reason.
const MAX_QUEUES: usize = 65_536;

/// Removes all objects.
pub(super) fn remove_all(namespaces: &OwnNamespaces, disposer: &Disposer) -> Result<(), Refusal> {
    for (kind, list) in LISTS {
        for id in ids(&read(namespaces, list).named(list)?) {
            ipc::remove(kind, id).named("remove a System V object")?;
        }
    }
    if let Some(Queues { mount, directory, names }) = Queues::open()? {
        for name in names {
            unlinkat(&directory, &name, AtFlags::empty()).named("remove a queue")?;
        }
        disposer.take(vec![mount, directory]);
    }
    Ok(())
}

/// Checks that there are none.
pub(super) fn prove(namespaces: &OwnNamespaces, disposer: &Disposer) -> Result<(), Refusal> {
    for (kind, list) in LISTS {
        if let Some(id) = ids(&read(namespaces, list).named(list)?).next() {
            return Err(leftover(format!("System V {kind:?} {id} exists")));
        }
    }
    let Some(Queues { mount, directory, names }) = Queues::open()? else { return Ok(()) };
    disposer.take(vec![mount, directory]);
    match names.first() {
        Some(name) => Err(leftover(format!("the queue {} exists", name.to_string_lossy()))),
        None => Ok(()),
    }
}

/// A list for the namespace that we are in.
fn read(namespaces: &OwnNamespaces, list: &str) -> Result<String, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = match openat(&namespaces.proc, list, flags, Mode::empty()) {
        // A kernel without System V has no such objects.
        Err(Errno::NOENT) => return Ok(String::new()),
        file => file?,
    };
    let mut bytes = Vec::new();
    while bytes.len() < MAX_LIST_BYTES {
        bytes.reserve(16 * 1024);
        if rustix::io::read(&file, rustix::buffer::spare_capacity(&mut bytes))? == 0 {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The ids in a list. Its first line names the columns.
fn ids(list: &str) -> impl Iterator<Item = i32> {
    list.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)?.parse().ok())
}

/// The directory of all queues, which need not be mounted anywhere, and its contents. Closing it
/// takes as long as an unmount, so the disposer does that.
struct Queues {
    mount: OwnedFd,
    directory: OwnedFd,
    names: Vec<CString>,
}

impl Queues {
    /// None where the kernel has no queues.
    fn open() -> Result<Option<Self>, Refusal> {
        const STEP: &str = "open the directory of queues";
        let context = match fsopen("mqueue", FsOpenFlags::FSOPEN_CLOEXEC) {
            Err(Errno::NODEV) => return Ok(None),
            context => context.named(STEP)?,
        };
        fsconfig_create(&context).named(STEP)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).named(STEP)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(&mount, ".", flags, Mode::empty()).named(STEP)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory).named("list queues")? {
            let entry = entry.named("list queues")?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") && names.len() < MAX_QUEUES {
                names.push(entry.file_name().to_owned());
            }
        }
        Ok(Some(Self { mount, directory, names }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipc_object_ids_are_in_the_second_column() {
        let list = "       key      shmid perms size\n         0          7  1600 4096\n  \
                    -12 32770 600 1\n broken\n";
        assert_eq!(ids(list).collect::<Vec<_>>(), [7, 32770]);
        assert_eq!(ids("").count(), 0);
    }
}
