//! The bytes of a file as the body of an answer.

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use engine::{FileReader, Use};
use futures_util::stream;
use tokio::io::AsyncReadExt as _;

const READ_BYTES: usize = 128 * 1024;

/// The bytes of a file, at most as many as were announced. An error in the middle ends the
/// connection, which is how a client tells a part from the whole.
pub fn contents(used: Use, reader: FileReader, exact: Option<u64>) -> Body {
    let state = (used, reader, exact.unwrap_or(u64::MAX), BytesMut::new());
    Body::from_stream(stream::try_unfold(
        state,
        |(used, mut reader, left, mut buffer)| async move {
            if left == 0 {
                return Ok(None);
            }
            buffer.reserve(READ_BYTES);
            let mut limited = (&mut reader).take(left.min(READ_BYTES as u64));
            let read = limited.read_buf(&mut buffer).await?;
            if read == 0 {
                return Ok::<_, std::io::Error>(None);
            }
            let piece: Bytes = buffer.split().freeze();
            Ok(Some((piece, (used, reader, left - read as u64, buffer))))
        },
    ))
}
