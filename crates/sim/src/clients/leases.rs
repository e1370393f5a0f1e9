//! Checkouts, returns, renewals and uses, with ids that may be stale and returns that may come
//! twice.

use kernel::{Checkout, CheckoutPolicy, Event, Reply, UseKind, UseTarget};
use model::record::Owner;
use model::{InstanceId, LeaseId, SandboxId, UseId, Wall};

use crate::checks::{self, Judged};
use crate::interpreter::Item;
use crate::ledger::{Ask, Lease, LeasePhase};
use crate::world::World;

impl World {
    pub(super) fn act_checkout(&mut self) -> Judged {
        if self.ledger.pending.len() + self.ledger.held.len() > 3 * self.scenario.clients as usize {
            return self.act_return();
        }
        let request = self.request();
        let lease = LeaseId::from_u128(self.ledger.fresh());
        let template = self.any_template();
        let policy = match self.choices.below(6) {
            4 => CheckoutPolicy::FailFast,
            5 => CheckoutPolicy::IdleOnly,
            _ => CheckoutPolicy::Wait,
        };
        let wait_ms = self.choices.pick(&[None, Some(500), Some(3_000), Some(0)]).flatten();
        let ttl_ms = self.choices.pick(&[None, Some(1_500), Some(60_000)]).flatten();
        let tenant = self.some_tenant();
        let claim = self.claim();
        self.ledger.leases.insert(
            lease,
            Lease {
                tenant,
                claim: claim.clone(),
                phase: LeasePhase::Asked,
                sandbox: SandboxId::NIL,
                instance: InstanceId::NIL,
                expires_at: Wall(0),
            },
        );
        let usual_ms = self.scenario.config.wait_ms;
        // A checkout that does not wait for others still waits for its own launch.
        let patience_ms = match (policy, wait_ms) {
            (CheckoutPolicy::Wait, Some(wait_ms)) if wait_ms > 0 => wait_ms,
            (CheckoutPolicy::Wait, None) => usual_ms,
            (
                CheckoutPolicy::Wait | CheckoutPolicy::FailFast | CheckoutPolicy::IdleOnly,
                wait_ms,
            ) => wait_ms.unwrap_or(usual_ms).max(usual_ms),
        };
        let ask = Ask::Checkout { lease, template: template.clone(), policy };
        let checkout =
            Checkout { request, lease, tenant, template, ttl_ms, wait_ms, policy, claim };
        self.ask(request, patience_ms, ask, Event::CheckoutRequested(checkout))
    }

    pub(super) fn act_return(&mut self) -> Judged {
        let twice = self.choices.below(12) == 11;
        let stale = self.ledger.stale.back().map(|(lease, _)| *lease);
        let Some(lease) = (if twice { stale } else { self.held_lease() }) else { return Ok(()) };
        let held = self.ledger.held.contains(&lease);
        self.ledger.drop_lease(lease, LeasePhase::Returned);
        let direct = self.submit(Event::LeaseReturned { lease }, None)?;
        checks::leases::returned(self, lease, held, direct.as_ref())
    }

    pub(super) fn act_renew(&mut self) -> Judged {
        let Some(lease) = self.held_lease() else { return Ok(()) };
        let ttl_ms = self.choices.pick(&[None, Some(2_000), Some(30_000)]).flatten();
        let direct = self.submit(Event::LeaseRenewed { lease, ttl_ms }, None)?;
        if let Some(Ok(Reply::Renewed { expires_at })) = direct
            && let Some(lease) = self.ledger.leases.get_mut(&lease)
        {
            lease.expires_at = expires_at;
            let instance = lease.instance;
            return checks::handout::lasts(self, instance, expires_at);
        }
        Ok(())
    }

    pub(super) fn use_kind(&mut self) -> UseKind {
        match self.choices.below(6) {
            0 | 1 => UseKind::Exec,
            2 => UseKind::Files,
            3 => UseKind::Port,
            4 => UseKind::Harness,
            _ => UseKind::Read,
        }
    }

    pub(super) fn ask_use(&mut self, target: UseTarget) -> Judged {
        let request = self.request();
        let use_id = UseId::from_u128(self.ledger.fresh());
        let kind = self.use_kind();
        let leased = match target {
            UseTarget::Session(_) => false,
            UseTarget::Sandbox(sandbox) => self
                .store
                .sandboxes
                .get(&sandbox)
                .is_some_and(|one| matches!(one.owner, Owner::Lease(_))),
        };
        let (wait_ms, session_ms) = self.session_wait();
        let control_ms = self.scenario.config.control_timeout_ms;
        let patience_ms = if leased { control_ms } else { session_ms };
        let ask = Ask::Use { use_id, target, kind };
        let event = Event::UseRequested { request, target, use_id, kind, wait_ms };
        self.ask(request, patience_ms, ask, event)
    }

    pub(super) fn act_lease_use(&mut self) -> Judged {
        let Some(lease) = self.held_lease() else { return Ok(()) };
        let Some(sandbox) = self.ledger.leases.get(&lease).map(|lease| lease.sandbox) else {
            return Ok(());
        };
        self.ask_use(UseTarget::Sandbox(sandbox))
    }

    pub(super) fn act_stale_use(&mut self) -> Judged {
        let index = self.choices.below(self.ledger.stale.len() as u32) as usize;
        let Some((lease, sandbox)) = self.ledger.stale.get(index).copied() else { return Ok(()) };
        match self.choices.below(3) {
            0 => self.ask_use(UseTarget::Sandbox(sandbox)),
            1 => {
                let direct = self.submit(Event::LeaseReturned { lease }, None)?;
                checks::leases::returned(self, lease, false, direct.as_ref())
            }
            _ => self.notify(Event::LeaseRenewed { lease, ttl_ms: None }),
        }
    }

    pub(super) fn act_session_use(&mut self) -> Judged {
        let Some(session) = self.some_session() else { return Ok(()) };
        let by_id = self.choices.below(4) == 3;
        match self.store.live_of_session(session) {
            Some(record) if by_id => self.ask_use(UseTarget::Sandbox(record.id)),
            Some(_) | None => self.ask_use(UseTarget::Session(session)),
        }
    }

    pub(super) fn act_end_use(&mut self) -> Judged {
        let index = self.choices.below(self.ledger.uses.len() as u32) as usize;
        match self.ledger.uses.keys().nth(index).copied() {
            Some(use_id) => self.end_use(use_id),
            None => Ok(()),
        }
    }

    /// Ends a use.
    pub(crate) fn end_use(&mut self, use_id: UseId) -> Judged {
        let Some(open) = self.ledger.uses.get(&use_id) else { return Ok(()) };
        let still = self.runtime.up(open.instance).is_some_and(|one| one.quiesced_since.is_some());
        if still && open.kind == UseKind::Exec {
            // It continues when its sandbox runs again.
            self.plan(50, Item::UseEnds(use_id));
            return Ok(());
        }
        let Some(open) = self.ledger.uses.remove(&use_id) else { return Ok(()) };
        let now = self.now.mono;
        if let Some(one) = self.runtime.instances.get_mut(&open.instance) {
            one.uses.retain(|other| *other != use_id);
        }
        if let Some(one) = self.runtime.up(open.instance) {
            one.active_at = now;
            one.stirred_at = now;
            if one.frozen && one.quiesced_since.is_none() {
                return checks::uses::frozen(use_id);
            }
            if open.kind == UseKind::Exec {
                self.owner_writes(open.instance, open.owner);
            }
        }
        self.notify(Event::UseEnded { use_id })
    }
}
