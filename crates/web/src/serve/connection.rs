//! One connection: hyper on a watched stream. A request lives in the task of its connection, so a
//! client that goes away takes its request along. A connection that was handed over to something
//! else than HTTP counts as one until that ends.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1::{self, UpgradeableConnection};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::task::yield_now;
use tokio::time::timeout;
use tower_service::Service as _;

use crate::serve::watched::{Activity, Watched};
use crate::serve::{ConnectionLimits, Peer, Place};

/// How long a connection whose place was taken may still write its last answer.
const GIVE_WAY: Duration = Duration::from_secs(1);

pub(super) async fn connection<S>(
    stream: S,
    router: Router,
    (activity, place): (Arc<Activity>, Place),
    limits: Arc<ConnectionLimits>,
    mut stops: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Peer + Unpin + Send + 'static,
{
    let head_bytes = limits.head_bytes;
    let (there, gone) = oneshot::channel();
    let watched = Watched::new(stream, Arc::clone(&activity), limits).held(there);
    let io = TokioIo::new(watched);
    let of_requests = place.clone();
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        let activity = Arc::clone(&activity);
        activity.serve();
        request.extensions_mut().insert(of_requests.clone());
        let unread = Unread::default();
        let answering = router.clone().call(request.map(|body| Asked::body(body, &unread)));
        async move {
            let response: Response = answering.await?;
            if unread.is_set() {
                // The connection takes what is here of the rest. If that is not all, it has to end,
                // and only an answer that comes after that says so.
                yield_now().await;
            }
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                activity.hand_over();
            }
            Ok::<_, Infallible>(response.map(|body| Answer { body, _resting: Resting(activity) }))
        }
    });
    let serving = http1::Builder::new().max_buf_size(head_bytes).serve_connection(io, service);
    serve(serving.with_upgrades(), &place, &mut stops).await;
    // Nothing is ever sent: what is waited for is that the stream is dropped.
    let _ = gone.await;
}

async fn serve<S, H>(
    serving: UpgradeableConnection<TokioIo<S>, H>,
    place: &Place,
    stops: &mut watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: HttpService<Incoming, ResBody = Answer>,
    H::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut serving = pin!(serving);
    let stopped = async {
        // A dropped sender means a stop, too.
        let _ = stops.wait_for(|stops| *stops).await;
    };
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = stopped => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
        () = place.taken_away() => {
            // It does nothing, but its last answer may still be on its way.
            serving.as_mut().graceful_shutdown();
            timeout(GIVE_WAY, serving).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        // Clients come and go as they like.
        tracing::debug!(%error, "connection closed before its answer was complete");
    }
}

/// Whether the body of a request was dropped before its end.
#[derive(Clone, Default)]
struct Unread(Arc<AtomicBool>);

impl Unread {
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The body of a request.
struct Asked {
    body: Incoming,
    /// None once it has come to its end.
    unread: Option<Unread>,
}

impl Asked {
    /// Most requests have none.
    fn body(body: Incoming, unread: &Unread) -> Body {
        if body.is_end_stream() {
            return Body::empty();
        }
        Body::new(Self { body, unread: Some(unread.clone()) })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(unread) = self.unread.take()
            && !self.body.is_end_stream()
        {
            unread.set();
        }
    }
}

impl http_body::Body for Asked {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() {
            self.unread = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of an answer. Once it is written or dropped, the connection rests.
struct Answer {
    body: Body,
    _resting: Resting,
}

struct Resting(Arc<Activity>);

impl Drop for Resting {
    fn drop(&mut self) {
        self.0.rest();
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
