//! Checks whether a running server holds the lock of a data directory.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::failure::Failure;
use crate::serve::data_dir::LOCK_FILE;

/// Whether a running server uses the directory.
pub(crate) fn is_served(data_dir: &Path) -> Result<bool, Failure> {
    let failed = |error: io::Error| {
        Failure::new(format!("cannot look at {}", data_dir.display()), error)
            .remedy("run it with sudo, or name the data directory with --data-dir")
            .usage()
    };
    let lock = match File::open(data_dir.join(LOCK_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        lock => lock.map_err(failed)?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(failed(error.into())),
    }
}
