//! Answers without side effects: statistics, listings, and why a sandbox is in its state.

use std::collections::BTreeSet;
use std::sync::Arc;

use model::state::{PoolPhase, Wakefulness};
use model::stats::{NodeStats, PoolStats};
use model::template::RuntimeTraits;
use model::why::{Alive, Ended, Why};
use model::{
    EndCause, InstanceId, KeyId, LeaseId, Mono, Now, SandboxId, SandboxState, SeedId, Template,
    TemplateName, Wall,
};

use crate::Kernel;
use crate::entry::{Entry, EntryIx, EntryOwner, Frozen};
use crate::pool::Pool;
use crate::view::{KeepAliveCounts, SandboxView};

impl Kernel {
    /// The statistics of the node.
    pub fn stats(&self) -> NodeStats {
        let by_state = self.counts.by_state();
        let of = |state: SandboxState| by_state[state as usize];
        let (resume_warm_hits, resume_cold_hits) = self.counts.resumed();
        NodeStats {
            total: by_state.iter().sum(),
            cold: of(SandboxState::Cold),
            warming: of(SandboxState::Warming),
            warm: of(SandboxState::Warm),
            waiting: of(SandboxState::Waiting),
            running: of(SandboxState::Running),
            max_capacity: self.config.max_sandboxes,
            resume_warm_hits,
            resume_cold_hits,
        }
    }

    /// The sum of the memory limits of all live sandboxes.
    pub const fn live_memory_mb(&self) -> u64 {
        self.admission.memory_mb()
    }

    /// The seed archives that sessions begin with.
    pub fn seeds(&self) -> BTreeSet<SeedId> {
        let sessions = self.sessions.iter();
        sessions.filter_map(|(_, known)| known.settings.claim.as_ref()?.seed).collect()
    }

    /// The statistics of a pool.
    pub fn pool_stats(&self, template: &TemplateName) -> Option<PoolStats> {
        Some(self.stats_of(&self.pools[self.pools.named(template)?]))
    }

    /// All pools, by name.
    pub fn pools(&self) -> Vec<PoolStats> {
        self.pools.by_name().map(|pool| self.stats_of(pool)).collect()
    }

    fn stats_of(&self, pool: &Pool) -> PoolStats {
        let refills = pool.phase == PoolPhase::Active && self.is_served(&pool.template.name);
        let lacks = refills && pool.lacking() > 0;
        let shortage = lacks.then(|| self.shortage_for(pool.template.limits.memory_mb.into()));
        let held_back = shortage.flatten().map(|shortage| shortage.in_words().to_owned());
        pool.stats(self.config.backoff.degraded_after, held_back)
    }

    /// A template, also while its pool is being destroyed.
    pub fn template(&self, name: &TemplateName) -> Option<Arc<Template>> {
        self.pools.named(name).map(|pool| Arc::clone(&self.pools[pool].template))
    }

    /// What the runtime of a template can do, as far as that is known.
    pub fn traits_of(&self, name: &TemplateName) -> Option<RuntimeTraits> {
        self.pools.named(name).map(|pool| self.pools[pool].traits)
    }

    /// All templates, by name.
    pub fn templates(&self) -> Vec<Arc<Template>> {
        self.pools.by_name().map(|pool| Arc::clone(&pool.template)).collect()
    }

    /// The sandbox of a lease, also while it is being handed out.
    pub fn lease(&self, lease: LeaseId) -> Option<SandboxView> {
        self.entries.by_lease(lease).map(|entry| self.view(entry))
    }

    /// How a lease ended, if its tombstone is still there.
    pub fn why_lease(&self, lease: LeaseId) -> Option<EndCause> {
        self.tombstones.of_lease(lease).map(|end| end.cause)
    }

    /// The key of a lease, or of its tombstone.
    pub fn tenant_of_lease(&self, lease: LeaseId) -> Option<KeyId> {
        match self.entries.by_lease(lease) {
            Some(entry) => Some(self.entries[entry].tenant()),
            None => self.tombstones.of_lease(lease).map(|end| end.tenant),
        }
    }

    /// The key of a sandbox, or of its tombstone; nil if it has no owner.
    pub fn tenant_of_sandbox(&self, id: SandboxId) -> Option<KeyId> {
        match self.entries.by_id(id) {
            Some(entry) => Some(self.entries[entry].tenant()),
            None => self.tombstones.of_sandbox(id).map(|ended| ended.tenant),
        }
    }

    /// A sandbox as it is now.
    pub fn sandbox(&self, id: SandboxId) -> Option<SandboxView> {
        self.entries.by_id(id).map(|entry| self.view(entry))
    }

    /// All transitions with their count, published or not.
    pub fn transition_counts(&self) -> Vec<(SandboxState, SandboxState, u64)> {
        self.counts.transition_counts().collect()
    }

    /// The visible state of each sandbox, in a fixed order.
    pub fn states(&self) -> impl Iterator<Item = (SandboxId, SandboxState)> {
        self.entries.iter().map(|(_, entry)| (entry.id, entry.derived.state))
    }

    /// How many sandboxes are frozen, and how many are kept alive.
    pub fn keep_alive_counts(&self) -> KeepAliveCounts {
        let mut resting = KeepAliveCounts::default();
        for (_, entry) in self.entries.iter() {
            resting.frozen += u32::from(entry.frozen == Frozen::Yes);
            resting.awake += u32::from(entry.is_kept_alive());
        }
        resting
    }

    /// All sandboxes, live and cold, in a fixed order.
    pub fn sandboxes(&self) -> Vec<SandboxView> {
        self.entries.iter().map(|(entry, _)| self.view(entry)).collect()
    }

    fn view(&self, entry: EntryIx) -> SandboxView {
        let sandbox = &self.entries[entry];
        let now = self.now;
        SandboxView {
            id: sandbox.id,
            generation: sandbox.generation,
            instance: (sandbox.instance != InstanceId::NIL).then_some(sandbox.instance),
            template: sandbox.template.name.clone(),
            runtime: sandbox.template.runtime,
            owner: self.owner(entry),
            tenant: sandbox.tenant(),
            claim: sandbox.settings.clone(),
            state: sandbox.derived.state,
            frozen: sandbox.frozen == Frozen::Yes,
            awake: sandbox.is_kept_alive(),
            freezes_at: self
                .freezes_at(entry)
                .map(|at| Wall(now.wall.0.saturating_add(at.since(now.mono)))),
            ending: sandbox.termination.as_ref().map(|termination| termination.cause),
            uses: uses(sandbox),
            touched: sandbox.clean.is_touched(),
            created_at: sandbox.created_at,
            last_used_at: sandbox.last_used.wall,
            expires_at: sandbox.life.expires_at(),
        }
    }

    /// Why a sandbox is in its state, or how it ended.
    pub fn why(&self, now: Now, id: SandboxId) -> Option<Why> {
        let Some(entry) = self.entries.by_id(id) else {
            return self.tombstones.of_sandbox(id).cloned().map(Why::Ended);
        };
        let sandbox = &self.entries[entry];
        let wall = |at: Mono| Wall(now.wall.0.saturating_add(at.since(now.mono)));
        let rare = sandbox.rare.as_deref();
        Some(Why::Alive(Box::new(Alive {
            sandbox: sandbox.id,
            generation: sandbox.generation,
            template: sandbox.template.name.clone(),
            runtime: sandbox.template.runtime,
            uses: uses(sandbox),
            state: sandbox.derived.state,
            owner: self.owner(entry),
            tenant: sandbox.tenant(),
            frozen: sandbox.frozen == Frozen::Yes,
            wakefulness: if sandbox.is_kept_alive() {
                Wakefulness::Awake
            } else {
                Wakefulness::Auto
            },
            uses_in_progress: sandbox.holds.uses_in_progress(),
            keep_alive_processes: rare
                .map_or(0, |e| e.processes.values().filter(|p| p.keeps_alive).count() as u32),
            scale: rare.map_or(0, |e| e.scale),
            workspace_limit: sandbox.traits.disk,
            workspace_bytes: (sandbox.disk.bytes() > 0).then_some(sandbox.disk.bytes()),
            ending: sandbox.termination.as_ref().map(|termination| termination.cause),
            slept: sandbox.slept,
            last_end: self.last_end(sandbox),
            last_used_at: sandbox.last_used.wall,
            freezes_at: self.freezes_at(entry).map(wall),
            sleeps_at: self.sleeps_at(entry).map(wall),
            expires_at: sandbox.life.expires_at(),
        })))
    }

    /// How the last instance of a cold sandbox ended. If it died, the sandbox had another id.
    fn last_end(&self, sandbox: &Entry) -> Option<Ended> {
        if sandbox.derived.state != SandboxState::Cold {
            return None;
        }
        let ids = [Some(sandbox.id), sandbox.previous_id];
        ids.into_iter().flatten().find_map(|id| self.tombstones.of_sandbox(id)).cloned()
    }
}

/// How often the instance of a sandbox was handed out.
fn uses(entry: &Entry) -> u32 {
    match entry.owner() {
        EntryOwner::Unowned => entry.uses,
        // An instance launched for its session was never in a pool.
        EntryOwner::Lease(_) | EntryOwner::Session(_) => entry.uses.max(1),
    }
}
