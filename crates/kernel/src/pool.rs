//! The warm pool of a template: its sandboxes, its waiters, the health of its launches. `refill`,
//! `checkout` and `recycle` decide what to do about them.

mod bucket;
mod health;
mod occupancy;

use std::sync::Arc;

use model::record::PoolRecord;
use model::state::PoolPhase;
use model::stats::{PoolCounters, PoolStats};
use model::template::RuntimeTraits;
use model::{Mono, Template};

use crate::fair_queue::FairQueue;
use crate::flag::Flag;
use crate::lru_lists::{LinkSet, LruList};
use crate::pool::bucket::Bucket;
use crate::pool::health::Health;
use crate::pool::occupancy::Occupancy;
use crate::request::RequestIx;
use crate::slab::SlabIndex;

/// The index of a pool.
pub(crate) type PoolIx = SlabIndex<Pool>;

/// How long a pool keeps a surplus of idle sandboxes. Without this, every checkout would launch one
/// and every return would kill one.
pub(crate) const SURPLUS_PATIENCE_MS: u64 = 30_000;

/// The warm pool of a template.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) template: Arc<Template>,
    pub(crate) traits: RuntimeTraits,
    pub(crate) phase: PoolPhase,
    /// Idle sandboxes, oldest first.
    pub(crate) idle: LruList,
    /// Waiting checkouts.
    pub(crate) queue: FairQueue<RequestIx>,
    /// A waiting caller wants an idle sandbox or nothing.
    pub(crate) idle_only_in_line: bool,
    pub(crate) occupied: Occupancy,
    pub(crate) health: Health,
    pub(crate) bucket: Bucket,
    pub(crate) surplus_since: Option<Mono>,
    pub(crate) counters: PoolCounters,
    /// Requests that wait for its removal.
    pub(crate) destroyers: Vec<RequestIx>,
    pub(crate) marked: Flag,
    pub(crate) due: Flag,
    pub(crate) alarm: Mono,
}

impl Pool {
    pub(crate) fn new(template: Arc<Template>, traits: RuntimeTraits, now: Mono) -> Self {
        Self {
            bucket: Bucket::full(template.pool.refill_per_s, now),
            template,
            traits,
            phase: PoolPhase::Active,
            idle: LruList::new(LinkSet::Idle),
            queue: FairQueue::default(),
            idle_only_in_line: false,
            occupied: Occupancy::default(),
            health: Health::default(),
            surplus_since: None,
            counters: PoolCounters::default(),
            destroyers: Vec::new(),
            marked: Flag::default(),
            due: Flag::default(),
            alarm: Mono::NEVER,
        }
    }

    pub(crate) fn slots(&self) -> u32 {
        self.template.pool.slots()
    }

    pub(crate) fn free_slots(&self) -> u32 {
        self.slots().saturating_sub(self.occupied.slots())
    }

    /// Sandboxes that will become idle or be handed out soon.
    pub(crate) const fn coming(&self) -> u32 {
        self.occupied.launching() + self.occupied.applying() + self.occupied.cleaning()
    }

    pub(crate) fn waiters(&self) -> u32 {
        self.queue.len() as u32
    }

    /// Waiters beyond the launches in progress. A launch that is in progress needs no other
    /// caller's sandbox, so `max_waiters` does not count those that it is for.
    pub(crate) fn waiters_without_launch(&self) -> u32 {
        self.waiters().saturating_sub(self.occupied.launching())
    }

    /// Callers that a sandbox should be coming to. Callers that will be refused for a failed launch
    /// do not count.
    pub(crate) fn expecting(&self) -> u32 {
        self.waiters().saturating_sub(self.occupied.failing())
    }

    /// Whether the pool is degraded: launches are tried one at a time, with pauses.
    pub(crate) const fn is_degraded(&self, degraded_after: u32) -> bool {
        self.health.is_degraded(degraded_after)
    }

    /// Fills the refill bucket up to now. Returns how many launches it allows.
    pub(crate) fn refill_allowance(&mut self, now: Mono) -> u32 {
        self.bucket.fill(self.template.pool.refill_per_s, now)
    }

    /// When the bucket will allow the next launch.
    pub(crate) fn refill_at(&self) -> Mono {
        self.bucket.next_at(self.template.pool.refill_per_s)
    }

    pub(crate) fn record(&self) -> PoolRecord {
        PoolRecord { template: Arc::clone(&self.template), traits: self.traits, phase: self.phase }
    }

    /// How many more sandboxes it would keep ready.
    pub(crate) fn lacking(&self) -> u32 {
        let have = (self.idle.len() + self.coming()).saturating_sub(self.expecting());
        self.template.pool.pool_size.saturating_sub(have).min(self.free_slots())
    }

    pub(crate) fn stats(&self, degraded_after: u32, held_back: Option<String>) -> PoolStats {
        let degraded = self.is_degraded(degraded_after);
        PoolStats {
            template: self.template.name.clone(),
            phase: self.phase,
            degraded,
            last_failure: self.health.last_failure().map(str::to_owned),
            held_back,
            idle: self.idle.len(),
            launching: self.occupied.launching() + self.occupied.applying(),
            leased: self.occupied.leased(),
            waiters: self.waiters(),
            slots_used: self.occupied.slots(),
            slots: self.slots(),
            pool_size: self.template.pool.pool_size,
            max_overflow: self.template.pool.max_overflow,
            acquire_min_remaining_ttl_ms: self.template.pool.acquire_margin_ms(),
            counters: self.counters,
        }
    }
}
