//! A reader that fails when it is cancelled, so that no source and no archive blocks an import for
//! good.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{ImageError, ImageErrorCode};

/// Reads until it is cancelled.
pub(crate) struct Cancellable<R> {
    reader: R,
    called_off: Arc<AtomicBool>,
}

impl<R: Read> Cancellable<R> {
    pub(crate) fn new(reader: R, called_off: &Arc<AtomicBool>) -> Self {
        Self { reader, called_off: Arc::clone(called_off) }
    }
}

impl<R: Read> Read for Cancellable<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.called_off.load(Ordering::Relaxed) {
            let cause = "the import was cancelled";
            return Err(ImageError::new(ImageErrorCode::Cancelled, cause).into());
        }
        self.reader.read(into)
    }
}
