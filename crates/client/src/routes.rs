//! Templates, pools, leases, sandboxes, keys, and the node itself: a method for each route.

use std::time::Duration;

use model::stats::PoolStats;
use model::{KeyId, LeaseId, SandboxId, SandboxState, Template, TemplateName};
use wire::{
    Checkout, CheckoutRequest, Health, Key, KeyChange, KeyList, KeyRequest, NewKey, PoolList,
    PoolResize, RenewRequest, Sandbox, SandboxList, Stats, TemplateList,
};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::lease::{Lease, Unanswered};
use crate::query::Target;
use crate::sandbox::Handle;
use crate::transport::Client;

/// How long a checkout without a wait may take: longer than any server waits.
const WAIT_MS_DEFAULT: u64 = 120_000;

/// A checkout of a template by its name, with every default.
pub fn template(name: &str) -> Result<CheckoutRequest, ClientError> {
    let name = TemplateName::new(name).map_err(|e| ClientError::invalid(e.to_string()))?;
    Ok(CheckoutRequest::of(name))
}

/// Which sandboxes to list.
#[derive(Debug, Clone, Default)]
pub struct SandboxFilter {
    /// Of this template.
    pub template: Option<TemplateName>,
    /// In this state.
    pub state: Option<SandboxState>,
    /// With these labels.
    pub labels: Vec<(String, String)>,
    /// Under this lease.
    pub lease: Option<LeaseId>,
    /// At most this many.
    pub limit: Option<u32>,
    /// After the `next` of the page before.
    pub after: Option<String>,
}

fn at(path: &str) -> Target {
    Target::new(path)
}

fn pool(name: &TemplateName) -> Target {
    at("/v1/pools").part(name.as_str())
}

fn wait(request: &CheckoutRequest) -> Duration {
    Duration::from_millis(request.wait_ms.unwrap_or(WAIT_MS_DEFAULT))
}

impl Client {
    /// Whether the server works. Needs no key.
    #[boxed]
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.json(Call::get(at("/health"))).await
    }

    /// Statistics of the server.
    #[boxed]
    pub async fn stats(&self) -> Result<Stats, ClientError> {
        self.json(Call::get(at("/v1/stats"))).await
    }

    /// All templates, with the values that they leave open.
    #[boxed]
    pub async fn templates(&self) -> Result<TemplateList, ClientError> {
        self.json(Call::get(at("/v1/templates"))).await
    }

    /// One template.
    #[boxed]
    pub async fn template(&self, name: &TemplateName) -> Result<Template, ClientError> {
        self.json(Call::get(at("/v1/templates").part(name.as_str()))).await
    }

    /// Makes a template. Fails if the name exists.
    #[boxed]
    pub async fn create_template(&self, template: &Template) -> Result<Template, ClientError> {
        self.json(Call::post(at("/v1/templates")).json(template)?.once()).await
    }

    /// Makes or replaces a template.
    #[boxed]
    pub async fn put_template(&self, template: &Template) -> Result<Template, ClientError> {
        let target = at("/v1/templates").part(template.name.as_str());
        self.json(Call::put(target).json(template)?.may_take(self.patience().control)).await
    }

    /// Deletes a template and its pool. With `force` it also ends leases.
    #[boxed]
    pub async fn delete_template(
        &self,
        name: &TemplateName,
        force: bool,
    ) -> Result<(), ClientError> {
        let target = at("/v1/templates").part(name.as_str()).maybe("force", force.then_some(true));
        self.done(Call::delete(target).may_take(self.patience().control)).await
    }

    /// All pools.
    #[boxed]
    pub async fn pools(&self) -> Result<Vec<PoolStats>, ClientError> {
        let list: PoolList = self.json(Call::get(at("/v1/pools"))).await?;
        Ok(list.pools)
    }

    /// One pool.
    #[boxed]
    pub async fn pool(&self, name: &TemplateName) -> Result<PoolStats, ClientError> {
        self.json(Call::get(pool(name))).await
    }

    /// Changes the size of a pool.
    #[boxed]
    pub async fn resize_pool(
        &self,
        name: &TemplateName,
        size: PoolResize,
    ) -> Result<PoolStats, ClientError> {
        self.json(Call::patch(pool(name)).json(&size)?).await
    }

    /// Drains a pool: ends its idle sandboxes and refuses checkouts.
    #[boxed]
    pub async fn drain_pool(&self, name: &TemplateName) -> Result<PoolStats, ClientError> {
        let call = Call::post(pool(name).part("drain")).may_take(self.patience().control);
        self.json(call).await
    }

    /// Opens a drained pool again.
    #[boxed]
    pub async fn resume_pool(&self, name: &TemplateName) -> Result<PoolStats, ClientError> {
        self.json(Call::post(pool(name).part("resume"))).await
    }

    /// Removes a pool with its template. Answered when all its sandboxes have ended.
    #[boxed]
    pub async fn delete_pool(&self, name: &TemplateName, force: bool) -> Result<(), ClientError> {
        let target = pool(name).maybe("force", force.then_some(true));
        self.done(Call::delete(target).may_take(self.patience().control)).await
    }

    /// Checks a sandbox out. Dropping the lease returns it.
    #[boxed]
    pub async fn checkout(&self, request: CheckoutRequest) -> Result<Lease, ClientError> {
        let wait = wait(&request);
        let call = Call::post(at("/v1/checkouts")).json(&request)?.once().may_take(wait);
        let mut unanswered = Unanswered::new(self.clone(), &call);
        let answer: Result<Checkout, ClientError> = self.json(call).await;
        unanswered.on_answer(&answer);
        Ok(Lease::new(self.clone(), answer?))
    }

    /// A lease by its id.
    #[boxed]
    pub async fn lease(&self, id: LeaseId) -> Result<Checkout, ClientError> {
        self.json(Call::get(at("/v1/checkouts").part(&id.to_string()))).await
    }

    /// Extends a lease.
    #[boxed]
    pub async fn renew_lease(
        &self,
        id: LeaseId,
        ttl_s: Option<u64>,
    ) -> Result<Checkout, ClientError> {
        let target = at("/v1/checkouts").part(&id.to_string()).part("renew");
        self.json(Call::post(target).json(&RenewRequest { ttl_s })?).await
    }

    /// Returns a lease.
    #[boxed]
    pub async fn return_lease(&self, id: LeaseId) -> Result<(), ClientError> {
        self.done(Call::delete(at("/v1/checkouts").part(&id.to_string()))).await
    }

    /// Makes a sandbox that stays until it is deleted or expires.
    #[boxed]
    pub async fn create_sandbox(&self, request: &CheckoutRequest) -> Result<Sandbox, ClientError> {
        let wait = wait(request);
        self.json(Call::post(at("/v1/sandboxes")).json(request)?.once().may_take(wait)).await
    }

    /// One page of sandboxes.
    #[boxed]
    pub async fn sandboxes(&self, filter: &SandboxFilter) -> Result<SandboxList, ClientError> {
        let mut target = at("/v1/sandboxes")
            .maybe("template", filter.template.as_ref())
            .maybe("state", filter.state.map(SandboxState::as_str))
            .maybe("lease", filter.lease)
            .maybe("limit", filter.limit)
            .maybe("after", filter.after.as_ref());
        for (word, value) in &filter.labels {
            target = target.with("label", format!("{word}={value}"));
        }
        self.json(Call::get(target)).await
    }

    /// A handle of one sandbox. Nothing is sent yet.
    pub fn sandbox(&self, id: SandboxId) -> Handle {
        Handle::new(self.clone(), id)
    }

    /// Makes a key. Only the answer has its secret.
    #[boxed]
    pub async fn create_key(&self, request: &KeyRequest) -> Result<NewKey, ClientError> {
        self.json(Call::post(at("/v1/keys")).json(request)?.once()).await
    }

    /// All keys.
    #[boxed]
    pub async fn keys(&self) -> Result<Vec<Key>, ClientError> {
        let list: KeyList = self.json(Call::get(at("/v1/keys"))).await?;
        Ok(list.keys)
    }

    /// Changes the limits of a key.
    #[boxed]
    pub async fn change_key(&self, id: KeyId, change: &KeyChange) -> Result<Key, ClientError> {
        let call = Call::patch(at("/v1/keys").part(&id.to_string()));
        self.json(call.json(change)?).await
    }

    /// Revokes a key.
    #[boxed]
    pub async fn revoke_key(&self, id: KeyId) -> Result<(), ClientError> {
        self.done(Call::delete(at("/v1/keys").part(&id.to_string()))).await
    }
}
