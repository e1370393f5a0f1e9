//! An archive while it is sent, compressed if that is wanted. A few sparse files claim to have more
//! bytes than anyone can send, and a sandbox may stop answering: such an archive ends with an
//! error, so that its client sees a broken connection and never a short archive.

use std::io::{self, Write as _};
use std::time::Duration;

use bytes::Bytes;
use engine::Use;
use engine::archive::Packing;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::time::timeout;

use crate::settings::ARCHIVE_BYTES_MAX;

/// How long the sandbox may take for the next piece.
const STALL: Duration = Duration::from_mins(1);

/// An archive that is being sent.
pub struct Sending {
    packing: Packing<Use>,
    gzip: Option<GzEncoder<Vec<u8>>>,
    left: BytesLeft,
}

impl Sending {
    /// What is packed, as a body that is compressed or not.
    pub fn new(packing: Packing<Use>, is_compressed: bool) -> Self {
        let gzip = is_compressed.then(|| GzEncoder::new(Vec::new(), Compression::fast()));
        Self { packing, gzip, left: BytesLeft(ARCHIVE_BYTES_MAX) }
    }

    /// The same, of at most so many bytes before they are compressed.
    #[must_use]
    pub fn at_most(self, bytes: u64) -> Self {
        Self { left: BytesLeft(bytes), ..self }
    }

    /// The next bytes; none at the end and after an error.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let next = timeout(STALL, self.packing.next_piece()).await;
            let plain = next.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            self.left.take(plain.as_ref().map_or(0, Vec::len))?;
            let Some(gzip) = &mut self.gzip else { return Ok(plain.map(Bytes::from)) };
            let Some(plain) = plain else {
                let last = self.gzip.take().map(GzEncoder::finish).transpose()?;
                return Ok(last.map(Bytes::from));
            };
            gzip.write_all(&plain)?;
            let piece = std::mem::take(gzip.get_mut());
            if !piece.is_empty() {
                return Ok(Some(piece.into()));
            }
            // Zeros without end take no room, and other tasks wait for this thread.
            tokio::task::yield_now().await;
        }
    }
}

/// How many bytes an archive may still have.
struct BytesLeft(u64);

impl BytesLeft {
    fn take(&mut self, bytes: usize) -> io::Result<()> {
        let left = self.0.checked_sub(bytes as u64);
        self.0 = left.ok_or_else(|| {
            io::Error::new(io::ErrorKind::FileTooLarge, "the archive has more bytes than it may")
        })?;
        Ok(())
    }
}
