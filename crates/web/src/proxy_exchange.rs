//! One proxied exchange with a server inside a sandbox. Bodies are streamed both ways. The exchange
//! ends when the client disconnects, and when the sandbox ends.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use engine::{Caller, Duplex, Port, Use};
use http::{Request, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use model::{ErrorCode, Refusal};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::app::App;
use crate::boxed;
use crate::long_lived::LongLivedSlot;
use crate::refused::Refused;
use crate::tunnel::{Tunnel, revoked};

/// How long a server inside may take until its answer begins.
const HEAD_PATIENCE: Duration = Duration::from_mins(10);
/// How often open ports are polled: less often once it takes long.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LAST: Duration = Duration::from_millis(250);

/// The open ports, once all of these are open.
#[boxed]
pub async fn until_open(used: &Use, ports: &[u16]) -> Result<Vec<Port>, Refusal> {
    let mut pause = LOOK_FIRST;
    loop {
        let listening = used.ports().await?;
        if ports.iter().all(|wanted| listening.iter().any(|one| one.port == *wanted)) {
            return Ok(listening);
        }
        sleep(pause).await;
        pause = (pause * 2).min(LOOK_LAST);
    }
}

/// The task that drives the connection to the server inside. Dropped, the connection closes.
struct ConnectionTask(AbortHandle);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends a request over a connection to a server inside, and returns its answer. If the server
/// switches protocols, `client` is upgraded too.
#[boxed]
pub async fn exchange(
    app: App,
    caller: Caller,
    used: Use,
    connection: Box<dyn Duplex>,
    request: Request<Body>,
    client: Option<OnUpgrade>,
) -> Result<Response, Refused> {
    let failed = |error: hyper::Error| {
        let cause = format!("the program on the port does not answer as an HTTP server: {error}");
        Refused::new(ErrorCode::PortClosed, cause)
    };
    let slot = app.long_lived.begin(caller.key)?;
    let shaken = http1::handshake(TokioIo::new(connection)).await;
    let (mut sender, moving) = shaken.map_err(failed)?;
    let connection_task = tasks::spawn(async move {
        // The request that waits for the answer gets the error.
        let _ = moving.with_upgrades().await;
    });
    let connection_task = ConnectionTask(connection_task.abort_handle());
    let (request, moved) = with_stall_limit(request, app.settings.body_stall);
    let mut stops = app.stopping.clone();
    let answered = tokio::select! {
        answered = sender.send_request(request) => answered,
        refusal = used.wait_for_end() => return Err(refusal.into()),
        () = response_timeout(&moved) => {
            let cause = "the server in the sandbox did not answer for ten minutes";
            return Err(Refused::new(ErrorCode::DeadlineExceeded, cause));
        }
        // A dropped sender means a stop, too.
        _ = stops.wait_for(|stops| *stops) => {
            return Err(Refused::new(ErrorCode::ShuttingDown, "the server is stopping"));
        }
        () = revoked(&app, caller) => {
            return Err(Refused::new(ErrorCode::Unauthorized, "the key is no longer valid"));
        }
    };
    let mut response = answered.map_err(failed)?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let cancelled = Box::pin(cancelled(app, caller, used, slot));
        return Ok(response.map(|body| {
            Body::new(ResponseBody { body, cancelled, _connection: connection_task })
        }));
    }
    let Some(client) = client else {
        let cause = "the server in the sandbox switched protocols without a request to do so";
        return Err(Refused::new(ErrorCode::PortClosed, cause));
    };
    let inside = hyper::upgrade::on(&mut response);
    Tunnel { app, caller, used, slot }.open(client, async move {
        let inside = inside.await.ok().map(TokioIo::new);
        drop(connection_task);
        inside
    });
    Ok(response.map(|_| Body::empty()))
}

/// Done when an answer must be cut off: its sandbox ended, its key is invalid, or the server stops.
/// Holds the use until then.
async fn cancelled(app: App, caller: Caller, used: Use, slot: LongLivedSlot) {
    let mut stops = app.stopping.clone();
    tokio::select! {
        _ = used.wait_for_end() => {}
        // A dropped sender means a stop, too.
        _ = stops.wait_for(|stops| *stops) => {}
        () = revoked(&app, caller) => {}
    }
    drop(slot);
}

/// A request whose body fails when it pauses for too long; and when it last moved.
fn with_stall_limit(request: Request<Body>, stall: Duration) -> (Request<Body>, Moved) {
    let (moves, moved) = watch::channel(Instant::now());
    let pause = Box::pin(sleep(stall));
    (request.map(|body| Body::new(RequestBody { body, moves, stall, pause })), moved)
}

/// When bytes of a request last moved.
type Moved = watch::Receiver<Instant>;

/// Done when a server inside took too long since it got all of its request.
async fn response_timeout(moved: &Moved) {
    loop {
        let last = *moved.borrow();
        sleep_until(last + HEAD_PATIENCE).await;
        if *moved.borrow() == last {
            return;
        }
    }
}

/// The body of a request on its way into the sandbox.
struct RequestBody {
    body: Body,
    moves: watch::Sender<Instant>,
    stall: Duration,
    pause: Pin<Box<Sleep>>,
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            let now = Instant::now();
            self.moves.send_replace(now);
            let until = now + self.stall;
            self.pause.as_mut().reset(until);
            return Poll::Ready(frame);
        }
        ready!(self.pause.as_mut().poll(cx));
        Poll::Ready(Some(Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer, which keeps the connection to the server inside open.
struct ResponseBody {
    body: Incoming,
    cancelled: Pin<Box<dyn Future<Output = ()> + Send>>,
    _connection: ConnectionTask,
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.cancelled.as_mut().poll(cx).is_ready() {
            // An error and not a regular end, so that the client sees that bytes are missing.
            let gone = io::Error::from(io::ErrorKind::ConnectionAborted);
            return Poll::Ready(Some(Err(axum::Error::new(gone))));
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(axum::Error::new)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
