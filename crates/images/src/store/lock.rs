//! The lock of a store: many processes may add at once, or one may remove. It is held by an open
//! file, so the kernel releases it when a process is killed.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{ImageError, ImageErrorCode};

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// A lock that is held until this is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Shared with others who add.
    pub(super) fn shared(path: &Path, wait: Duration) -> Result<Self, ImageError> {
        Self::wait_for(path, FlockOperation::NonBlockingLockShared, wait)
    }

    /// Exclusive.
    pub(super) fn alone(path: &Path, wait: Duration) -> Result<Self, ImageError> {
        Self::wait_for(path, FlockOperation::NonBlockingLockExclusive, wait)
    }

    /// Exclusive, if no other process has it.
    pub(super) fn try_alone(path: &Path) -> Result<Option<Self>, ImageError> {
        Self::once(path, FlockOperation::NonBlockingLockExclusive)
    }

    fn wait_for(path: &Path, how: FlockOperation, wait: Duration) -> Result<Self, ImageError> {
        let tries = wait.as_millis() / PAUSE.as_millis() + 1;
        for _ in 0..tries {
            if let Some(lock) = Self::once(path, how)? {
                return Ok(lock);
            }
            sleep(PAUSE);
        }
        let cause = format!("another process has locked the image store for {} s", wait.as_secs());
        Err(ImageError::new(ImageErrorCode::Busy, cause))
    }

    fn once(path: &Path, how: FlockOperation) -> Result<Option<Self>, ImageError> {
        let failed = |error| ImageError::store(format!("cannot lock {}", path.display()), error);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o644);
        let file = options.open(path).map_err(failed)?;
        match flock(&file, how) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(error) => Err(failed(error.into())),
        }
    }
}
