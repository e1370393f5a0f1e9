//! Ends reads whose bytes go to the disk of the workspaces when that disk has too little room. An
//! import is large, and must not take the space that sandboxes and the journal need.

use std::io::{self, Read};

use images::{ImageError, ImageErrorCode};

/// How many bytes are read between two checks.
const ASK_EVERY_BYTES: u64 = 4 << 20;

/// A reader that fails when the disk runs short.
pub(crate) struct DiskGuard<R, F> {
    inner: R,
    is_short: F,
    unasked_bytes: u64,
}

impl<R, F> DiskGuard<R, F> {
    pub(crate) const fn new(inner: R, is_short: F) -> Self {
        Self { inner, is_short, unasked_bytes: ASK_EVERY_BYTES }
    }
}

impl<R: Read, F: Fn() -> bool> Read for DiskGuard<R, F> {
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
    fn disk_guard_ends_a_read_when_the_disk_is_short() {
        let read_bytes = Cell::new(0);
        let short_after = 10 << 20;
        let reader = DiskGuard::new(io::repeat(1), || read_bytes.get() >= short_after);
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
        let mut short = DiskGuard::new(io::repeat(1), || true);
        assert!(short.read(&mut buffer).is_err(), "the first read fails");
    }
}
