//! A stream of lines in both directions. Writing continues while the connection reads, so that two
//! sides that both write never wait for each other. Dropping a wait loses nothing.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use runtime::Duplex;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::lines::{Lines, TooLong};

const READ_BYTES: usize = 32 * 1024;

/// What comes from the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Received {
    /// A line.
    Line(String),
    /// A line that is not UTF-8.
    Garbage,
    /// A line that is too long, after which nothing can be read.
    TooLong,
    /// Its end.
    End,
}

/// A stream of lines in both directions.
pub(crate) struct Connection {
    stream: Box<dyn Duplex>,
    lines: Lines,
    outgoing: Vec<u8>,
    written_bytes: usize,
    /// The other side does not read any more.
    is_write_closed: bool,
    scratch: Vec<u8>,
}

impl Connection {
    /// Over a stream, with a maximum length of the other side's lines.
    pub(crate) fn new(stream: Box<dyn Duplex>, line_bytes_max: usize) -> Self {
        Self {
            stream,
            lines: Lines::new(line_bytes_max),
            outgoing: Vec::new(),
            written_bytes: 0,
            is_write_closed: false,
            scratch: Vec::new(),
        }
    }

    /// Its parts: the stream, the received bytes that are no line yet, and the bytes that are not
    /// written yet.
    pub(crate) fn into_parts(self) -> (Box<dyn Duplex>, Lines, Vec<u8>) {
        let unwritten = if self.is_write_closed { Vec::new() } else { self.outgoing };
        let rest = unwritten.get(self.written_bytes..).unwrap_or_default().to_vec();
        (self.stream, self.lines, rest)
    }

    /// Sends a line, as far as the other side takes it at once. The rest is written while reading.
    pub(crate) async fn say(&mut self, line: &str) {
        self.outgoing.extend_from_slice(line.as_bytes());
        self.outgoing.push(b'\n');
        poll_fn(|cx| {
            self.write(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// The next line or event.
    pub(crate) async fn next(&mut self) -> Received {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// What can be read without waiting.
    pub(crate) async fn next_at_once(&mut self) -> Option<Received> {
        poll_fn(|cx| match self.poll_next(cx) {
            Poll::Ready(heard) => Poll::Ready(Some(heard)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Received> {
        self.write(cx);
        loop {
            match self.lines.next() {
                Ok(Some(line)) => {
                    let line = String::from_utf8(line);
                    return Poll::Ready(line.map_or(Received::Garbage, Received::Line));
                }
                Ok(None) => {}
                Err(TooLong) => return Poll::Ready(Received::TooLong),
            }
            self.scratch.resize(READ_BYTES, 0);
            let mut buf = ReadBuf::new(&mut self.scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buf) {
                Poll::Pending => {
                    // An idle connection holds no memory.
                    self.scratch = Vec::new();
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => self.lines.push(buf.filled()),
                Poll::Ready(Ok(()) | Err(_)) => return Poll::Ready(Received::End),
            }
        }
    }

    /// Writes as much of the waiting bytes as possible.
    fn write(&mut self, cx: &mut Context<'_>) {
        while !self.is_write_closed && self.written_bytes < self.outgoing.len() {
            let rest = &self.outgoing[self.written_bytes..];
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) if count > 0 => self.written_bytes += count,
                // What the other side still sends is read to its end.
                Poll::Ready(Ok(_) | Err(_)) => self.is_write_closed = true,
            }
        }
        self.outgoing = Vec::new();
        self.written_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    fn pair(bytes: usize) -> (Connection, tokio::io::DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(bytes);
        (Connection::new(Box::new(ours), 100), theirs)
    }

    #[tokio::test]
    async fn both_sides_may_write_at_once() {
        let (mut connection, mut other) = pair(16);
        connection.say(&"x".repeat(1000)).await;
        let other = tokio::spawn(async move {
            // It reads only after it has written.
            other.write_all(format!("{}\n", "y".repeat(90)).as_bytes()).await.unwrap();
            let mut got = vec![0; 1001];
            other.read_exact(&mut got).await.unwrap();
            other.write_all(b"over\n").await.unwrap();
            got
        });
        assert_eq!(connection.next().await, Received::Line("y".repeat(90)));
        assert_eq!(connection.next().await, Received::Line("over".to_owned()));
        assert_eq!(other.await.unwrap(), format!("{}\n", "x".repeat(1000)).into_bytes());
        assert_eq!(connection.next().await, Received::End);
    }

    #[tokio::test]
    async fn a_wait_that_is_dropped_loses_nothing() {
        let (mut connection, mut other) = pair(64);
        for byte in *b"{\"a\":1}\nrest" {
            assert_eq!(connection.next_at_once().await, None);
            if byte == b'\n' {
                break;
            }
            other.write_all(&[byte]).await.unwrap();
        }
        other.write_all(b"\n\xff\n").await.unwrap();
        assert_eq!(connection.next().await, Received::Line("{\"a\":1}".to_owned()));
        assert_eq!(connection.next().await, Received::Garbage);
        other.write_all(&[b'x'; 60]).await.unwrap();
        assert_eq!(connection.next_at_once().await, None);
        other.write_all(&[b'x'; 60]).await.unwrap();
        assert_eq!(connection.next().await, Received::TooLong);
    }

    #[tokio::test]
    async fn the_last_line_of_a_side_that_does_not_read_arrives() {
        let (mut connection, mut other) = pair(64);
        other.write_all(b"bye\n").await.unwrap();
        drop(other);
        connection.say("hello").await;
        assert_eq!(connection.next().await, Received::Line("bye".to_owned()));
        assert_eq!(connection.next().await, Received::End);
    }
}
