//! The bytes of an archive as they arrive: in pieces of any size, taken as blocks and contents.

use bytes::{Buf as _, Bytes, BytesMut};
use tar_stream::{BLOCK, TarError};

use super::unpack::UnpackError;

/// Where the bytes of an archive come from.
pub trait Pieces: Send {
    /// Why bytes did not arrive.
    type Error: Send;

    /// The next bytes, never empty; none at the end.
    fn next_piece(&mut self) -> impl Future<Output = Result<Option<Bytes>, Self::Error>> + Send;
}

/// The bytes, and those of them that are not consumed yet.
pub(super) struct Source<P> {
    pieces: P,
    ready: BytesMut,
}

impl<P: Pieces> Source<P> {
    pub(super) fn of(pieces: P) -> Self {
        Self { pieces, ready: BytesMut::new() }
    }

    /// Reads more; false at the end.
    async fn more(&mut self) -> Result<bool, UnpackError<P::Error>> {
        match self.pieces.next_piece().await {
            Ok(Some(piece)) => {
                self.ready.extend_from_slice(&piece);
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => Err(UnpackError::Source(error)),
        }
    }

    /// The next block; none at the end.
    pub(super) async fn block(&mut self) -> Result<Option<[u8; BLOCK]>, UnpackError<P::Error>> {
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
    pub(super) async fn piece(&mut self, most: u64) -> Result<Bytes, UnpackError<P::Error>> {
        if self.ready.is_empty() && !self.more().await? {
            return Err(cut_off());
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(self.ready.split_to(self.ready.len().min(most)).freeze())
    }

    /// Skips so many bytes.
    pub(super) async fn skip(&mut self, mut count: u64) -> Result<(), UnpackError<P::Error>> {
        while count > 0 {
            count -= self.piece(count).await?.len() as u64;
        }
        Ok(())
    }

    /// Reads what follows the end of the archive, if it is little: then the connection can be used
    /// again, and a checksum over the whole has seen all of it.
    pub(super) async fn drain(mut self, most: usize) -> Result<(), UnpackError<P::Error>> {
        let mut read = 0;
        while read <= most && self.more().await? {
            read += self.ready.len();
            self.ready.clear();
        }
        Ok(())
    }
}

fn cut_off<E>() -> UnpackError<E> {
    TarError::Cut.into()
}
