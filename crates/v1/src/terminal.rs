//! A process on a WebSocket: binary messages are its input and output, text messages are control
//! messages. Both directions run at once, so that a program which reads nothing still shows its
//! output. The process outlives the socket, unless it was started for it.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use engine::{Caller, LogFollow, ProcessRef, TerminalSize, Use};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use model::{ErrorCode, ProcessRecord, Refusal, SandboxId};
use tokio::sync::mpsc;
use tokio::time::timeout;
use wire::TerminalWord;

use crate::view;
use web::app::App;
use web::long_lived::LongLivedSlot;
use web::refused::Refused;
use web::tunnel::revoked;
use web::ws_keepalive::{PeerActivity, WsKeepalive};

/// How long a client may take nothing.
const STALL: Duration = Duration::from_mins(1);
/// How long a process that was started for a socket has to end after it.
const GRACE_MS: u64 = 2_000;
const SIGHUP: i32 = 1;
/// How many messages of input may wait to be written.
const TYPED_MAX: usize = 16;

/// A process with a client attached.
pub(crate) struct AttachedTerminal {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) sandbox: SandboxId,
    pub(crate) record: ProcessRecord,
    pub(crate) follow: LogFollow,
    pub(crate) request_id: String,
    /// Ends the process with the socket.
    pub(crate) ending: Option<Ending>,
    pub(crate) used: Option<Use>,
    pub(crate) slot: LongLivedSlot,
}

/// A process that is ended when this is dropped.
pub(crate) struct Ending {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) sandbox: SandboxId,
    pub(crate) of: ProcessRef,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let (app, caller, sandbox) = (self.app.clone(), self.caller, self.sandbox);
        let of = self.of.clone();
        tasks::spawn(async move {
            let engine = &app.engine;
            // SIGHUP is what a closed terminal sends. A process that has ended does not get it.
            let _ = engine.signal_process(caller, sandbox, &of, SIGHUP, true).await;
            let _ = engine.stop_process(caller, sandbox, &of, GRACE_MS).await;
        });
    }
}

/// Why it came to its end.
enum End {
    /// The process has ended.
    Over,
    /// The client left, or does not answer.
    Left,
    /// The server stops.
    Stopping,
    Failed(Refusal),
}

impl AttachedTerminal {
    /// Forwards bytes until either side ends.
    pub(crate) async fn run(mut self, socket: WebSocket) {
        // Held to the end: the one counts as activity, the other ends what was started for this.
        let (used, ending) = (self.used.take(), self.ending.take());
        let (mut to, mut from) = socket.split();
        let first = TerminalWord::Process(Box::new(view::process(&self.record)));
        if send_word(&mut to, &first).await.is_err() {
            return;
        }
        let (app, caller) = (self.app.clone(), self.caller);
        let mut stops = app.stopping.clone();
        let input =
            Input { app: &app, caller, sandbox: self.sandbox, of: ProcessRef::Id(self.record.id) };
        let (mut keepalive, heard) = WsKeepalive::new();
        let (typed, types) = mpsc::channel(TYPED_MAX);
        let end = tokio::select! {
            end = show(&mut self.follow, &mut to, &mut keepalive) => end,
            end = input.listen(&mut from, &heard, typed) => end,
            refusal = input.write(types) => End::Failed(refusal),
            // A dropped sender means a stop, too.
            _ = stops.wait_for(|stops| *stops) => End::Stopping,
            () = revoked(&app, caller) => {
                let cause = "the key is no longer valid";
                End::Failed(Refusal::new(ErrorCode::Unauthorized, cause))
            }
        };
        self.finish(&mut to, end).await;
        drop((ending, used));
    }

    async fn finish(self, to: &mut SplitSink<WebSocket, Message>, end: End) {
        let (word, code) = match end {
            End::Left => return,
            End::Stopping => {
                let refusal = Refusal::new(ErrorCode::ShuttingDown, "the server is stopping");
                (self.error(refusal), close_code::AWAY)
            }
            End::Failed(refusal) => (self.error(refusal), close_code::ERROR),
            End::Over => {
                let of = ProcessRef::Id(self.record.id);
                match self.app.engine.process(self.caller, self.sandbox, &of).await {
                    Ok(record) => {
                        (TerminalWord::Exit(Box::new(view::process(&record))), close_code::NORMAL)
                    }
                    Err(refusal) => (self.error(refusal), close_code::ERROR),
                }
            }
        };
        // A client that is gone does not get it.
        let _ = send_word(to, &word).await;
        let close = Message::Close(Some(CloseFrame { code, reason: "".into() }));
        let _ = timeout(STALL, to.send(close)).await;
        drop(self.slot);
    }

    fn error(&self, refusal: Refusal) -> TerminalWord {
        TerminalWord::Error(Box::new(Refused::from(refusal).problem(&self.request_id)))
    }
}

async fn send_word(to: &mut SplitSink<WebSocket, Message>, word: &TerminalWord) -> Result<(), ()> {
    let text = serde_json::to_string(word).map_err(drop)?;
    send(to, Message::Text(text.into())).await
}

/// Sends something, unless the client takes nothing for too long.
async fn send(to: &mut SplitSink<WebSocket, Message>, message: Message) -> Result<(), ()> {
    timeout(STALL, to.send(message)).await.map_err(drop)?.map_err(drop)
}

/// Forwards the output of the process, and pings the client now and then.
async fn show(
    follow: &mut LogFollow,
    to: &mut SplitSink<WebSocket, Message>,
    keepalive: &mut WsKeepalive,
) -> End {
    loop {
        let sent = tokio::select! {
            next = follow.next() => match next {
                Ok(Some(piece)) if piece.bytes.is_empty() => Ok(()),
                Ok(Some(piece)) => send(to, Message::Binary(piece.bytes)).await,
                Ok(None) => return End::Over,
                Err(refusal) => return End::Failed(refusal),
            },
            beats = keepalive.next_ping() => {
                if !beats {
                    return End::Left;
                }
                send(to, Message::Ping(Bytes::new())).await
            }
        };
        if sent.is_err() {
            return End::Left;
        }
    }
}

/// Where what the client says goes.
struct Input<'a> {
    app: &'a App,
    caller: Caller,
    sandbox: SandboxId,
    of: ProcessRef,
}

impl Input<'_> {
    async fn listen(
        &self,
        from: &mut SplitStream<WebSocket>,
        heard: &PeerActivity,
        typed: mpsc::Sender<Bytes>,
    ) -> End {
        while let Some(Ok(message)) = from.next().await {
            heard.note();
            let done = match message {
                Message::Binary(bytes) => {
                    // The receiver is gone only if it failed, which is reported there.
                    let _ = heard.while_busy(typed.send(bytes)).await;
                    Ok(())
                }
                Message::Text(text) => self.obey(&text).await,
                Message::Ping(_) | Message::Pong(_) => Ok(()),
                Message::Close(_) => return End::Left,
            };
            match done {
                Ok(()) => {}
                // Its end and its last output must still be sent.
                Err(refusal) if is_over(&refusal) => {}
                Err(refusal) => return End::Failed(refusal),
            }
        }
        End::Left
    }

    /// Writes what was typed, beside everything else: a program that does not read for a while must
    /// not keep its terminal from hearing that it has another size, or that its client left.
    async fn write(&self, mut types: mpsc::Receiver<Bytes>) -> Refusal {
        while let Some(bytes) = types.recv().await {
            let engine = &self.app.engine;
            match engine.write_stdin(self.caller, self.sandbox, &self.of, bytes).await {
                Ok(()) => {}
                Err(refusal) if is_over(&refusal) => {}
                // The rest is written when the program reads again.
                Err(refusal) if refusal.code == ErrorCode::DeadlineExceeded => {}
                Err(refusal) => return refusal,
            }
        }
        std::future::pending().await
    }

    async fn obey(&self, text: &str) -> Result<(), Refusal> {
        let wrong = |cause: String| Refusal::new(ErrorCode::BadRequest, cause);
        match serde_json::from_str(text) {
            Ok(TerminalWord::Resize(wire::TerminalSize { rows, columns }))
                if rows > 0 && columns > 0 =>
            {
                let size = TerminalSize { rows, columns };
                self.app.engine.resize_process(self.caller, self.sandbox, &self.of, size).await
            }
            Ok(TerminalWord::Resize(_)) => {
                Err(wrong("rows and columns of a terminal must be above 0".to_owned()))
            }
            Ok(TerminalWord::Process(_) | TerminalWord::Exit(_) | TerminalWord::Error(_)) => {
                Err(wrong("only the server may send this message".to_owned()))
            }
            Err(error) => {
                Err(wrong(format!("the text message is not a terminal message: {error}")))
            }
        }
    }
}

fn is_over(refusal: &Refusal) -> bool {
    matches!(refusal.code, ErrorCode::ProcessOver | ErrorCode::StdinClosed)
}
