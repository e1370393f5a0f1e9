//! A file with an ext4 in it, as a mount: what bounds a workspace where nothing else does. The file
//! must be one that we made and nobody else could write: a file system is parsed by the kernel.

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

/// How often a device that was free is tried before somebody else is assumed to take them all.
const ATTEMPTS: u32 = 16;

/// What is needed of the host's `/dev` to mount images.
#[derive(Debug)]
pub struct Devices {
    control: OwnedFd,
    /// New devices appear here.
    directory: OwnedFd,
}

impl Devices {
    /// Those of the host, while its `/dev` is in sight.
    pub fn open() -> io::Result<Self> {
        let control = open("/dev/loop-control", OFlags::RDWR)?;
        let directory = open("/dev", OFlags::DIRECTORY)?;
        Ok(Self { control, directory })
    }

    /// A mount of the file system in an image, not mounted anywhere yet: without devices, without
    /// set-user-id programs. The image is mounted once at a time, whoever asks; `EBUSY` says that
    /// it is, `ENODEV` that there is no free device.
    pub fn mount(&self, image: OwnedFd) -> io::Result<OwnedFd> {
        // The device keeps the open file, and with it the lock, until it lets go of it.
        flock(&image, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => Errno::BUSY,
            other => other,
        })?;
        let device = self.attach(&image)?;
        drop(image);
        let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let source = CString::new(format!("/proc/self/fd/{}", device.as_raw_fd()))?;
        fsconfig_set_string(&context, "source", source)?;
        // Tables of inodes are empty as they are: the file is.
        fsconfig_set_flag(&context, "noinit_itable")?;
        // What is in it need not survive the machine, and nobody waits for the disk of the host:
        // neither the one who syncs nor the end of a sandbox.
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
                // Where `/dev` is not the kernel's own, new devices do not appear in it.
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

/// What `mkfs` puts into every file system is nothing that belongs into a workspace. One that a
/// program made is its own.
fn remove_lost_and_found(mount: &OwnedFd) {
    const NAME: &str = "lost+found";
    let made_by_us =
        statat(mount, NAME, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| found.st_uid == 0);
    if made_by_us {
        // It is in nobody's way if it stays.
        let _ = unlinkat(mount, NAME, AtFlags::REMOVEDIR);
    }
}

fn open(path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty())?)
}
