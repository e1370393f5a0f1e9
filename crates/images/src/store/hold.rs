//! Holds an image in use: it stays as long as the hold, even if it loses its names.

use std::fs::File;
use std::io;
use std::thread::sleep;
use std::time::Duration;

use model::ImageId;
use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;

use crate::error::{ImageError, ImageErrorCode};
use crate::store::record::LAYERS_FILE;
use crate::store::{Store, failed};

/// A process that checks whether an image is in use has its lock for a moment.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// An image that stays until this is dropped.
#[derive(Debug)]
pub struct ImageHold {
    _layers: File,
}

impl Store {
    /// Keeps an image from being removed.
    pub fn hold(&self, id: ImageId) -> Result<ImageHold, ImageError> {
        let unknown =
            || ImageError::new(ImageErrorCode::Unknown, format!("there is no image {id}"));
        let path = self.image(id).join(LAYERS_FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(unknown()),
            Err(error) => return Err(failed("open", &path)(error)),
        };
        for _ in 0..TRIES {
            match flock(&file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => {
                    // It may have been removed before it was locked.
                    let found =
                        fstat(&file).map_err(|error| failed("look at", &path)(error.into()))?;
                    return if found.st_nlink == 0 {
                        Err(unknown())
                    } else {
                        Ok(ImageHold { _layers: file })
                    };
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => sleep(PAUSE),
                Err(error) => return Err(failed("lock", &path)(error.into())),
            }
        }
        Err(ImageError::new(ImageErrorCode::Busy, format!("image {id} is being removed")))
    }
}
