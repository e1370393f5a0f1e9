//! A stream of file changes. Its first event comes when the watch is active; a silent stream sends
//! heartbeats. It ends with its directory, its key, its sandbox or the server.

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::Bytes;
use engine::{Caller, ChangeKind, FileChange, FileWatch, Use};
use model::Refusal;
use tokio::sync::watch;
use tokio::time::timeout;
use wire::{ChangedFile, FileEvent};

use web::app::App;
use web::key_watch::KeyWatch;
use web::long_lived::LongLivedSlot;
use web::refused::Refused;
use web::stream::{BodySource, Format, HEARTBEAT};

/// A directory that is watched.
pub(crate) struct WatchedFiles {
    app: App,
    key: KeyWatch,
    stops: watch::Receiver<bool>,
    watch: FileWatch,
    format: Format,
    request_id: String,
    begun: bool,
    over: bool,
    _slot: LongLivedSlot,
    /// Last: the sandbox must stay until the watch is gone.
    used: Use,
}

/// What came next.
enum Next {
    Event(FileEvent),
    Quiet,
    /// The server stops, or the key is no longer valid.
    Cut,
}

impl WatchedFiles {
    pub(crate) fn new(
        app: App,
        caller: Caller,
        used: Use,
        watch: FileWatch,
        format: Format,
        request_id: String,
    ) -> Result<Self, Refused> {
        let (key, stops) = (KeyWatch::new(caller.key), app.stopping.clone());
        let (begun, over) = (false, false);
        let slot = app.long_lived.begin(caller.key)?;
        Ok(Self { app, key, stops, watch, format, request_id, begun, over, _slot: slot, used })
    }

    async fn step(&mut self) -> Next {
        if !std::mem::replace(&mut self.begun, true) {
            return Next::Event(FileEvent::Armed);
        }
        if self.over || !self.key.works(&self.app) {
            return Next::Cut;
        }
        let changed = tokio::select! {
            biased;
            // A dropped sender means a stop, too.
            _ = self.stops.wait_for(|stops| *stops) => return Next::Cut,
            changed = timeout(HEARTBEAT, self.used.next_change(&mut self.watch)) => changed,
        };
        match changed {
            Err(_) => Next::Quiet,
            Ok(changed) => Next::Event(self.event(changed)),
        }
    }

    fn event(&mut self, changed: Result<Option<FileChange>, Refusal>) -> FileEvent {
        match changed {
            Ok(Some(change)) => to_event(&change),
            Ok(None) => {
                self.over = true;
                FileEvent::Gone
            }
            Err(refusal) => {
                self.over = true;
                let problem = Box::new(Refused::from(refusal).problem(&self.request_id));
                FileEvent::Error { problem }
            }
        }
    }

    /// Sends it on a WebSocket, until the client leaves.
    pub(crate) async fn send_to(mut self, mut socket: WebSocket) {
        loop {
            let message = tokio::select! {
                next = self.step() => match next {
                    Next::Event(event) => Message::Text(serde_json::to_string(&event).unwrap_or_default().into()),
                    Next::Quiet => Message::Ping(Bytes::new()),
                    Next::Cut => break,
                },
                heard = socket.recv() => match heard {
                    // Nothing that it could say means anything here.
                    Some(Ok(_)) => continue,
                    Some(Err(_)) | None => return,
                },
            };
            if !matches!(timeout(HEARTBEAT, socket.send(message)).await, Ok(Ok(()))) {
                return;
            }
        }
        let code = if self.over { close_code::NORMAL } else { close_code::AWAY };
        let close = Message::Close(Some(CloseFrame { code, reason: "".into() }));
        // A client that is gone does not get it.
        let _ = timeout(HEARTBEAT, socket.send(close)).await;
    }
}

fn to_event(change: &FileChange) -> FileEvent {
    let file = || ChangedFile::new(&change.path, change.is_directory);
    match change.kind {
        ChangeKind::Created => FileEvent::Created(file()),
        ChangeKind::Written => FileEvent::Written(file()),
        ChangeKind::Removed => FileEvent::Removed(file()),
        ChangeKind::Renamed => FileEvent::Renamed(file()),
        ChangeKind::About => FileEvent::About(file()),
        ChangeKind::Lost => FileEvent::Lost,
    }
}

impl BodySource for WatchedFiles {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.step().await {
                Next::Event(event) => return Some(self.format.event(None, event.name(), &event)),
                Next::Quiet => {
                    if let Some(beat) = self.format.heartbeat() {
                        return Some(beat);
                    }
                }
                Next::Cut => return None,
            }
        }
    }
}
