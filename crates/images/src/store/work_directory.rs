//! A directory for unfinished work, which is removed with its owner. It is locked while it is in
//! use, so an unlocked one was left behind and can be removed at any time.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock, fstat};

use crate::error::ImageError;

/// How many names are tried.
const NAMES_MAX: u32 = 1000;

/// No name is used twice by one process: a slow removal must never meet a new directory of the same
/// name.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A directory beneath `tmp/`.
#[derive(Debug)]
pub(super) struct WorkDirectory {
    path: PathBuf,
    /// Released after everything in it is removed.
    _lock: File,
}

impl WorkDirectory {
    pub(super) fn new(tmp: &Path) -> Result<Self, ImageError> {
        let failed = |error| ImageError::store("cannot make a work directory", error);
        for _ in 0..NAMES_MAX {
            let n = LAST.fetch_add(1, Ordering::Relaxed);
            let path = tmp.join(format!("{}-{n}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(failed(error)),
            }
            // Until it is locked, it looks as if it was left behind.
            if let Some(lock) = lock(&path) {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(failed(io::ErrorKind::AlreadyExists.into()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        // What cannot be removed now is removed when the store is opened next.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Locks a work directory, if it is not in use and still exists.
fn lock(path: &Path) -> Option<File> {
    let directory = File::open(path).ok()?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    (fstat(&directory).ok()?.st_nlink > 0).then_some(directory)
}

/// Removes all directories that were left behind. No caller waits for that.
pub(super) fn empty(tmp: &Path) {
    let Ok(entries) = fs::read_dir(tmp) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if let Some(_lock) = lock(&path) {
            // It does no harm if it stays.
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
}
