//! One call in progress. Dropped, it is cancelled: its lanes are closed on both sides, and a late
//! answer is discarded.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use guest_protocol::message::{Reply, Request};
use tokio::time::timeout;

use super::channel::{Kind, remember};
use super::connection::Connection;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// A call in progress.
pub(super) struct Call {
    pub connection: Arc<Connection>,
    pub number: u32,
    pub step: &'static str,
}

impl Call {
    /// Sends a request.
    pub(super) fn open(
        connection: &Arc<Connection>,
        step: &'static str,
        kind: Kind,
        request: &Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Self, RuntimeError> {
        let number = connection.open(step, kind, request, descriptors)?;
        Ok(Self { connection: Arc::clone(connection), number, step })
    }

    /// The answer after which more follow; or the last one, if that came instead.
    pub(super) fn poll_first(&self, cx: &mut Context<'_>) -> Poll<Result<Reply, RuntimeError>> {
        self.poll_reply(cx, true)
    }

    /// The last answer.
    pub(super) fn poll_last(&self, cx: &mut Context<'_>) -> Poll<Result<Reply, RuntimeError>> {
        self.poll_reply(cx, false)
    }

    fn poll_reply(&self, cx: &mut Context<'_>, first: bool) -> Poll<Result<Reply, RuntimeError>> {
        let mut state = self.connection.lock();
        let gone = state.refuse_if_gone(self.step);
        let Some(channel) = state.channel(self.number) else {
            return Poll::Ready(Err(self.lost()));
        };
        let early = if first { channel.first.take() } else { None };
        let replaced = match early.or_else(|| channel.last.take()) {
            Some(Reply::Failed(fault)) => {
                return Poll::Ready(Err(RuntimeError::from_fault(self.step, fault)));
            }
            Some(reply) => return Poll::Ready(Ok(reply)),
            None if channel.finished => return Poll::Ready(Err(self.lost())),
            None => match gone {
                Err(gone) => return Poll::Ready(Err(gone)),
                Ok(()) => remember(&mut channel.waiter, cx),
            },
        };
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// The answer was taken before.
    fn lost(&self) -> RuntimeError {
        RuntimeError::new(RuntimeErrorCode::Protocol, self.step, "the call was answered already")
    }

    /// The guest's answer does not fit the request.
    pub(super) fn unexpected_answer(&self, reply: &Reply) -> RuntimeError {
        let name = format!("{reply:?}");
        let name = name.split([' ', '(']).next().unwrap_or_default();
        RuntimeError::new(
            RuntimeErrorCode::Protocol,
            self.step,
            format!("the guest sent an unexpected answer: {name}"),
        )
    }

    /// The first answer, within the time for calls.
    pub(super) async fn first(&self) -> Result<Reply, RuntimeError> {
        let first = poll_fn(|cx| self.poll_first(cx));
        timeout(self.connection.settings.call_timeout, first)
            .await
            .map_err(|_| RuntimeError::deadline(self.step))?
    }

    /// The last answer, within the time for calls.
    pub(super) async fn last(&self) -> Result<Reply, RuntimeError> {
        let last = poll_fn(|cx| self.poll_last(cx));
        timeout(self.connection.settings.call_timeout, last)
            .await
            .map_err(|_| RuntimeError::deadline(self.step))?
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.connection.close(self.number);
    }
}
