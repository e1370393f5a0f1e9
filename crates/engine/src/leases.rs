//! Checkouts and leases. A checkout whose client is gone holds nothing, and a lease whose answer no
//! client took is returned.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use egress::Reservation;
use kernel::{CheckedOut, Checkout, CheckoutPolicy, Event, Reply, SandboxView};
use model::{
    ClaimSettings, ErrorCode, LeaseId, NetworkPolicy, Refusal, SandboxId, SecretName, SecretUse,
    TemplateName,
};
use tokio::time::Instant;

use crate::boxed;
use crate::core::Core;
use crate::ids::fresh_uuid;
use crate::keys::Caller;
use crate::network::{self, check_secrets};
use crate::sandboxes::unexpected;
use crate::{Engine, claim};

/// The longest that a caller may wait: ten minutes.
const WAIT_MS_MAX: u64 = 600_000;

/// A checkout request.
#[derive(Debug, Clone)]
pub struct CheckoutRequest {
    /// Of which template.
    pub template: TemplateName,
    /// Environment of its programs.
    pub env: BTreeMap<String, String>,
    /// What it may reach, within its template's policy; that policy if not given.
    pub network: Option<NetworkPolicy>,
    /// Secrets that it uses beside those of its template.
    pub secrets: Vec<SecretUse>,
    /// Values of secrets that the caller brings itself.
    pub secret_values: BTreeMap<SecretName, String>,
    /// Labels by which the caller finds it.
    pub labels: BTreeMap<String, String>,
    /// How long the lease lasts; the template's value if not given.
    pub ttl_ms: Option<u64>,
    /// How long to wait for a sandbox; the node's value if not given.
    pub wait_ms: Option<u64>,
    /// Which ways to get a sandbox are allowed.
    pub policy: CheckoutPolicy,
    /// The id of the lease, where a repeated request must be recognised.
    pub lease: Option<LeaseId>,
}

impl CheckoutRequest {
    /// A sandbox of a template, and every default.
    pub fn of(template: TemplateName) -> Self {
        Self {
            template,
            env: BTreeMap::new(),
            network: None,
            secrets: Vec::new(),
            secret_values: BTreeMap::new(),
            labels: BTreeMap::new(),
            ttl_ms: None,
            wait_ms: None,
            policy: CheckoutPolicy::default(),
            lease: None,
        }
    }
}

/// A granted lease. It is returned if this is dropped before `keep`.
pub struct HandedOut {
    core: Arc<Core>,
    checked_out: Option<CheckedOut>,
    view: SandboxView,
}

impl HandedOut {
    /// The caller has the lease now, and must return it.
    pub fn keep(mut self) -> CheckedOut {
        let checked_out = self.checked_out.take();
        checked_out.unwrap_or_else(|| unreachable!("a lease is taken once, by value"))
    }

    /// The sandbox, as it was handed out.
    pub const fn view(&self) -> &SandboxView {
        &self.view
    }
}

impl Deref for HandedOut {
    type Target = CheckedOut;

    fn deref(&self) -> &CheckedOut {
        self.checked_out.as_ref().unwrap_or_else(|| unreachable!("the lease is there until `keep`"))
    }
}

impl Drop for HandedOut {
    fn drop(&mut self) {
        if let Some(checked_out) = self.checked_out.take() {
            self.core.notify(Event::LeaseReturned { lease: checked_out.lease });
        }
    }
}

impl Engine {
    /// Checks out a sandbox for exclusive use.
    pub async fn checkout(
        &self,
        caller: Caller,
        asked: CheckoutRequest,
    ) -> Result<HandedOut, Refusal> {
        let began = Instant::now();
        let core = &self.core;
        let result = self.try_checkout(caller, asked).await;
        match &result {
            Ok(handed_out) => core.metrics.acquired(handed_out.path, began.elapsed()),
            Err(refusal) => core.metrics.refused(refusal.code),
        }
        result
    }

    async fn try_checkout(
        &self,
        caller: Caller,
        asked: CheckoutRequest,
    ) -> Result<HandedOut, Refusal> {
        let core = &self.core;
        if asked.wait_ms.is_some_and(|ms| ms > WAIT_MS_MAX) {
            let cause = format!("wait_ms: must be at most {WAIT_MS_MAX}");
            return Err(Refusal::new(ErrorCode::InvalidArgument, cause));
        }
        let claim = claim::settings(&asked)?;
        let room = self.check_lease_secrets(caller, &asked.template, claim.as_deref()).await?;
        let request = core.request();
        let lease = match asked.lease {
            Some(lease) => lease,
            None => LeaseId::from_uuid(fresh_uuid(self.now().wall)?),
        };
        let event = Event::CheckoutRequested(Checkout {
            request,
            lease,
            template: asked.template,
            ttl_ms: asked.ttl_ms,
            wait_ms: asked.wait_ms,
            policy: asked.policy,
            claim,
            tenant: caller.key,
        });
        let reply = core.ask(request, event).await?;
        drop(room);
        let Reply::CheckedOut(checked_out) = reply else { return Err(unexpected(&reply)) };
        network::handed_out(core, checked_out.instance, caller.key);
        let lease = checked_out.lease;
        let Some(view) = core.read(|kernel| kernel.lease(lease)) else {
            // The lease ended between the decision and now.
            return Err(self.lease(caller, lease).err().unwrap_or_else(|| gone(lease)));
        };
        Ok(HandedOut { core: Arc::clone(core), checked_out: Some(checked_out), view })
    }

    /// Refuses a checkout whose secrets are missing or have no room, before a sandbox is taken for it.
    async fn check_lease_secrets(
        &self,
        caller: Caller,
        template: &TemplateName,
        claim: Option<&ClaimSettings>,
    ) -> Result<Option<Reservation>, Refusal> {
        let template = self.known_template(template)?;
        match claim {
            Some(claim) if !claim.secrets.is_empty() || !template.secrets.is_empty() => {
                check_secrets(&self.core, caller.key, &template, claim).await
            }
            None if !template.secrets.is_empty() => {
                check_secrets(&self.core, caller.key, &template, &ClaimSettings::default()).await
            }
            Some(_) | None => Ok(None),
        }
    }

    /// The sandbox of a lease.
    pub fn lease(&self, caller: Caller, lease: LeaseId) -> Result<SandboxView, Refusal> {
        self.check_lease(caller, lease)?;
        self.core.read(|kernel| match (kernel.lease(lease), kernel.why_lease(lease)) {
            (Some(view), _) => Ok(view),
            (None, Some(cause)) => {
                let cause = format!("the lease is gone: {}", cause.as_str());
                Err(Refusal::new(ErrorCode::LeaseLost, cause))
            }
            (None, None) => Err(unknown(lease)),
        })
    }

    /// Returns a sandbox; also one that crashed meanwhile.
    pub async fn return_lease(&self, caller: Caller, lease: LeaseId) -> Result<(), Refusal> {
        let began = Instant::now();
        self.check_lease(caller, lease)?;
        let touched = self.core.read(|kernel| kernel.lease(lease)).map(|view| view.touched);
        self.core.ask(self.core.request(), Event::LeaseReturned { lease }).await?;
        self.core.metrics.returned(touched, began.elapsed());
        Ok(())
    }

    /// Extends a lease.
    #[boxed]
    pub async fn renew_lease(
        &self,
        caller: Caller,
        lease: LeaseId,
        ttl_ms: Option<u64>,
    ) -> Result<SandboxView, Refusal> {
        self.check_lease(caller, lease)?;
        self.core.ask(self.core.request(), Event::LeaseRenewed { lease, ttl_ms }).await?;
        self.lease(caller, lease)
    }

    /// Extends the lease of a sandbox.
    #[boxed]
    pub async fn renew_sandbox(
        &self,
        caller: Caller,
        id: SandboxId,
        ttl_ms: Option<u64>,
    ) -> Result<SandboxView, Refusal> {
        match self.sandbox(caller, id)?.owner {
            model::record::Owner::Lease(lease) => self.renew_lease(caller, lease, ttl_ms).await,
            model::record::Owner::Unowned | model::record::Owner::Session(_) => {
                let cause = "only a sandbox that is checked out has a lease to renew";
                Err(Refusal::new(ErrorCode::NotLeased, cause))
            }
        }
    }

    /// What belongs to another key does not exist.
    fn check_lease(&self, caller: Caller, lease: LeaseId) -> Result<(), Refusal> {
        match self.core.read(|kernel| kernel.tenant_of_lease(lease)) {
            Some(tenant) if caller.sees(tenant) => Ok(()),
            Some(_) | None => Err(unknown(lease)),
        }
    }
}

fn unknown(lease: LeaseId) -> Refusal {
    Refusal::new(ErrorCode::LeaseUnknown, format!("no lease {lease} is known"))
}

fn gone(lease: LeaseId) -> Refusal {
    Refusal::new(ErrorCode::LeaseLost, format!("lease {lease} ended at once"))
}
