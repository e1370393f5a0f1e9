//! A scripted server: one action per request. It records the requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{Client, Patience};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const SANDBOX: &str = "0192f3a0-0000-7000-8000-000000000001";
pub(crate) const LEASE: &str = "0192f3a0-0000-7000-8000-000000000002";
/// No test waits longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the server does with one request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Answers with a status, a media type and a body.
    Answer(u16, &'static str, String),
    /// Sends pieces of a body, then ends it properly.
    Pieces(&'static str, Vec<Vec<u8>>),
    /// Sends pieces of a body, then cuts the connection.
    CutAfter(&'static str, Vec<Vec<u8>>),
    /// Cuts the connection without a word.
    Cut,
    /// Says nothing.
    Silence,
}

impl Act {
    pub(crate) fn json(status: u16, value: &Value) -> Self {
        Self::Answer(status, "application/json", value.to_string())
    }

    pub(crate) fn problem(status: u16, code: &str, retryable: bool) -> Self {
        let problem = json!({
            "type": format!("/docs/errors/{code}"), "title": code, "status": status, "code": code,
            "detail": "because", "remedy": "do something", "retryable": retryable,
            "retry_after_ms": 1500, "request_id": "r-1",
        });
        Self::Answer(status, "application/problem+json", problem.to_string())
    }
}

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) line: String,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

pub(crate) struct Server {
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// Does these acts, one for each request, whatever connection it comes on.
    pub(crate) async fn with(acts: impl IntoIterator<Item = Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let acts = Arc::new(Mutex::new(acts.into_iter().collect::<VecDeque<_>>()));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&acts), Arc::clone(&seen)));
            }
        });
        Self { address, asked }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.address, Some("secret")).unwrap()
    }

    pub(crate) fn hasty(&self) -> Client {
        let answer = Duration::from_millis(100);
        self.client().patient(Patience { answer, quiet: answer, ..Patience::default() })
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.line).collect()
    }

    /// Waits until so many requests came.
    pub(crate) async fn until_asked(&self, count: usize) {
        let seen = async {
            while self.asked().len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, seen).await.unwrap();
    }
}

async fn serve(
    mut stream: TcpStream,
    acts: Arc<Mutex<VecDeque<Act>>>,
    seen: Arc<Mutex<Vec<Asked>>>,
) {
    while let Some(asked) = read_request(&mut stream).await {
        seen.lock().unwrap().push(asked);
        let act = acts.lock().unwrap().pop_front().unwrap_or(Act::Silence);
        match act {
            Act::Answer(status, kind, body) => {
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
                );
                stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            }
            Act::Pieces(kind, pieces) => {
                write_pieces(&mut stream, kind, &pieces).await;
                stream.write_all(b"0\r\n\r\n").await.unwrap();
            }
            Act::CutAfter(kind, pieces) => {
                write_pieces(&mut stream, kind, &pieces).await;
                return;
            }
            Act::Cut => return,
            Act::Silence => tokio::time::sleep(PATIENCE).await,
        }
    }
}

async fn write_pieces(stream: &mut TcpStream, kind: &str, pieces: &[Vec<u8>]) {
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    for piece in pieces {
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await.unwrap();
        stream.write_all(piece).await.unwrap();
        stream.write_all(b"\r\n").await.unwrap();
        stream.flush().await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        read_more(stream, &mut bytes).await?;
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut body = bytes.split_off(head_end + 4);
    let mut asked = Asked { line: head.lines().next().unwrap().to_owned(), head, body: vec![] };
    if let Some(length) = asked.header("content-length").and_then(|text| text.parse().ok()) {
        while body.len() < length {
            read_more(stream, &mut body).await?;
        }
    } else if asked.header("transfer-encoding").is_some() {
        while !body.ends_with(b"0\r\n\r\n") {
            read_more(stream, &mut body).await?;
        }
    }
    asked.body = body;
    Some(asked)
}

async fn read_more(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 4096];
    let length = stream.read(&mut buffer).await.ok()?;
    bytes.extend_from_slice(&buffer[..length]);
    (length > 0).then_some(())
}

pub(crate) fn sandbox() -> Value {
    json!({
        "id": SANDBOX, "template": "default", "state": "warm", "frozen": false, "generation": 1,
        "lease": LEASE, "labels": {}, "uses": 0, "created_at": "2026-01-02T03:04:05.678Z",
        "last_used_at": "2026-01-02T03:04:05.678Z", "said_by_a_newer_server": true,
    })
}

pub(crate) fn checkout() -> Act {
    Act::json(201, &json!({ "id": LEASE, "sandbox": sandbox(), "path": "fast" }))
}

pub(crate) fn file() -> Act {
    let file = json!({
        "name": "a", "kind": "file", "size": 5, "mode": "0644",
        "modified_at": "2026-01-02T03:04:05.678Z",
    });
    Act::json(200, &file)
}
