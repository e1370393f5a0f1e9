//! Templates, pools, leases, sandboxes, keys, and the node itself: a method for each route.

use std::time::Duration;

use model::stats::PoolStats;
use model::{KeyId, LeaseId, SandboxId, SandboxState, Template, TemplateName};
use wire::{
    Checkout, CheckoutRequest, Health, Key, KeyList, KeyRequest, NewKey, PoolList, PoolResize,
    RenewRequest, Sandbox, SandboxList, Stats, TemplateList,
};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::lease::{Lease, Unanswered};
use crate::query::Target;
use crate::sandbox::Handle;
use crate::transport::Client;

/// How long a checkout waits if it does not say: longer than any server should.
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
    /// With these words.
    pub labels: Vec<(String, String)>,
    /// Under this lease.
    pub lease: Option<LeaseId>,
    /// At most so many.
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

    /// Counts of the server.
    #[boxed]
    pub async fn stats(&self) -> Result<Stats, ClientError> {
        self.json(Call::get(at("/v1/stats"))).await
    }

    /// All templates, with what each comes to.
    #[boxed]
    pub async fn templates(&self) -> Result<TemplateList, ClientError> {
        self.json(Call::get(at("/v1/templates"))).await
    }

    /// One template.
    #[boxed]
    pub async fn template(&self, name: &TemplateName) -> Result<Template, ClientError> {
        self.json(Call::get(at("/v1/templates").part(name.as_str()))).await
    }

    /// Makes a template; one of the same name is in the way.
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

    /// Deletes a template and its pool. Forced, leases in it are ended too.
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

    /// Gives a pool another size.
    #[boxed]
    pub async fn resize_pool(
        &self,
        name: &TemplateName,
        size: PoolResize,
    ) -> Result<PoolStats, ClientError> {
        self.json(Call::patch(pool(name)).json(&size)?).await
    }

    /// Ends a pool's idle sandboxes and lets nobody check out of it.
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

    /// Removes a pool with its template; answered when nothing is left.
    #[boxed]
    pub async fn delete_pool(&self, name: &TemplateName, force: bool) -> Result<(), ClientError> {
        let target = pool(name).maybe("force", force.then_some(true));
        self.done(Call::delete(target).may_take(self.patience().control)).await
    }

    /// Checks a sandbox out. Dropped, the lease is returned.
    #[boxed]
    pub async fn checkout(&self, request: CheckoutRequest) -> Result<Lease, ClientError> {
        let wait = wait(&request);
        let call = Call::post(at("/v1/checkouts")).json(&request)?.once().may_take(wait);
        let mut unanswered = Unanswered::new(self.clone(), &call);
        let answer: Result<Checkout, ClientError> = self.json(call).await;
        unanswered.heard(&answer);
        Ok(Lease::new(self.clone(), answer?))
    }

    /// A lease by its id.
    #[boxed]
    pub async fn lease(&self, id: LeaseId) -> Result<Checkout, ClientError> {
        self.json(Call::get(at("/v1/checkouts").part(&id.to_string()))).await
    }

    /// Lets a lease last longer.
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

    /// Makes a sandbox that is there until it is deleted or expires.
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

    /// What can be done with one sandbox. Nothing is sent yet.
    pub fn sandbox(&self, id: SandboxId) -> Handle {
        Handle::new(self.clone(), id)
    }

    /// Makes a key. Its secret is in the answer and nowhere else.
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

    /// Calls a key back.
    #[boxed]
    pub async fn revoke_key(&self, id: KeyId) -> Result<(), ClientError> {
        self.done(Call::delete(at("/v1/keys").part(&id.to_string()))).await
    }
}
