//! A file with an ext4 in it, as a mount: it bounds a workspace where nothing else does. The file
//! must be one that we made and that no other user could write, because the kernel parses the file
//! system.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use crate::sys::loops;

/// How often to try a free device before assuming that another process takes them all.
const ATTEMPTS: u32 = 16;

/// What is needed of the host's `/dev` to mount images.
#[derive(Debug)]
pub struct Devices {
    control: OwnedFd,
    /// New devices appear here.
    directory: OwnedFd,
}

impl Devices {
    /// Opens them while the host's `/dev` can still be reached.
    pub fn open() -> io::Result<Self> {
        let control = open("/dev/loop-control", OFlags::RDWR)?;
        let directory = open("/dev", OFlags::DIRECTORY)?;
        Ok(Self { control, directory })
    }

    /// A mount of the file system in an image, not attached yet: without devices and without
    /// set-user-id programs. An image is mounted once at a time; `EBUSY` says that it is mounted
    /// already, `ENODEV` that there is no free device.
    pub fn mount(&self, image: OwnedFd) -> io::Result<OwnedFd> {
        // The device keeps the open file, and with it the lock, until it releases the file.
        flock(&image, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => Errno::BUSY,
            other => other,
        })?;
        let device = self.attach(&image)?;
        drop(image);
        let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let source = CString::new(format!("/proc/self/fd/{}", device.as_raw_fd()))?;
        fsconfig_set_string(&context, "source", source)?;
        // Inode tables need no initialisation: the file is sparse, so they are zero.
        fsconfig_set_flag(&context, "noinit_itable")?;
        // The contents need not survive a crash of the machine, so neither a sync nor the end of a
        // sandbox waits for the disk of the host.
        fsconfig_set_flag(&context, "nobarrier")?;
        fsconfig_set_string(&context, "errors", "remount-ro")?;
        fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        remove_lost_and_found(&mount);
        Ok(mount)
    }

    fn attach(&self, image: &OwnedFd) -> io::Result<OwnedFd> {
        for _ in 0..ATTEMPTS {
            let number = match loops::free_device(self.control.as_fd()) {
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => break,
                number => number?,
            };
            let name = format!("loop{number}");
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let device = match openat(&self.directory, name, flags, Mode::empty()) {
                // Where `/dev` is not a devtmpfs, new devices do not appear in it.
                Err(Errno::NOENT) => break,
                device => device?,
            };
            match loops::configure(device.as_fd(), image.as_fd()) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                configured => return configured.map(|()| device),
            }
        }
        Err(Errno::NODEV.into())
    }
}

/// `mkfs` makes this directory in every file system; it does not belong into a workspace. One that
/// a program filled stays.
fn remove_lost_and_found(mount: &OwnedFd) {
    const NAME: &str = "lost+found";
    let made_by_us =
        statat(mount, NAME, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| found.st_uid == 0);
    if made_by_us {
        // It does no harm if it stays.
        let _ = unlinkat(mount, NAME, AtFlags::REMOVEDIR);
    }
}

fn open(path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())?)
}
