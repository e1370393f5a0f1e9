//! A request that is answered by a server inside a sandbox. Bodies are passed on as they come, both
//! ways; a client that goes away takes the exchange along, and so does the end of the sandbox.

use std::pin::Pin;
use std::task::{Context, Poll};
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
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::refused::Refused;
use crate::tunnel::Tunnel;

/// How long a server inside may think about its answer.
const HEAD_PATIENCE: Duration = Duration::from_mins(10);
/// How often it is looked whether somebody listens: seldom once it takes long.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_LAST: Duration = Duration::from_millis(250);

/// Who listens, once somebody does on all of these ports.
pub(crate) async fn until_open(used: &Use, ports: &[u16]) -> Result<Vec<Port>, Refusal> {
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

/// What moves the bytes of an exchange. Dropped, it is over.
struct Driving(AbortHandle);

impl Drop for Driving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends a request over a connection to a server inside, and gives its answer. If both go over to
/// something else, `client` does with it.
pub(crate) async fn exchange(
    app: App,
    caller: Caller,
    used: Use,
    connection: Box<dyn Duplex>,
    request: Request<Body>,
    client: Option<OnUpgrade>,
) -> Result<Response, Refused> {
    let failed = |error: hyper::Error| {
        let cause = format!("what listens there does not answer as a server of HTTP does: {error}");
        Refused::new(ErrorCode::PortClosed, cause)
    };
    let shaken = http1::handshake(TokioIo::new(connection)).await;
    let (mut sender, moving) = shaken.map_err(failed)?;
    let driving = tokio::spawn(async move {
        // Whoever waits for the answer hears of it.
        let _ = moving.with_upgrades().await;
    });
    let driving = Driving(driving.abort_handle());
    let answered = tokio::select! {
        answered = timeout(HEAD_PATIENCE, sender.send_request(request)) => answered,
        refusal = used.broken() => return Err(refusal.into()),
    };
    let Ok(answered) = answered else {
        let cause = "the server inside did not answer for ten minutes";
        return Err(Refused::new(ErrorCode::DeadlineExceeded, cause));
    };
    let mut response = answered.map_err(failed)?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(response.map(|body| Body::new(Passed { body, _driving: driving, _used: used })));
    }
    let Some(client) = client else {
        let cause = "the server inside went over to something that nobody asked for";
        return Err(Refused::new(ErrorCode::PortClosed, cause));
    };
    let inside = hyper::upgrade::on(&mut response);
    Tunnel { app, caller, used }.open(client, async move {
        let inside = inside.await.ok().map(TokioIo::new);
        drop(driving);
        inside
    });
    Ok(response.map(|_| Body::empty()))
}

/// The body of an answer, which keeps alive what it comes from.
struct Passed {
    body: Incoming,
    _driving: Driving,
    _used: Use,
}

impl http_body::Body for Passed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
