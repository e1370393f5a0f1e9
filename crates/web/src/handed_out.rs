//! The answer to a checkout, or to a new session. What was made becomes the client's when its answer
//! is taken for writing; an answer that is dropped before, because the client went away, takes it
//! back.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use engine::{CheckedOut, HandedOut};
use http_body::{Body, Frame, SizeHint};

use crate::idempotency::{Answer, Claim};

/// What is taken back when it is dropped, unless it is kept.
pub trait HandoverGuard: Send + Unpin + 'static {
    /// The client has it now.
    fn keep(self);
}

impl HandoverGuard for HandedOut {
    fn keep(self) {
        let _: CheckedOut = Self::keep(self);
    }
}

/// A body with something in it that was made.
pub struct Handover<K> {
    bytes: Bytes,
    made: Option<(K, Option<(Claim, Answer)>)>,
}

impl<K: HandoverGuard> Handover<K> {
    /// An answer whose bytes hand something over, and what is settled when they are taken.
    pub fn new(bytes: Bytes, made: K, claim: Option<(Claim, Answer)>) -> Self {
        Self { bytes, made: Some((made, claim)) }
    }
}

impl<K: HandoverGuard> Body for Handover<K> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some((made, claim)) = self.made.take() {
            HandoverGuard::keep(made);
            if let Some((claim, answer)) = claim {
                claim.settle(answer);
            }
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.bytes)))));
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.made.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
