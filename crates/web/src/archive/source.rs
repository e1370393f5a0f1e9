//! The bytes of an archive that is being sent to us, unpacked if they are compressed. What is
//! unpacked at once is bounded: a few bytes that stand for gigabytes are met a little at a time.

use std::io::Write as _;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use engine::archive::{Pieces, UnpackError};
use flate2::write::MultiGzDecoder;

use crate::body::next_chunk;
use crate::refused::Refused;

/// Compressed bytes taken at once; they stand for at most a thousand times as many.
const SLICE: usize = 1024;

/// The bytes of an archive.
pub struct Source {
    body: Body,
    stall: Duration,
    gunzip: Option<MultiGzDecoder<Vec<u8>>>,
    compressed: Bytes,
}

impl Source {
    /// The body of a request, which may be compressed and may pause for so long.
    pub fn new(body: Body, is_compressed: bool, stall: Duration) -> Self {
        let gunzip = is_compressed.then(|| MultiGzDecoder::new(Vec::new()));
        Self { body, stall, gunzip, compressed: Bytes::new() }
    }
}

impl Pieces for Source {
    type Error = Refused;

    async fn next_piece(&mut self) -> Result<Option<Bytes>, Refused> {
        let Some(gunzip) = &mut self.gunzip else {
            return next_chunk(&mut self.body, self.stall).await;
        };
        let broken = |error: std::io::Error| {
            Refused::invalid("body", format!("the archive is not valid gzip: {error}"))
        };
        loop {
            if self.compressed.is_empty() {
                let Some(chunk) = next_chunk(&mut self.body, self.stall).await? else {
                    gunzip.try_finish().map_err(broken)?;
                    let last = std::mem::take(gunzip.get_mut());
                    return Ok((!last.is_empty()).then(|| last.into()));
                };
                self.compressed = chunk;
            }
            let slice = self.compressed.split_to(self.compressed.len().min(SLICE));
            gunzip.write_all(&slice).map_err(broken)?;
            gunzip.flush().map_err(broken)?;
            let piece = std::mem::take(gunzip.get_mut());
            if !piece.is_empty() {
                return Ok(Some(piece.into()));
            }
        }
    }
}

impl From<UnpackError<Self>> for Refused {
    fn from(error: UnpackError<Self>) -> Self {
        match error {
            UnpackError::Archive(refusal) => Self::with_field(refusal, "body"),
            UnpackError::Files(refusal) => refusal.into(),
            UnpackError::Source(refused) => refused,
        }
    }
}
