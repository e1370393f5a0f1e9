//! The bytes of an archive that is being sent to us, unpacked if they are compressed. What is
//! unpacked at once is bounded: a few bytes that stand for gigabytes are met a little at a time.

use std::io::Write as _;
use std::time::Duration;

use axum::body::Body;
use bytes::{Buf as _, Bytes, BytesMut};
use flate2::write::MultiGzDecoder;

use crate::archive::BLOCK;
use crate::body::next_chunk;
use crate::refused::Refused;

/// Compressed bytes taken at once; they stand for at most a thousand times as many.
const SLICE: usize = 1024;

/// The bytes of an archive.
pub(crate) struct Source {
    body: Body,
    stall: Duration,
    gunzip: Option<MultiGzDecoder<Vec<u8>>>,
    compressed: Bytes,
    ready: BytesMut,
}

impl Source {
    pub(crate) fn new(body: Body, is_compressed: bool, stall: Duration) -> Self {
        let gunzip = is_compressed.then(|| MultiGzDecoder::new(Vec::new()));
        Self { body, stall, gunzip, compressed: Bytes::new(), ready: BytesMut::new() }
    }

    /// Gets some more; false at the end.
    async fn more(&mut self) -> Result<bool, Refused> {
        loop {
            let Some(gunzip) = &mut self.gunzip else {
                let Some(chunk) = next_chunk(&mut self.body, self.stall).await? else {
                    return Ok(false);
                };
                self.ready.extend_from_slice(&chunk);
                return Ok(true);
            };
            let broken = |error: std::io::Error| {
                Refused::invalid("body", format!("the archive is not valid gzip: {error}"))
            };
            if self.compressed.is_empty() {
                let Some(chunk) = next_chunk(&mut self.body, self.stall).await? else {
                    gunzip.try_finish().map_err(broken)?;
                    self.ready.extend_from_slice(&std::mem::take(gunzip.get_mut()));
                    return Ok(!self.ready.is_empty());
                };
                self.compressed = chunk;
            }
            let slice = self.compressed.split_to(self.compressed.len().min(SLICE));
            gunzip.write_all(&slice).map_err(broken)?;
            gunzip.flush().map_err(broken)?;
            self.ready.extend_from_slice(gunzip.get_mut());
            gunzip.get_mut().clear();
            if !self.ready.is_empty() {
                return Ok(true);
            }
        }
    }

    /// The next block; none at the end.
    pub(crate) async fn block(&mut self) -> Result<Option<[u8; BLOCK]>, Refused> {
        while self.ready.len() < BLOCK {
            if !self.more().await? {
                return if self.ready.is_empty() { Ok(None) } else { Err(cut_off()) };
            }
        }
        let mut block = [0; BLOCK];
        self.ready.copy_to_slice(&mut block);
        Ok(Some(block))
    }

    /// Some bytes, at least one and at most so many.
    pub(crate) async fn piece(&mut self, most: u64) -> Result<Bytes, Refused> {
        if self.ready.is_empty() && !self.more().await? {
            return Err(cut_off());
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(self.ready.split_to(self.ready.len().min(most)).freeze())
    }

    /// Exactly so many bytes.
    pub(crate) async fn exactly(&mut self, count: u64) -> Result<Vec<u8>, Refused> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < count {
            bytes.extend_from_slice(&self.piece(count - bytes.len() as u64).await?);
        }
        Ok(bytes)
    }

    /// Passes over so many bytes.
    pub(crate) async fn skip(&mut self, mut count: u64) -> Result<(), Refused> {
        while count > 0 {
            count -= self.piece(count).await?.len() as u64;
        }
        Ok(())
    }

    /// Reads what follows the end of the archive, if that is little, so that the connection can be
    /// used again.
    pub(crate) async fn drain(mut self, most: usize) -> Result<(), Refused> {
        let mut read = 0;
        while let Some(chunk) = next_chunk(&mut self.body, self.stall).await? {
            read += chunk.len();
            if read > most {
                break;
            }
        }
        Ok(())
    }
}

fn cut_off() -> Refused {
    Refused::invalid("body", "the archive ends in the middle")
}
