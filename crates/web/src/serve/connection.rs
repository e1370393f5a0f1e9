//! One connection: hyper on a watched stream. A request lives in the task of its connection, so a
//! client that goes away takes its request along. A connection that was handed over to something
//! else than HTTP counts as one until that ends.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::StatusCode;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1::{self, UpgradeableConnection};
use hyper::service::{HttpService, service_fn};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{oneshot, watch};
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
        let answering = router.clone().call(request.map(Body::new));
        async move {
            let response: Response = answering.await?;
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
