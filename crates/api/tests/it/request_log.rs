//! The request log as an operator reads it: the lines that the server writes as text.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use crate::stage::{Stage, request};

/// The log of a server on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Starts to collect lines, until the guard is dropped.
    fn start(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::INFO)
            .with_writer(move || log.clone());
        tracing::subscriber::set_default(lines.finish())
    }

    /// The only line with this text.
    fn line(&self, part: &str) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = String::from_utf8(bytes).unwrap();
        let found: Vec<_> = text.lines().filter(|line| line.contains(part)).collect();
        assert_eq!(found.len(), 1, "{part}: {text}");
        found[0].to_owned()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[track_caller]
fn has(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[tokio::test]
async fn request_log_names_the_thing_the_key_and_the_code() {
    let stage = Stage::start().await;
    let log = Log::default();
    let _guard = log.start();
    let id = "0192f3a0-0000-7000-8000-0000000000ab";
    let path = format!("/v1/sandboxes/{id}?secret=hunter2");
    stage.raw(&request(&stage.admin, "DELETE", &path, "x-request-id: r-1\r\n", b"")).await;
    let line = log.line("r-1");
    has(&line, &["a request was refused", "took_ms=", "code=", &format!("sandbox=\"{id}\"")]);
    has(&line, &["route=\"/v1/sandboxes/{id}\"", "key="]);
    assert!(!line.contains("hunter2") && !line.contains(&stage.admin), "{line}");
    stage.raw(&request("wrong", "GET", "/v1/pools/default", "x-request-id: r-2\r\n", b"")).await;
    let line = log.line("r-2");
    has(&line, &["code=\"unauthorized\"", "template=\"default\""]);
    assert!(!line.contains("key="), "no key was accepted: {line}");
}

#[tokio::test]
async fn request_log_names_the_session_of_a_dialect_without_its_prefix() {
    let stage = Stage::start().await;
    let log = Log::default();
    let _guard = log.start();
    let id = "0192f3a0-0000-7000-8000-0000000000ab";
    let path = format!("/compat/ash/api/sessions/{id}");
    stage.raw(&request(&stage.admin, "GET", &path, "x-request-id: r-1\r\n", b"")).await;
    has(&log.line("r-1"), &[&format!("session=\"{id}\""), "a request was refused"]);
    let path = "/compat/blaxel/box-1/process";
    stage.raw(&request(&stage.admin, "GET", path, "x-request-id: r-2\r\n", b"")).await;
    has(&log.line("r-2"), &["sandbox=\"box-1\"", "route=\"/compat/blaxel/{sandbox}/process\""]);
}

#[tokio::test]
async fn request_log_has_the_code_of_a_tool_that_refused() {
    let stage = Stage::start().await;
    let log = Log::default();
    let _guard = log.start();
    let id = "0192f3a0-0000-7000-8000-0000000000ab";
    for (request_id, tool, arguments) in [
        ("r-1", "exec", json!({"sandbox_id": id, "command": "echo hunter2"})),
        ("r-2", "no_such_tool_hunter2", json!({})),
    ] {
        let params = json!({"name": tool, "arguments": arguments});
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params});
        let headers = format!("content-type: application/json\r\nx-request-id: {request_id}\r\n");
        let body = message.to_string();
        stage.raw(&request(&stage.admin, "POST", "/mcp", &headers, body.as_bytes())).await;
        let line = log.line(request_id);
        assert!(!line.contains("hunter2"), "{line}");
    }
    let refused = ["a request was refused", "status=200", "INFO"];
    has(&log.line("r-1"), &refused);
    has(&log.line("r-1"), &["code=\"sandbox_unknown\"", "tool=\"exec\""]);
    has(&log.line("r-2"), &refused);
    has(&log.line("r-2"), &["code=\"invalid_argument\""]);
}
