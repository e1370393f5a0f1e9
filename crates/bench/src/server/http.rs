//! As little of an HTTP client as measuring needs: one connection that is kept, one request at a
//! time, answers whose length is said beforehand. What it costs is not the server's.

use std::net::SocketAddr;
use std::time::Duration;

use memchr::memmem;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::Instant;

use command::failure::Failure;

/// The longest head of an answer.
const HEAD_MAX: usize = 16 * 1024;
/// The longest stream.
const STREAM_MAX: usize = 1024 * 1024;

/// What is read of a stream at once.
const DRAIN_BYTES: usize = 256 * 1024;
/// How a stream ends.
const END: &[u8] = b"0\r\n\r\n";

/// One connection to a server.
pub(super) struct Connection {
    stream: TcpStream,
    /// What every request ends its head with.
    tail: String,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    pub(super) async fn open(address: SocketAddr, key: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let tail = format!(" HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {key}\r\n");
        Ok(Self { stream, tail, request: Vec::new(), answer: Vec::new() })
    }

    /// Asks, and gives the status and the body of the answer.
    pub(super) async fn call(
        &mut self,
        method: &str,
        path: &str,
        kind: &str,
        body: &[u8],
    ) -> Result<(u16, &[u8]), Failure> {
        self.request.clear();
        let head = format!(
            "{method} {path}{}Content-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.tail,
            body.len()
        );
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body);
        self.stream.write_all(&self.request).await.map_err(failed)?;
        self.answer.clear();
        let head = loop {
            if let Some(end) = end_of_head(&self.answer) {
                break end;
            }
            if self.answer.len() > HEAD_MAX || self.read().await? == 0 {
                return Err(odd("no head"));
            }
        };
        let (status, length) =
            read_head(&self.answer[..head]).ok_or_else(|| odd("a strange head"))?;
        while self.answer.len() < head + length {
            if self.read().await? == 0 {
                return Err(odd("half a body"));
            }
        }
        Ok((status, &self.answer[head..head + length]))
    }

    /// Asks for a stream, and gives how long it took until `marker` came, and all that came until
    /// the end of the stream.
    pub(super) async fn stream(
        &mut self,
        path: &str,
        body: &str,
        marker: &str,
    ) -> Result<(Duration, String), Failure> {
        let head = format!(
            "POST {path}{}Content-Type: application/json\r\nAccept: text/event-stream\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.tail,
            body.len()
        );
        let began = Instant::now();
        self.stream.write_all(head.as_bytes()).await.map_err(failed)?;
        self.answer.clear();
        let mut marked = None;
        // The last chunk has no length, and nothing comes after it.
        while !self.answer.ends_with(b"0\r\n\r\n") {
            if self.answer.len() > STREAM_MAX || self.read().await? == 0 {
                return Err(odd("a stream without an end"));
            }
            if marked.is_none() && memmem::find(&self.answer, marker.as_bytes()).is_some() {
                marked = Some(began.elapsed());
            }
        }
        let answer = String::from_utf8_lossy(&self.answer).into_owned();
        let marked = marked.ok_or_else(|| Failure::new("the answer lacks the marker", &answer))?;
        Ok((marked, answer))
    }

    /// Asks for a stream and gives how many bytes it had, with what it is framed in.
    pub(super) async fn drain(&mut self, path: &str) -> Result<u64, Failure> {
        let head = format!("GET {path}{}\r\n", self.tail);
        self.stream.write_all(head.as_bytes()).await.map_err(failed)?;
        let mut buffer = vec![0; DRAIN_BYTES];
        let (mut bytes, mut last) = (0_u64, Vec::new());
        // The last chunk has no length, and nothing comes after it.
        while !last.ends_with(END) {
            let read = self.stream.read(&mut buffer).await.map_err(failed)?;
            if read == 0 {
                return Err(odd("a stream without an end"));
            }
            if bytes == 0 && !buffer[..read].starts_with(b"HTTP/1.1 200") {
                return Err(odd(&String::from_utf8_lossy(&buffer[..read.min(HEAD_MAX)])));
            }
            bytes += read as u64;
            last.extend_from_slice(&buffer[read.saturating_sub(END.len())..read]);
            last.drain(..last.len().saturating_sub(END.len()));
        }
        Ok(bytes)
    }

    async fn read(&mut self) -> Result<usize, Failure> {
        self.answer.reserve(4096);
        self.stream.read_buf(&mut self.answer).await.map_err(failed)
    }

    /// Asks with a body of JSON for an answer of JSON, and insists on success.
    pub(super) async fn json(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> Result<Value, Failure> {
        let (status, answer) = self.call(method, path, "application/json", body.as_bytes()).await?;
        if !(200..300).contains(&status) {
            let said = String::from_utf8_lossy(answer);
            return Err(Failure::new(format!("{method} {path}: {status}"), said));
        }
        if answer.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(answer).map_err(|error| Failure::new("strange JSON", error))
    }
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

/// The status, and how many bytes follow.
fn read_head(head: &[u8]) -> Option<(u16, usize)> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let length = lines.filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())
    });
    Some((status, length.unwrap_or(Some(0))?))
}

fn failed(error: std::io::Error) -> Failure {
    Failure::new("cannot talk to the server", error)
}

fn odd(what: &str) -> Failure {
    Failure::new("the server's answer is not understood", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_head_has_status_and_length() {
        let head = b"HTTP/1.1 201 Created\r\ncontent-length: 12\r\nx: y\r\n\r\n";
        assert_eq!(end_of_head(head), Some(head.len()));
        assert_eq!(read_head(head), Some((201, 12)));
        assert_eq!(read_head(b"HTTP/1.1 204 No Content\r\n\r\n"), Some((204, 0)));
        assert_eq!(read_head(b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n"), None);
        assert_eq!(end_of_head(b"HTTP/1.1 200 OK\r\n"), None);
    }
}
