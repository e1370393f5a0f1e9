//! The engine's own API, as little of it as is measured: to run a program in a container and wait
//! for its end.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

use command::failure::Failure;

const PATIENCE: Duration = Duration::from_secs(20);
const DEFAULT: &str = "/var/run/docker.sock";

/// An engine on this machine.
pub(super) struct Engine {
    socket: PathBuf,
}

impl Engine {
    /// The engine that the `docker` command would use.
    pub(super) fn found() -> Result<Self, Failure> {
        let named = std::env::var("DOCKER_HOST").unwrap_or_else(|_| format!("unix://{DEFAULT}"));
        let none = |why: String| Failure::new("no engine is measured", why);
        let Some(path) = named.strip_prefix("unix://") else {
            return Err(none(format!("{named} is not a socket")));
        };
        let socket = PathBuf::from(path);
        if socket.exists() { Ok(Self { socket }) } else { Err(none(format!("there is no {path}"))) }
    }

    /// Runs a program in a container to its end.
    pub(super) async fn exec(&self, container: &str, argv: &[&str]) -> Result<(), Failure> {
        let plan = json!({ "AttachStdout": true, "AttachStderr": true, "Cmd": argv });
        let made = self.ask("POST", &format!("/containers/{container}/exec"), &plan).await?;
        let id = made["Id"].as_str().unwrap_or_default().to_owned();
        self.ask("POST", &format!("/exec/{id}/start"), &json!({ "Detach": false })).await?;
        let ended = self.ask("GET", &format!("/exec/{id}/json"), &Value::Null).await?;
        if ended["ExitCode"] == json!(0) {
            return Ok(());
        }
        Err(Failure::new("the engine's exec failed", ended))
    }

    /// Sends a request and reads the whole answer: a stream ends with its program.
    async fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, Failure> {
        let failed = |error: std::io::Error| Failure::new("cannot talk to the engine", error);
        let talk = async {
            let mut stream = UnixStream::connect(&self.socket).await?;
            let body = if body.is_null() { String::new() } else { body.to_string() };
            let head = format!(
                "{method} {path} HTTP/1.0\r\nHost: engine\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            Ok(answer)
        };
        let answer = timeout(PATIENCE, talk).await;
        let answer = answer.map_err(|_| Failure::new("the engine does not answer", path))?;
        let answer = String::from_utf8_lossy(&answer.map_err(failed)?).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).unwrap_or_default();
        if !status.starts_with('2') {
            return Err(Failure::new(format!("{method} {path}: {status}"), body));
        }
        Ok(serde_json::from_str(body).unwrap_or_default())
    }
}
