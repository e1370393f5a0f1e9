//! Exclusive use of a sandbox, as a guard: dropped, the lease is returned.

use std::ops::Deref;

use hyper::header::HeaderValue;
use model::LeaseId;
use wire::{Checkout, CheckoutPath, Sandbox};

use crate::call::{Call, IDEMPOTENCY_KEY};
use crate::error::ClientError;
use crate::query::Target;
use crate::sandbox::Handle;
use crate::transport::Client;

/// A sandbox that is yours until you return it. Everything that can be done with a sandbox can be
/// done with this.
///
/// Dropping it returns it in the background, if there is a tokio runtime. Otherwise, or if that
/// fails, the lease ends when it expires. [`Lease::give_back`] waits for the answer.
#[derive(Debug)]
pub struct Lease {
    handle: Handle,
    checkout: Checkout,
    /// Whether dropping it returns it.
    held: bool,
}

impl Lease {
    pub(crate) fn new(client: Client, checkout: Checkout) -> Self {
        let handle = Handle::new(client, checkout.sandbox.id);
        Self { handle, checkout, held: true }
    }

    /// The lease's id.
    pub fn lease_id(&self) -> LeaseId {
        self.checkout.id
    }

    /// The sandbox as it was when it was checked out, or last renewed.
    pub fn sandbox(&self) -> &Sandbox {
        &self.checkout.sandbox
    }

    /// How the sandbox was obtained.
    pub fn path(&self) -> Option<CheckoutPath> {
        self.checkout.path
    }

    /// Extends the lease.
    pub async fn renew_lease(&mut self, ttl_s: Option<u64>) -> Result<&Sandbox, ClientError> {
        let renewed = self.handle.client.renew_lease(self.checkout.id, ttl_s).await?;
        self.checkout.sandbox = renewed.sandbox;
        Ok(&self.checkout.sandbox)
    }

    /// Returns the lease and waits for the answer. If this future is dropped, the return is still
    /// sent.
    pub async fn give_back(mut self) -> Result<(), ClientError> {
        let returned = self.handle.client.return_lease(self.checkout.id).await;
        self.held = false;
        returned
    }

    /// Detaches the lease from this guard: the caller returns it by its id, or it expires.
    pub fn keep(mut self) -> Checkout {
        self.held = false;
        self.checkout.clone()
    }
}

impl Deref for Lease {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.held {
            return;
        }
        if let Ok(tokio) = tokio::runtime::Handle::try_current() {
            let (client, id) = (self.handle.client.clone(), self.checkout.id);
            // The result is not needed: a lease that is not returned expires.
            tokio.spawn(async move { client.return_lease(id).await });
        }
    }
}

/// A checkout that has no answer yet. If it is dropped before the answer, it returns in the
/// background whatever the server handed out, if there is a tokio runtime.
pub(crate) struct Unanswered {
    client: Client,
    key: Option<HeaderValue>,
}

impl Unanswered {
    pub(crate) fn new(client: Client, call: &Call) -> Self {
        Self { client, key: call.idempotency_key().cloned() }
    }

    /// Disarms the guard if there is an answer, or if the server certainly handed out nothing.
    pub(crate) fn on_answer<T>(&mut self, answer: &Result<T, ClientError>) {
        match answer {
            Ok(_)
            | Err(
                ClientError::Problem(_) | ClientError::Connect { .. } | ClientError::Invalid { .. },
            ) => {
                self.key = None;
            }
            Err(
                ClientError::Cut { .. }
                | ClientError::Timeout { .. }
                | ClientError::Unexpected { .. },
            ) => {}
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let (Some(key), Ok(tokio)) = (self.key.take(), tokio::runtime::Handle::try_current()) {
            let call = Call::delete(Target::new("/v1/checkouts")).header(IDEMPOTENCY_KEY, key);
            let client = self.client.clone();
            // The result is not needed: a lease that is not returned expires.
            tokio.spawn(async move { client.done(call).await });
        }
    }
}
