//! The answer to a checkout. The lease becomes the client's when its answer is taken for writing; an
//! answer that is dropped before, because the client went away, gives the lease back.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use engine::HandedOut;
use http_body::{Body, Frame, SizeHint};

use crate::idempotency::{Answer, Claim};

/// A body with a lease in it.
pub(crate) struct Handover {
    bytes: Bytes,
    lease: Option<(HandedOut, Option<(Claim, Answer)>)>,
}

impl Handover {
    pub(crate) fn new(bytes: Bytes, lease: HandedOut, claim: Option<(Claim, Answer)>) -> Self {
        Self { bytes, lease: Some((lease, claim)) }
    }
}

impl Body for Handover {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some((lease, claim)) = self.lease.take() {
            lease.keep();
            if let Some((claim, answer)) = claim {
                claim.settle(answer);
            }
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.bytes)))));
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.lease.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
