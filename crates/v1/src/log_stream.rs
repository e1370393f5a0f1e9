//! A log on its way to a client that follows it: as events or lines, or as the bytes themselves. It
//! is read only as fast as the client takes it; a client that disconnects ends the follow and
//! nothing else.

use std::collections::VecDeque;

use bytes::Bytes;
use engine::{Caller, LogFollow, ProcessRef, Use};
use model::{ErrorCode, ProcessId, Refusal, SandboxId};
use tokio::sync::watch;
use tokio::time::timeout;
use wire::ProcessEvent;

use crate::log_text::LogText;
use crate::view;
use web::app::App;
use web::key_watch::KeyWatch;
use web::long_lived::LongLivedSlot;
use web::refused::Refused;
use web::stream::{BodySource, Format, HEARTBEAT};

/// The common part of both formats: the followed log, its caller, and when it ends.
struct Following {
    app: App,
    key: KeyWatch,
    stops: watch::Receiver<bool>,
    follow: LogFollow,
    /// Counts as activity while the client follows.
    _used: Option<Use>,
    _slot: LongLivedSlot,
}

/// What came next.
enum Next {
    Piece(engine::LogPiece),
    Quiet,
    Over,
    Failed(Refusal),
    /// The server stops, or the key is no longer valid.
    Cut,
}

impl Following {
    fn new(
        app: App,
        caller: Caller,
        follow: LogFollow,
        used: Option<Use>,
    ) -> Result<Self, Refused> {
        let (key, stops) = (KeyWatch::new(caller.key), app.stopping.clone());
        let slot = app.long_lived.begin(caller.key)?;
        Ok(Self { app, key, stops, follow, _used: used, _slot: slot })
    }

    async fn next(&mut self) -> Next {
        if !self.key.works(&self.app) {
            return Next::Cut;
        }
        let next = async {
            tokio::select! {
                biased;
                next = self.follow.next() => match next {
                    Ok(Some(piece)) => Next::Piece(piece),
                    Ok(None) => Next::Over,
                    Err(refusal) => Next::Failed(refusal),
                },
                // A dropped sender means a stop, too.
                _ = self.stops.wait_for(|stops| *stops) => Next::Cut,
                () = self.key.ended(&self.app) => Next::Cut,
            }
        };
        timeout(HEARTBEAT, next).await.unwrap_or(Next::Quiet)
    }
}

/// A log as events or lines.
pub(crate) struct FollowedLog {
    following: Following,
    caller: Caller,
    sandbox: SandboxId,
    process: ProcessId,
    text: LogText,
    format: Format,
    request_id: String,
    ready: VecDeque<Bytes>,
    over: bool,
}

impl FollowedLog {
    #[expect(
        clippy::too_many_arguments,
        reason = "each is said once, at the only place that makes one"
    )]
    pub(crate) fn new(
        app: App,
        caller: Caller,
        sandbox: SandboxId,
        process: ProcessId,
        follow: LogFollow,
        text: LogText,
        format: Format,
        request_id: String,
        used: Option<Use>,
    ) -> Result<Self, Refused> {
        let following = Following::new(app, caller, follow, used)?;
        let mut ready = VecDeque::new();
        // So that the client sees at once that the stream is open.
        if format == Format::Sse {
            ready.push_back(Format::retry());
        }
        let over = false;
        Ok(Self { following, caller, sandbox, process, text, format, request_id, ready, over })
    }

    fn push(&mut self, piece: wire::LogPiece) {
        let id = Some(piece.next_offset);
        let event = ProcessEvent::Output(piece);
        self.ready.push_back(self.format.event(id, event.name(), &event));
    }

    fn end(&mut self, event: &ProcessEvent) {
        self.ready.push_back(self.format.event(None, event.name(), event));
        self.over = true;
    }

    fn fail(&mut self, refusal: Refusal) {
        let problem = Box::new(Refused::from(refusal).problem(&self.request_id));
        self.end(&ProcessEvent::Error { problem });
    }

    async fn step(&mut self) {
        match self.following.next().await {
            Next::Piece(piece) => {
                for text_piece in self.text.push(piece) {
                    self.push(text_piece);
                }
            }
            Next::Quiet => self.ready.extend(self.format.heartbeat()),
            Next::Over => {
                if let Some(held) = self.text.finish() {
                    self.push(held);
                }
                let of = ProcessRef::Id(self.process);
                let app = &self.following.app;
                match app.engine.process(self.caller, self.sandbox, &of).await {
                    Ok(record) => {
                        let process = Box::new(view::process(&record));
                        self.end(&ProcessEvent::Exit { process });
                    }
                    Err(refusal) => self.fail(refusal),
                }
            }
            Next::Failed(refusal) if refusal.code == ErrorCode::ShuttingDown => self.over = true,
            Next::Failed(refusal) => self.fail(refusal),
            // The client reconnects with its last offset.
            Next::Cut => self.over = true,
        }
    }
}

impl BodySource for FollowedLog {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            if self.over {
                return None;
            }
            self.step().await;
        }
    }
}

/// A log as its bytes.
pub(crate) struct RawLog(Following);

impl RawLog {
    pub(crate) fn new(
        app: App,
        caller: Caller,
        follow: LogFollow,
        used: Option<Use>,
    ) -> Result<Self, Refused> {
        Following::new(app, caller, follow, used).map(Self)
    }
}

impl BodySource for RawLog {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            match self.0.next().await {
                Next::Piece(piece) if piece.bytes.is_empty() => {}
                Next::Piece(piece) => return Some(piece.bytes),
                Next::Quiet => {}
                Next::Over | Next::Failed(_) | Next::Cut => return None,
            }
        }
    }
}
