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
/// Dropped, the return is sent in the background, if there is a tokio runtime to send it on; if
/// not, or if it fails, the lease ends when its time is over. [`Lease::give_back`] waits and says
/// whether it worked.
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

    /// How it was come by.
    pub fn path(&self) -> Option<CheckoutPath> {
        self.checkout.path
    }

    /// Lets it last longer.
    pub async fn renew_lease(&mut self, ttl_s: Option<u64>) -> Result<&Sandbox, ClientError> {
        let renewed = self.handle.client.renew_lease(self.checkout.id, ttl_s).await?;
        self.checkout.sandbox = renewed.sandbox;
        Ok(&self.checkout.sandbox)
    }

    /// Returns it and waits for the answer. Dropped while waiting, the return is sent all the same.
    pub async fn give_back(mut self) -> Result<(), ClientError> {
        let returned = self.handle.client.return_lease(self.checkout.id).await;
        self.held = false;
        returned
    }

    /// Keeps the lease beyond this guard: somebody else returns it, or its time does.
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
            // Nobody is there to be told; a lease that is not returned ends with its time.
            tokio.spawn(async move { client.return_lease(id).await });
        }
    }
}

/// A checkout whose answer may not be taken. Dropped before it was, whatever was handed out for it is
/// returned in the background, if there is a tokio runtime to say so on.
pub(crate) struct Unanswered {
    client: Client,
    mark: Option<HeaderValue>,
}

impl Unanswered {
    pub(crate) fn new(client: Client, call: &Call) -> Self {
        Self { client, mark: call.mark().cloned() }
    }

    /// There is an answer, or it is certain that nothing was handed out.
    pub(crate) fn heard<T>(&mut self, answer: &Result<T, ClientError>) {
        match answer {
            Ok(_)
            | Err(
                ClientError::Problem(_) | ClientError::Connect { .. } | ClientError::Invalid { .. },
            ) => {
                self.mark = None;
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
        if let (Some(mark), Ok(tokio)) = (self.mark.take(), tokio::runtime::Handle::try_current()) {
            let call = Call::delete(Target::new("/v1/checkouts")).header(IDEMPOTENCY_KEY, mark);
            let client = self.client.clone();
            // Nobody is there to be told; a lease that is not returned ends with its time.
            tokio.spawn(async move { client.done(call).await });
        }
    }
}
