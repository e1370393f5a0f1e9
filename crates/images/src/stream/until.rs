//! A reader that is given up at a moment, so that no source and no archive keeps anybody for good.

use std::io::{self, Read};
use std::time::Instant;

use crate::error::{ImageError, ImageErrorCode};

/// Reads until a moment, if there is one.
pub(crate) struct Until<R> {
    reader: R,
    deadline: Option<Instant>,
}

impl<R: Read> Until<R> {
    pub(crate) fn new(reader: R, deadline: Option<Instant>) -> Self {
        Self { reader, deadline }
    }
}

impl<R: Read> Read for Until<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            let cause = "the import took longer than it may";
            return Err(ImageError::new(ImageErrorCode::Cancelled, cause).into());
        }
        self.reader.read(into)
    }
}
