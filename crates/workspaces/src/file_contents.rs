//! Contents and metadata of files: copies bytes with their holes, and sets permissions, owners,
//! times and attributes. The target tree must not be reachable by any program yet: its maker gives
//! it its name afterwards.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat,
    copy_file_range, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, ftruncate, futimens,
    ioctl_ficlone, seek, utimensat,
};
use rustix::io::{Errno, read, write};

/// The buffer where the Linux kernel cannot copy by itself.
const BUFFER_BYTES: usize = 256 << 10;

/// How much one system call copies, so that the caller can cancel in between.
const RANGE_BYTES: u64 = 16 << 20;

/// The most that a list of attributes, or one of them, can be.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// The metadata of a file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileMetadata {
    /// Permissions, without the kind.
    pub(crate) mode: u32,
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) modified: Timespec,
}

impl FileMetadata {
    pub(crate) fn of(found: &Stat) -> Self {
        Self {
            mode: found.st_mode & 0o7777,
            user: found.st_uid,
            group: found.st_gid,
            modified: Timespec {
                tv_sec: found.st_mtime,
                tv_nsec: found.st_mtime_nsec.try_into().unwrap_or_default(),
            },
        }
    }

    fn times(&self) -> Timestamps {
        Timestamps { last_access: self.modified, last_modification: self.modified }
    }

    /// Only root can set owners; otherwise files belong to the server's user.
    fn owner(&self) -> (Option<Uid>, Option<Gid>) {
        if rustix::process::geteuid().is_root() {
            (Some(Uid::from_raw(self.user)), Some(Gid::from_raw(self.group)))
        } else {
            (None, None)
        }
    }

    /// Sets it on an open file or directory. Must come last: later changes would alter the times.
    pub(crate) fn apply_to(&self, file: impl AsFd) -> Result<(), Errno> {
        let file = file.as_fd();
        let (user, group) = self.owner();
        if user.is_some() {
            fchown(file, user, group)?;
        }
        fchmod(file, Mode::from_raw_mode(self.mode))?;
        futimens(file, &self.times())
    }

    /// Sets it on a link, or on a special file that cannot be opened.
    pub(crate) fn apply_to_name(&self, directory: impl AsFd, name: &CStr) -> Result<(), Errno> {
        let directory = directory.as_fd();
        let (user, group) = self.owner();
        if user.is_some() {
            chownat(directory, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        utimensat(directory, name, &self.times(), AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Attributes that users set, one after another.
pub(crate) fn each_attribute(
    file: impl AsFd,
    mut each: impl FnMut(&CStr, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let file = file.as_fd();
    let mut list = Vec::with_capacity(ATTRIBUTE_BYTES_MAX);
    match flistxattr(file, rustix::buffer::spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(Errno::NOTSUP) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    for name in list.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if !name.to_bytes().starts_with(b"user.") {
            continue;
        }
        let mut value = Vec::with_capacity(ATTRIBUTE_BYTES_MAX);
        match fgetxattr(file, name, rustix::buffer::spare_capacity(&mut value)) {
            Ok(_) => each(name, &value)?,
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Sets one of them. Where the file system has none, files are without.
pub(crate) fn set_attribute(file: impl AsFd, name: &CStr, value: &[u8]) -> io::Result<()> {
    match fsetxattr(file, name, value, XattrFlags::empty()) {
        Ok(()) | Err(Errno::NOTSUP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Copies the contents of a file into an empty one: shared with it if the file system can, else
/// byte by byte with its holes. `go_on` is called as by a walk.
pub(crate) fn copy_contents(
    from: &OwnedFd,
    to: &OwnedFd,
    size: u64,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<()> {
    if size == 0 {
        return Ok(());
    }
    if ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let mut ranges = Ranges::default();
    let mut at = 0;
    while let Some((start, end)) = next_data(from, at, size)? {
        at = start;
        while at < end {
            let copied = ranges.copy(from, to, at, (end - at).min(RANGE_BYTES))?;
            if copied == 0 {
                // It became shorter meanwhile.
                ftruncate(to, at)?;
                return Ok(());
            }
            at += copied;
            if !go_on(1) {
                return Err(crate::walk::called_off());
            }
        }
    }
    Ok(ftruncate(to, size)?)
}

/// The next part of a file that is no hole.
fn next_data(file: &OwnedFd, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let end = seek(file, SeekFrom::Hole(start))?;
    Ok((start < size).then(|| (start, end.min(size))))
}

/// Copies ranges, by the kernel for as long as it can.
#[derive(Default)]
struct Ranges {
    by_hand: bool,
    buffer: Vec<u8>,
}

impl Ranges {
    fn copy(&mut self, from: &OwnedFd, to: &OwnedFd, at: u64, length: u64) -> io::Result<u64> {
        if !self.by_hand {
            let (mut there, mut here) = (at, at);
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let copied = copy_file_range(from, Some(&mut there), to, Some(&mut here), length);
            match copied {
                Ok(copied) => return Ok(copied as u64),
                Err(Errno::NOSYS | Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP) => {
                    self.by_hand = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.buffer.resize(BUFFER_BYTES, 0);
        let wanted = usize::try_from(length).unwrap_or(usize::MAX).min(BUFFER_BYTES);
        let got = rustix::io::pread(from, &mut self.buffer[..wanted], at)?;
        seek(to, SeekFrom::Start(at))?;
        write_all(to, &self.buffer[..got])?;
        Ok(got as u64)
    }
}

pub(crate) fn write_all(to: impl AsFd, mut bytes: &[u8]) -> io::Result<()> {
    let to = to.as_fd();
    while !bytes.is_empty() {
        match write(to, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads some of a file; 0 at its end.
pub(crate) fn read_some(from: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    let from = from.as_fd();
    loop {
        match read(from, &mut *buffer) {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

/// A name as a C string.
pub(crate) fn c_name(name: &[u8]) -> io::Result<CString> {
    CString::new(name)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a file name contains a zero byte"))
}
