//! Bodies on their way. They pass piece by piece as they come, and wait where the receiver waits:
//! nothing here may collect them.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use memchr::memmem;

use super::exchange::Exchange;
use super::{BoundaryNote, Place, redaction};

/// The body of a request, which is searched for placeholders: they go out as they are, with a note.
pub(super) struct Watched {
    inner: Incoming,
    exchange: Arc<Exchange>,
    /// Which secrets have not been seen in it.
    unseen: Vec<usize>,
    /// The end of what has passed: a placeholder may lie across two pieces.
    tail: Vec<u8>,
}

impl Watched {
    pub(super) fn new(inner: Incoming, exchange: Arc<Exchange>) -> Self {
        let secrets = exchange.secrets.iter().enumerate();
        let unseen = secrets.filter(|(_, one)| !one.placeholder.is_empty()).map(|(at, _)| at);
        let unseen = unseen.collect();
        Self { inner, exchange, unseen, tail: Vec::new() }
    }

    fn look(&mut self, piece: &[u8]) {
        let Self { exchange, unseen, tail, .. } = self;
        let secrets = &exchange.secrets;
        let longest = unseen.iter().map(|at| secrets[*at].placeholder.len()).max().unwrap_or(0);
        let kept = longest.saturating_sub(1);
        tail.extend_from_slice(&piece[..piece.len().min(kept)]);
        unseen.retain(|at| {
            let placeholder = secrets[*at].placeholder.as_bytes();
            let seen = [&*tail, piece].iter().any(|text| memmem::find(text, placeholder).is_some());
            if seen {
                let secret = secrets[*at].secret.clone();
                let place = Place::Body;
                (exchange.log)(BoundaryNote::PlaceholderElsewhere { secret, place });
            }
            !seen
        });
        if piece.len() >= kept {
            tail.clear();
            tail.extend_from_slice(&piece[piece.len() - kept..]);
        } else {
            let before = tail.len().saturating_sub(kept);
            tail.drain(..before);
        }
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && !self.unseen.is_empty()
        {
            if let Some(piece) = frame.data_ref() {
                self.look(piece);
            } else if let Some(trailers) = frame.trailers_ref() {
                // Each value alone: what lies before it is not part of it.
                for value in trailers.values() {
                    self.tail.clear();
                    self.look(value.as_bytes());
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of an answer. Values are taken out of the headers that follow it.
pub(super) struct Passing {
    pub(super) inner: Incoming,
    pub(super) exchange: Arc<Exchange>,
    /// A stream of events ends when its host goes away, however it does so.
    pub(super) is_events: bool,
}

impl Body for Passing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(Ok(mut frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    let exchange = &self.exchange;
                    redaction::redact(trailers, &exchange.host, &exchange.secrets, &*exchange.log);
                }
                Some(Ok(frame))
            }
            Some(Err(error)) if self.is_events && is_early_end(&error) => None,
            other => other,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

fn is_early_end(error: &hyper::Error) -> bool {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(error) = inner.downcast_ref::<io::Error>()
            && error.kind() == io::ErrorKind::UnexpectedEof
        {
            return true;
        }
        cause = inner.source();
    }
    error.is_incomplete_message()
}
