//! A request body for a blocking reader on another thread, such as an image import. Only a few
//! pieces are in memory at a time; a slow reader makes the client wait.

use std::io::{self, Read};

use axum::body::Body;
use bytes::{Buf as _, Bytes};
use model::ErrorCode;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{Instant, timeout_at};

use crate::body::next_chunk;
use crate::refused::Refused;
use crate::settings::Settings;

/// Pieces on their way.
const PIECES: usize = 4;

/// One message to the reader.
enum Piece {
    Bytes(Bytes),
    /// It came to its end; without this it was cut off.
    End,
}

/// The end that is read.
pub struct BodyReader {
    pieces: Receiver<Piece>,
    at_hand: Bytes,
    ended: bool,
}

/// Both ends: what takes the body from the connection, and what reads it. A reader that goes away
/// ends the other, too.
pub fn split(
    mut body: Body,
    settings: &Settings,
) -> (impl Future<Output = Result<(), Refused>> + use<>, BodyReader) {
    let (to, pieces) = channel(PIECES);
    let stall = settings.body_stall;
    let until = Instant::now() + settings.image_total;
    let feeding = async move {
        let feed = async {
            while let Some(chunk) = next_chunk(&mut body, stall).await? {
                if to.send(Piece::Bytes(chunk)).await.is_err() {
                    return Ok(());
                }
            }
            // A reader that stopped early has reported why.
            let _ = to.send(Piece::End).await;
            Ok(())
        };
        timeout_at(until, feed).await.unwrap_or_else(|_| {
            let cause = "the image did not arrive completely in time";
            Err(Refused::new(ErrorCode::RequestTimeout, cause))
        })
    };
    (feeding, BodyReader { pieces, at_hand: Bytes::new(), ended: false })
}

impl Read for BodyReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at_hand.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.at_hand = bytes,
                Some(Piece::End) => self.ended = true,
                None => return Err(io::Error::other("the request was cut off")),
            }
        }
        let count = into.len().min(self.at_hand.len());
        self.at_hand.copy_to_slice(&mut into[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn read_all(body: Body) -> (Result<(), Refused>, io::Result<Vec<u8>>) {
        let (feeding, mut reader) = split(body, &Settings::default());
        let reading = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        let (fed, read) = tokio::join!(feeding, reading);
        (fed, read.unwrap())
    }

    fn pieces(count: usize, end: Option<io::Error>) -> Body {
        let pieces = (0..count).map(|_| Ok(Bytes::from_static(&[7; 1000])));
        Body::from_stream(futures_util::stream::iter(pieces.chain(end.map(Err))))
    }

    #[tokio::test]
    async fn body_reader_reads_the_whole_body() {
        let (fed, read) = read_all(pieces(100, None)).await;
        assert_eq!((fed, read.unwrap().len()), (Ok(()), 100_000));
        let (fed, read) = read_all(Body::empty()).await;
        assert_eq!((fed, read.unwrap().len()), (Ok(()), 0));
    }

    #[tokio::test]
    async fn body_reader_fails_when_the_body_is_cut_off() {
        let (fed, read) = read_all(pieces(3, Some(io::Error::other("gone")))).await;
        assert!(fed.is_err());
        assert!(read.is_err());
        let (feeding, reader) = split(pieces(1000, None), &Settings::default());
        drop(reader);
        assert_eq!(feeding.await, Ok(()), "who does not read does not hold it up");
    }

    #[tokio::test]
    async fn body_reader_has_a_deadline() {
        let settings = Settings { image_total: Duration::from_millis(20), ..Settings::default() };
        let body = Body::from_stream(futures_util::stream::pending::<io::Result<Bytes>>());
        let (feeding, _reader) = split(body, &settings);
        assert_eq!(feeding.await.unwrap_err().refusal.code, ErrorCode::RequestTimeout);
    }
}
