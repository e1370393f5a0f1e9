//! Terminals over web sockets as Blaxel has them: JSON texts both ways. A terminal is a process that
//! is found by the id of its session: a client that reconnects finds it as it was, other clients
//! may view it too, and it ends when it had no viewer for a while.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts as _, Request};
use axum::response::Response;
use engine::{
    Command, LogFollow, ProcessInput, ProcessRef, ProcessRequest, TerminalSize, Use, UseKind,
};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use model::{ErrorCode, ProcessId, ProcessRecord, Refusal};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::errors::BlaxelError;
use super::lossy_text::LossyText;
use super::paths::FilePath;
use super::processes::BOTH;
use super::request_body;
use super::target::Target;
use web::key_watch::KeyWatch;
use web::long_lived::LongLivedSlot;

const COLUMNS: u32 = 80;
const ROWS: u32 = 24;
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// How much earlier output a client gets when it reconnects.
const REPLAYED_BYTES: u64 = 100 << 10;
const PLAIN: &str = "\u{1b}[0m";
/// How long a terminal without viewers is kept.
const FORGOTTEN: Duration = Duration::from_mins(10);
/// How long a client may take nothing.
const STALL: Duration = Duration::from_mins(1);
/// How often the key is checked.
const LOOK: Duration = Duration::from_secs(15);
const STOP_GRACE_MS: u64 = 2_000;
/// The shell that `SHELL` names, or else the best there is, which `SHELL` then names.
const SHELL: &str = "case \"${SHELL:-}\" in ''|/bin/sh) SHELL=$(command -v bash || command -v sh);; esac; \
                     export SHELL; exec \"$SHELL\"";

/// How many viewers each terminal has, and how often that changed.
#[derive(Default)]
pub(super) struct Terminals(Mutex<BTreeMap<ProcessId, (u32, u64)>>);

impl Terminals {
    fn change(&self, process: ProcessId, by: i32) -> (u32, u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, times) = all.entry(process).or_default();
        *count = count.saturating_add_signed(by);
        *times += 1;
        (*count, *times)
    }

    /// Whether no viewer came since; then it is removed from the table.
    fn is_forgotten(&self, process: ProcessId, since: u64) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_so = all.get(&process).is_some_and(|(count, times)| *count == 0 && *times == since);
        if is_so {
            all.remove(&process);
        }
        is_so
    }
}

/// A viewer of a terminal. Dropped, it no longer counts.
struct Viewer {
    target: Target,
    record: ProcessRecord,
}

impl Viewer {
    fn new(target: &Target, record: ProcessRecord) -> Self {
        target.app.blaxel.terminals.change(record.id, 1);
        Self { target: target.clone(), record }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let (target, id, sandbox) = (self.target.clone(), self.record.id, self.record.sandbox);
        let (left, since) = target.app.blaxel.terminals.change(id, -1);
        if left > 0 {
            return;
        }
        tasks::spawn(async move {
            tokio::select! {
                () = sleep(FORGOTTEN) => {}
                () = target.server_stops() => return,
            }
            if target.app.blaxel.terminals.is_forgotten(id, since) {
                let (engine, of) = (&target.app.engine, ProcessRef::Id(id));
                // A process that has ended needs no kill.
                let _ = engine.stop_process(target.caller, sandbox, &of, STOP_GRACE_MS).await;
            }
        });
    }
}

/// A message of the client.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ClientMessage {
    Input { data: String },
    Resize { cols: u16, rows: u16 },
}

#[derive(Serialize)]
struct ServerMessage<'a> {
    r#type: &'static str,
    data: &'a str,
}

pub(super) async fn open(target: &Target, request: Request) -> Result<Response, BlaxelError> {
    let (mut query, request) = request_body::query(request).await?;
    let columns = request_body::number(&mut query, "cols", COLUMNS)?;
    let rows = request_body::number(&mut query, "rows", ROWS)?;
    let side = |number: u32| u16::try_from(number).unwrap_or(u16::MAX).max(1);
    let size = TerminalSize { rows: side(rows), columns: side(columns) };
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let shell = given(query.text("shell")?).unwrap_or_else(|| SHELL.to_owned());
    let cwd = given(query.text("workingDir")?).map(|path| FilePath::new(&path).whole);
    let session = given(query.text("sessionId")?).unwrap_or_else(|| "default".to_owned());
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &target.app).await;
    let upgrade = upgrade.map_err(|rejection| {
        BlaxelError::bad(format!("the route requires a WebSocket: {}", rejection.body_text()))
    })?;
    let slot = target.app.long_lived.begin(target.key)?;
    let used = target.begin(UseKind::Stream).await?;
    let name = format!("terminal-{session}");
    let engine = &target.app.engine;
    let there =
        engine.process(target.caller, used.sandbox(), &ProcessRef::Name(name.clone())).await;
    let record = match there {
        Ok(record) if record.end.is_none() && record.terminal => record,
        Ok(_) | Err(_) => {
            let mut process = ProcessRequest::new(Command::Shell(shell));
            (process.name, process.cwd) = (Some(name), cwd);
            (process.stdin, process.terminal) = (ProcessInput::Open, Some(size));
            process.timeout_ms = Some(0);
            used.start_process(process).await?
        }
    };
    let of = ProcessRef::Id(record.id);
    // Where it is shown on another screen, too, the latest counts.
    engine.resize_process(target.caller, record.sandbox, &of, size).await?;
    let from = record.log.end.saturating_sub(REPLAYED_BYTES);
    let follow = engine.follow_log(target.caller, record.sandbox, &of, BOTH, from).await?;
    let viewer = Viewer::new(target, record);
    let upgrade = upgrade.max_message_size(MESSAGE_BYTES_MAX).max_frame_size(MESSAGE_BYTES_MAX);
    Ok(upgrade.on_upgrade(|socket| run(viewer, follow, (used, slot), socket)))
}

async fn run(viewer: Viewer, mut follow: LogFollow, held: (Use, LongLivedSlot), socket: WebSocket) {
    let (mut to, mut from) = socket.split();
    let target = &viewer.target;
    let mut key = KeyWatch::new(target.key);
    let revoked = async {
        while key.works(&target.app) {
            sleep(LOOK).await;
        }
    };
    let failed = tokio::select! {
        failed = show(&mut follow, &mut to) => failed,
        failed = read_messages(&viewer, &mut from) => failed,
        () = revoked => Some(Refusal::new(ErrorCode::Unauthorized, "the key is no longer valid")),
        () = target.server_stops() => {
            Some(Refusal::new(ErrorCode::ShuttingDown, "the server is stopping"))
        }
    };
    if let Some(refusal) = failed {
        let _ = send(&mut to, "error", &refusal.cause).await;
    }
    let _ = timeout(STALL, to.close()).await;
    // Held to the end, since a viewer counts as activity.
    drop(held);
}

/// Sends a message; false if the client does not take it.
async fn send(to: &mut SplitSink<WebSocket, Message>, kind: &'static str, data: &str) -> bool {
    let Ok(text) = serde_json::to_string(&ServerMessage { r#type: kind, data }) else {
        return false;
    };
    matches!(timeout(STALL, to.send(Message::Text(text.into()))).await, Ok(Ok(())))
}

/// Sends the output until the process ends or the client leaves.
async fn show(follow: &mut LogFollow, to: &mut SplitSink<WebSocket, Message>) -> Option<Refusal> {
    let mut text = LossyText::default();
    if !send(to, "output", PLAIN).await {
        return None;
    }
    loop {
        let piece = match follow.next().await {
            Ok(Some(piece)) => text.push(&piece.bytes),
            Ok(None) => return None,
            Err(refusal) => return Some(refusal),
        };
        if !piece.is_empty() && !send(to, "output", &piece).await {
            return None;
        }
    }
}

/// Carries out messages of the client until it leaves.
async fn read_messages(viewer: &Viewer, from: &mut SplitStream<WebSocket>) -> Option<Refusal> {
    let (target, record) = (&viewer.target, &viewer.record);
    let (engine, caller) = (&target.app.engine, target.caller);
    let of = ProcessRef::Id(record.id);
    while let Some(Ok(message)) = from.next().await {
        let said = match message {
            Message::Text(text) => serde_json::from_str(&text).ok(),
            Message::Binary(bytes) => serde_json::from_slice(&bytes).ok(),
            Message::Ping(_) | Message::Pong(_) => None,
            Message::Close(_) => return None,
        };
        let done = match said {
            Some(ClientMessage::Input { data }) => {
                engine.write_stdin(caller, record.sandbox, &of, data.into()).await
            }
            Some(ClientMessage::Resize { cols, rows }) if cols > 0 && rows > 0 => {
                let size = TerminalSize { rows, columns: cols };
                engine.resize_process(caller, record.sandbox, &of, size).await
            }
            // Unknown messages are ignored, as in Blaxel.
            Some(ClientMessage::Resize { .. }) | None => Ok(()),
        };
        match done {
            Ok(()) => {}
            // The other direction reports the end, after the last output.
            Err(refusal) if refusal.code == ErrorCode::ProcessOver => {}
            Err(refusal) => return Some(refusal),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_without_viewers_is_forgotten() {
        let (terminals, id) = (Terminals::default(), ProcessId::from_u128(1));
        assert_eq!(terminals.change(id, 1).0, 1);
        let (left, since) = terminals.change(id, -1);
        assert_eq!(left, 0);
        terminals.change(id, 1);
        assert!(!terminals.is_forgotten(id, since), "it has a viewer");
        let (_, later) = terminals.change(id, -1);
        assert!(!terminals.is_forgotten(id, since), "a viewer came since");
        assert!(terminals.is_forgotten(id, later));
        assert!(!terminals.is_forgotten(id, later), "once");
    }

    #[test]
    fn terminal_messages_of_clients_are_read() {
        let said = |text| serde_json::from_str::<ClientMessage>(text).ok();
        assert!(matches!(
            said(r#"{"type":"input","data":"ls\r"}"#),
            Some(ClientMessage::Input { .. })
        ));
        let resize = said(r#"{"type":"resize","cols":100,"rows":30}"#);
        assert!(matches!(resize, Some(ClientMessage::Resize { cols: 100, rows: 30 })));
        assert!(said(r#"{"type":"other"}"#).is_none());
    }
}
