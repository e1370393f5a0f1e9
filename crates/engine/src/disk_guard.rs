//! Reads what will be written to the disk of the workspaces only while that has room to spare. An
//! import is large, and must not take what sandboxes and the journal live by.

use std::io::{self, Read};

use images::{ImageError, ImageErrorCode};

/// How much is read before it is asked again.
const ASK_EVERY_BYTES: u64 = 4 << 20;

/// A reader that ends with an error when the disk runs short.
pub(crate) struct Sparing<R, F> {
    inner: R,
    is_short: F,
    unasked_bytes: u64,
}

impl<R, F> Sparing<R, F> {
    pub(crate) const fn new(inner: R, is_short: F) -> Self {
        Self { inner, is_short, unasked_bytes: ASK_EVERY_BYTES }
    }
}

impl<R: Read, F: Fn() -> bool> Read for Sparing<R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.unasked_bytes >= ASK_EVERY_BYTES {
            if (self.is_short)() {
                return Err(no_room().into());
            }
            self.unasked_bytes = 0;
        }
        let read = self.inner.read(buffer)?;
        self.unasked_bytes += read as u64;
        Ok(read)
    }
}

/// Why an import ended.
pub(crate) fn no_room() -> ImageError {
    let cause = "an import would leave less free than node.workspace_free_floor_mb";
    ImageError::new(ImageErrorCode::NoSpace, cause)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_short_disk_ends_what_is_read_soon() {
        let read_bytes = Cell::new(0);
        let short_after = 10 << 20;
        let reader = Sparing::new(io::repeat(1), || read_bytes.get() >= short_after);
        let mut counted = reader.take(1 << 30);
        let mut buffer = vec![0; 64 << 10];
        let error = loop {
            match counted.read(&mut buffer) {
                Ok(read) => read_bytes.set(read_bytes.get() + read as u64),
                Err(error) => break error,
            }
        };
        assert!(read_bytes.get() < short_after + 2 * ASK_EVERY_BYTES);
        let ours = error.downcast::<ImageError>().unwrap();
        assert_eq!(ours.code, ImageErrorCode::NoSpace);
        let mut short = Sparing::new(io::repeat(1), || true);
        assert!(short.read(&mut buffer).is_err(), "not even a beginning");
    }
}
