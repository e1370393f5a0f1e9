//! A client that sends exactly the given bytes, and reads the answer byte by byte. Tests
//! must be able to say what no proper client would.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// The body of an answer with this status.
    #[track_caller]
    pub(crate) fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// The problem with this code, whole and consistent.
    #[track_caller]
    pub(crate) fn problem(&self, code: &str) -> Value {
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["status"], self.status, "{problem}");
        assert_eq!(problem["type"], format!("/docs/errors/{code}"));
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(problem["request_id"], self.headers["x-request-id"]);
        for field in ["title", "detail", "remedy"] {
            assert!(!problem[field].as_str().unwrap().is_empty(), "{field}: {problem}");
        }
        problem
    }
}

/// A connection.
pub(crate) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
    /// Events of the last chunk that were not returned yet.
    events: VecDeque<String>,
}

impl Connection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, read: Vec::new(), events: VecDeque::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Whether the other end closed it.
    pub(crate) async fn is_closed(&mut self) -> bool {
        !self.more().await
    }

    async fn more(&mut self) -> bool {
        let mut buffer = vec![0; 16 * 1024];
        let read = timeout(PATIENCE, self.stream.read(&mut buffer)).await.expect("an answer");
        let read = read.unwrap_or(0);
        self.read.extend_from_slice(&buffer[..read]);
        read > 0
    }

    /// Up to and with a text.
    async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.read.windows(end.len()).position(|window| window == end) {
                return self.read.drain(..at + end.len()).collect();
            }
            assert!(self.more().await, "cut: {}", String::from_utf8_lossy(&self.read));
        }
    }

    pub(crate) async fn exactly(&mut self, count: usize) -> Vec<u8> {
        while self.read.len() < count {
            assert!(self.more().await, "cut: {}", String::from_utf8_lossy(&self.read));
        }
        self.read.drain(..count).collect()
    }

    /// All that comes until the other end closes it.
    pub(crate) async fn rest(&mut self) -> Vec<u8> {
        while self.more().await {}
        std::mem::take(&mut self.read)
    }

    /// The head of an answer, without its body.
    pub(crate) async fn head(&mut self) -> Answer {
        let head = String::from_utf8(self.until(b"\r\n\r\n").await).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .map(|line| line.split_once(": ").unwrap_or((line, "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Answer { status, headers, body: Vec::new() }
    }

    /// A whole answer.
    pub(crate) async fn answer(&mut self) -> Answer {
        let mut answer = self.head().await;
        if let Some(length) = answer.headers.get("content-length") {
            let length = length.parse().unwrap();
            answer.body = self.exactly(length).await;
        } else if answer.headers.contains_key("transfer-encoding") {
            while let Some(chunk) = self.chunk().await {
                answer.body.extend_from_slice(&chunk);
            }
        }
        answer
    }

    /// One chunk of a body; none at its end.
    pub(crate) async fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = String::from_utf8(self.until(b"\r\n").await).unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let chunk = self.exactly(size).await;
        self.until(b"\r\n").await;
        (size > 0).then_some(chunk)
    }

    /// The next event of the history: its id, name and data. Signs of life and changes of states,
    /// which come in between, are passed over.
    pub(crate) async fn event(&mut self) -> Option<(Option<u64>, String, Value)> {
        loop {
            let event = self.any_event().await?;
            if event.1 != "sandbox_state" {
                return Some(event);
            }
        }
    }

    /// The next event of a stream: its id, name and data. Signs of life are passed over.
    pub(crate) async fn any_event(&mut self) -> Option<(Option<u64>, String, Value)> {
        loop {
            let Some(text) = self.events.pop_front() else {
                let chunk = String::from_utf8(self.chunk().await?).unwrap();
                self.events.extend(chunk.split_terminator("\n\n").map(str::to_owned));
                continue;
            };
            let field = |name: &str| {
                let prefix = format!("{name}: ");
                text.lines().find_map(|line| line.strip_prefix(&prefix)).map(str::to_owned)
            };
            let Some(name) = field("event") else { continue };
            let data = serde_json::from_str(&field("data").unwrap()).unwrap();
            return Some((field("id").map(|id| id.parse().unwrap()), name, data));
        }
    }
}
