//! A place for what is not finished, which goes with whoever made it. It is locked for as long as
//! somebody works there, so what is not was left behind and can go at any time.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock, fstat};

use crate::error::ImageError;

/// How many names are tried.
const NAMES_MAX: u32 = 1000;

/// No name is used twice by one process: whoever still removes one must not meet another of that name.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A directory beneath `tmp/`.
#[derive(Debug)]
pub(super) struct WorkDirectory {
    path: PathBuf,
    /// Given back after all in it is gone.
    _lock: File,
}

impl WorkDirectory {
    pub(super) fn new(tmp: &Path) -> Result<Self, ImageError> {
        let failed = |error| ImageError::store("cannot make a place to work in", error);
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
        // What cannot be removed now is removed by whoever opens the store next.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Locks a place, if nobody works there and it is still one.
fn lock(path: &Path) -> Option<File> {
    let directory = File::open(path).ok()?;
    flock(&directory, FlockOperation::NonBlockingLockExclusive).ok()?;
    (fstat(&directory).ok()?.st_nlink > 0).then_some(directory)
}

/// Removes all that was left behind. Nobody waits for that.
pub(super) fn empty(tmp: &Path) {
    let Ok(entries) = fs::read_dir(tmp) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if let Some(_lock) = lock(&path) {
            // It is in nobody's way if it stays.
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
}
