//! A directory of files that are written once and never changed. Unfinished files lie in its
//! subdirectory `new`, which is worthless after a crash.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags, fchmod, mkdirat, openat};
use rustix::io::Errno;

use crate::layout::{discard, names_in, open_directory};

/// Such a directory.
pub(crate) struct WriteOnceDir {
    path: PathBuf,
    pub(crate) top: OwnedFd,
    pub(crate) new: OwnedFd,
    named: AtomicU64,
}

impl WriteOnceDir {
    /// Opens it, makes what is missing, and removes unfinished files.
    pub(crate) fn open(path: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&path)?;
        let top = openat(CWD, &path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        fchmod(&top, Mode::RWXU)?;
        match mkdirat(&top, "new", Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let new = open_directory(&top, "new")?;
        for name in names_in(&new)? {
            discard(&new, &name);
        }
        Ok(Self { path, top, new, named: AtomicU64::new(0) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A unique name in `new`: only this process writes there.
    pub(crate) fn new_name(&self) -> String {
        self.named.fetch_add(1, Ordering::Relaxed).to_string()
    }
}
