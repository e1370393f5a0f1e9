//! A place for what is not finished, which goes with whoever made it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::ImageError;

/// How many names are tried.
const NAMES_MAX: u32 = 100_000;

/// A directory beneath `tmp/`.
#[derive(Debug)]
pub(super) struct Work {
    path: PathBuf,
}

impl Work {
    /// Makes one. The lock of the store must be held, or somebody may think it was left behind.
    pub(super) fn new(tmp: &Path) -> Result<Self, ImageError> {
        let failed = |error| ImageError::store("cannot make a place to work in", error);
        for n in 0..NAMES_MAX {
            let path = tmp.join(format!("{}-{n}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(io::ErrorKind::AlreadyExists.into()))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // What cannot be removed now is removed by whoever opens the store next.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes all that was left behind.
pub(super) fn empty(tmp: &Path) {
    let Ok(entries) = fs::read_dir(tmp) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        // It is in nobody's way if it stays.
        let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
    }
}
