//! One sandbox: what it is, why, and what can be done with it as a whole.

use std::ops::Deref;

use model::SandboxId;
use wire::{RenewRequest, Sandbox, Why};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::events::{EventStream, EventsQuery};
use crate::inside::Inside;
use crate::query::Target;
use crate::transport::Client;

/// One sandbox. Dropping this does not end the sandbox.
#[derive(Debug, Clone)]
pub struct Handle {
    inside: Inside,
    id: SandboxId,
}

impl Handle {
    pub(crate) fn new(client: Client, id: SandboxId) -> Self {
        let at = Target::new("/v1/sandboxes").part(&id.to_string());
        Self { inside: Inside { client, at }, id }
    }

    /// Its id.
    pub fn id(&self) -> SandboxId {
        self.id
    }

    /// The sandbox as it is now.
    #[boxed]
    pub async fn get(&self) -> Result<Sandbox, ClientError> {
        self.client.json(Call::get(self.at())).await
    }

    /// Explains its state, or how it ended.
    #[boxed]
    pub async fn why(&self) -> Result<Why, ClientError> {
        self.client.json(Call::get(self.at().part("why"))).await
    }

    /// Extends its lifetime.
    #[boxed]
    pub async fn renew(&self, ttl_s: Option<u64>) -> Result<Sandbox, ClientError> {
        let call = Call::post(self.at().part("renew")).json(&RenewRequest { ttl_s })?;
        self.client.json(call).await
    }

    /// Freezes it until its next use.
    #[boxed]
    pub async fn freeze(&self) -> Result<Sandbox, ClientError> {
        self.client.json(Call::post(self.at().part("freeze"))).await
    }

    /// Thaws it.
    #[boxed]
    pub async fn thaw(&self) -> Result<Sandbox, ClientError> {
        self.client.json(Call::post(self.at().part("thaw"))).await
    }

    /// Ends it. Answered when it has ended.
    #[boxed]
    pub async fn delete(&self) -> Result<(), ClientError> {
        let call = Call::delete(self.at()).may_take(self.client.patience().control);
        self.client.done(call).await
    }

    /// Its events, from now on or after an earlier one.
    pub fn events(&self, after: Option<u64>) -> EventStream {
        EventStream::new(
            self.client.clone(),
            EventsQuery { after, sandbox: Some(self.id), ..EventsQuery::default() },
        )
    }
}

impl Deref for Handle {
    type Target = Inside;

    fn deref(&self) -> &Inside {
        &self.inside
    }
}
