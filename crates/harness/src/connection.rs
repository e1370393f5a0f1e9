//! A stream of lines in both directions. What is to be said is written while something is listened
//! for, so that two sides that both speak never wait for each other. Dropping a wait loses nothing.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use runtime::Duplex;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

use crate::lines::{Lines, TooLong};

const READ_BYTES: usize = 32 * 1024;

/// What is heard of the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Received {
    /// A line.
    Line(String),
    /// A line that is no text.
    Garbage,
    /// A line that is too long, after which nothing can be understood.
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
    /// Nobody takes what is written.
    is_write_closed: bool,
    scratch: Vec<u8>,
}

impl Connection {
    /// Over a stream, for lines of at most so many bytes from the other side.
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

    /// What it is made of: the stream, what was heard and is no line yet, what is not written yet.
    pub(crate) fn into_parts(self) -> (Box<dyn Duplex>, Lines, Vec<u8>) {
        let unwritten = if self.is_write_closed { Vec::new() } else { self.outgoing };
        let rest = unwritten.get(self.written_bytes..).unwrap_or_default().to_vec();
        (self.stream, self.lines, rest)
    }

    /// Says a line, as far as the other side takes it at once. The rest is written while it is
    /// listened to.
    pub(crate) async fn say(&mut self, line: &str) {
        self.outgoing.extend_from_slice(line.as_bytes());
        self.outgoing.push(b'\n');
        poll_fn(|cx| {
            self.write(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// The next thing that is heard.
    pub(crate) async fn next(&mut self) -> Received {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// What can be heard without waiting.
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

    /// Writes what waits, as much as is taken.
    fn write(&mut self, cx: &mut Context<'_>) {
        while !self.is_write_closed && self.written_bytes < self.outgoing.len() {
            let rest = &self.outgoing[self.written_bytes..];
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Pending => return,
                Poll::Ready(Ok(count)) if count > 0 => self.written_bytes += count,
                // What it still had to say is listened to, up to its end.
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
    async fn both_may_speak_at_once() {
        let (mut connection, mut other) = pair(16);
        connection.say(&"x".repeat(1000)).await;
        let other = tokio::spawn(async move {
            // It listens only after it has spoken.
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
    async fn the_last_words_of_one_who_does_not_listen_are_heard() {
        let (mut connection, mut other) = pair(64);
        other.write_all(b"bye\n").await.unwrap();
        drop(other);
        connection.say("hello").await;
        assert_eq!(connection.next().await, Received::Line("bye".to_owned()));
        assert_eq!(connection.next().await, Received::End);
    }
}
