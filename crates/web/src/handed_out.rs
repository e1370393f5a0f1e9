//! The answer to a checkout or a new session. The client owns the lease or session as soon as its
//! answer is taken for writing. If the answer is dropped before, because the client disconnected,
//! the lease or session is taken back.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use engine::{CheckedOut, HandedOut};
use http_body::{Body, Frame, SizeHint};

use crate::idempotency::{Answer, Claim};

/// A lease or session that is taken back on drop, unless it is kept.
pub trait HandoverGuard: Send + Unpin + 'static {
    /// The client owns it now.
    fn keep(self);
}

impl HandoverGuard for HandedOut {
    fn keep(self) {
        let _: CheckedOut = Self::keep(self);
    }
}

/// A body that hands over a new lease or session.
pub struct Handover<K> {
    bytes: Bytes,
    made: Option<(K, Option<(Claim, Answer)>)>,
}

impl<K: HandoverGuard> Handover<K> {
    /// A body that keeps `made` and settles `claim` when it is taken for writing.
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
