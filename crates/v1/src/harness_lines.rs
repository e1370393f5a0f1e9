//! The harness of a sandbox on a WebSocket: each text message is one line, both ways, and is never
//! interpreted. Both directions run at once; a slow client or program is waited for, up to a limit.
//! The program ends with the socket, and the socket ends with the program and its reason.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use engine::{Caller, HarnessError, HarnessErrorCode, HeldHarness, HeldInput, HeldOutput, Use};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use model::{ErrorCode, Refusal};
use tokio::time::timeout;
use wire::harness::{
    CLOSE_EXITED, CLOSE_LINE_TOO_LONG, CLOSE_NOT_TEXT, CLOSE_OUT_OF_MEMORY, CLOSE_SANDBOX_GONE,
    HARNESS_LINE_BYTES_MAX, HarnessClosed,
};

use web::app::App;
use web::long_lived::LongLivedSlot;
use web::tunnel::revoked;
use web::ws_keepalive::{PeerActivity, WsKeepalive};

/// How long a client may take nothing.
const STALL: Duration = Duration::from_mins(1);
/// How long a client has to say goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// A connection of a client to a harness.
pub(crate) struct HarnessConnection {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) held: HeldHarness,
    pub(crate) used: Use,
    pub(crate) slot: LongLivedSlot,
}

/// Why it came to its end.
enum End {
    /// The client left.
    Left,
    /// The client takes nothing, or does not answer.
    Deaf,
    /// The client sent something that is not a line.
    NoLine(u16, Refusal),
    /// The harness will send nothing more.
    Silent(HarnessError),
    /// The sandbox has ended.
    Gone(Refusal),
    /// The server stops, or the key is no longer valid.
    Cut(u16, Refusal),
}

impl HarnessConnection {
    /// Exchanges lines until either side ends.
    pub(crate) async fn run(self, socket: WebSocket) {
        let Self { app, caller, mut held, used, slot } = self;
        let (mut to, mut from) = socket.split();
        let (mut keepalive, heard) = WsKeepalive::new();
        let mut stops = app.stopping.clone();
        let cut = |number, code, cause| End::Cut(number, Refusal::new(code, cause));
        let end = tokio::select! {
            end = show(&mut held.says, &mut to, &mut keepalive) => end,
            end = listen(&mut held.hears, &mut from, &heard) => end,
            refusal = used.wait_for_end() => End::Gone(refusal),
            // A dropped sender means a stop, too.
            _ = stops.wait_for(|stops| *stops) => {
                cut(close_code::AWAY, ErrorCode::ShuttingDown, "the server is stopping")
            }
            () = revoked(&app, caller) => {
                cut(close_code::POLICY, ErrorCode::Unauthorized, "the key is no longer valid")
            }
        };
        let closed = closed(end, &used).await;
        // The next one may begin when nothing of this is left.
        drop(held);
        drop(used);
        if let Some(closed) = closed {
            close(&mut to, &mut from, &closed).await;
        }
        drop(slot);
    }
}

/// Forwards lines of the harness, and pings the client now and then.
async fn show(
    says: &mut HeldOutput,
    to: &mut SplitSink<WebSocket, Message>,
    keepalive: &mut WsKeepalive,
) -> End {
    loop {
        let message = tokio::select! {
            said = says.next() => match said {
                Ok(line) => Message::Text(line.into()),
                Err(error) => return End::Silent(error),
            },
            beats = keepalive.next_ping() => {
                if !beats {
                    return End::Deaf;
                }
                Message::Ping(Bytes::new())
            }
        };
        match timeout(STALL, to.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return End::Left,
            Err(_) => return End::Deaf,
        }
    }
}

/// Forwards lines of the client. The next one is read when the harness has taken the last one.
async fn listen(
    input: &mut HeldInput,
    from: &mut SplitStream<WebSocket>,
    heard: &PeerActivity,
) -> End {
    while let Some(message) = from.next().await {
        heard.note();
        match message {
            Ok(Message::Text(text)) => match line(&text) {
                Ok(line) => heard.while_busy(input.line(line)).await,
                Err(end) => return end,
            },
            Ok(Message::Binary(_)) => {
                let refusal =
                    Refusal::new(ErrorCode::InvalidArgument, "a line must be a text message");
                return End::NoLine(close_code::UNSUPPORTED, refusal);
            }
            Ok(Message::Ping(_) | Message::Pong(_)) => {}
            Ok(Message::Close(_)) => return End::Left,
            Err(_) => {
                let cause = "the message cannot be read, or is far too long";
                let refusal = Refusal::new(ErrorCode::BadRequest, cause);
                return End::NoLine(close_code::PROTOCOL, refusal);
            }
        }
    }
    End::Left
}

/// Checks a line for a harness.
fn line(text: &str) -> Result<&str, End> {
    if text.len() > HARNESS_LINE_BYTES_MAX {
        let cause = format!("a line must have at most {HARNESS_LINE_BYTES_MAX} bytes");
        return Err(End::NoLine(close_code::SIZE, Refusal::new(ErrorCode::TooLarge, cause)));
    }
    if text.contains('\n') {
        let refusal =
            Refusal::new(ErrorCode::InvalidArgument, "a line must not contain a line break");
        return Err(End::NoLine(close_code::INVALID, refusal));
    }
    Ok(text)
}

/// The close message for the client; none if the client is gone.
async fn closed(end: End, used: &Use) -> Option<HarnessClosed> {
    let closed_with = |number, refusal: &Refusal| {
        Some(HarnessClosed::new(number, refusal.code.as_str(), &refusal.cause))
    };
    let gone = |refusal: &Refusal| {
        let oom = refusal.code == ErrorCode::Oom;
        closed_with(if oom { CLOSE_OUT_OF_MEMORY } else { CLOSE_SANDBOX_GONE }, refusal)
    };
    let error = match end {
        End::Left => return None,
        // It may only be slow: then it reads this last.
        End::Deaf => {
            let cause = "the client read nothing, or did not answer pings, for a minute";
            let refusal = Refusal::new(ErrorCode::DeadlineExceeded, cause);
            return closed_with(close_code::POLICY, &refusal);
        }
        End::NoLine(number, refusal) | End::Cut(number, refusal) => {
            return closed_with(number, &refusal);
        }
        End::Gone(refusal) => return gone(&refusal),
        End::Silent(error) => error,
    };
    // An ended sandbox explains every other error.
    let is_gone = error.code == HarnessErrorCode::SandboxGone;
    let reason = if is_gone { used.end_reason().await } else { used.wait_for_end().now_or_never() };
    if let Some(refusal) = reason {
        return gone(&refusal);
    }
    let number = match error.code {
        HarnessErrorCode::Died => CLOSE_EXITED,
        HarnessErrorCode::OutOfMemory => CLOSE_OUT_OF_MEMORY,
        HarnessErrorCode::SandboxGone => CLOSE_SANDBOX_GONE,
        HarnessErrorCode::TooLarge => CLOSE_LINE_TOO_LONG,
        HarnessErrorCode::Protocol => CLOSE_NOT_TEXT,
        HarnessErrorCode::ReadyTimeout
        | HarnessErrorCode::NotStarted
        | HarnessErrorCode::Busy
        | HarnessErrorCode::Input => close_code::ERROR,
    };
    Some(HarnessClosed::new(number, error.code.as_str(), &error.cause))
}

/// Says why, and hears the client out for a moment: a connection that is given up with something
/// unread takes along what was said last.
async fn close(
    to: &mut SplitSink<WebSocket, Message>,
    from: &mut SplitStream<WebSocket>,
    closed: &HarnessClosed,
) {
    let frame = CloseFrame { code: closed.number, reason: closed.reason().into() };
    let goodbye = async {
        // A client that is gone does not get it.
        if to.send(Message::Close(Some(frame))).await.is_err() {
            return;
        }
        while let Some(Ok(message)) = from.next().await {
            if matches!(message, Message::Close(_)) {
                return;
            }
        }
    };
    let _ = timeout(GOODBYE, goodbye).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harness_line_has_no_line_break_and_a_limit() {
        let most = "x".repeat(HARNESS_LINE_BYTES_MAX);
        for text in ["", "{}", "a\rb", "grün", &*most] {
            assert!(line(text).is_ok(), "{}", text.len());
        }
        for (text, number) in [
            ("a\nb".to_owned(), close_code::INVALID),
            ("a\n".to_owned(), close_code::INVALID),
            (format!("{most}x"), close_code::SIZE),
        ] {
            let Err(End::NoLine(found, _)) = line(&text) else { panic!("{}", text.len()) };
            assert_eq!(found, number);
        }
    }
}
