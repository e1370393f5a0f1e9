//! Keeps derived values in step with the facts: counts by state, eviction tiers, what is about to
//! be freed. Each change of a sandbox is followed by [`Kernel::settle`]; the reconcilers then act
//! on what became possible.

use model::SandboxState;
use model::why::Tier;

use crate::Kernel;
use crate::Mono;
use crate::alarms::Ringer;
use crate::entry::{Derived, EntryIx, Frozen};
use crate::pool::PoolIx;
use crate::reconcile_queue::ReconcileItem;
use crate::session::SessionIx;

/// Far more rounds than any event needs: each round serves, launches or ends something.
const ROUNDS_MAX: u32 = 100_000;

impl Kernel {
    /// Updates counts and lists after a change of a sandbox.
    pub(crate) fn settle(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        let old = sandbox.derived;
        let new = sandbox.derive(self.now.mono);
        if old == new {
            return;
        }
        sandbox.derived = new;
        if old.state != new.state {
            debug_assert!(
                old.state.may_become(new.state),
                "a sandbox does not go from {:?} to {:?}",
                old.state,
                new.state
            );
            self.counts.went(old.state);
            self.counts.came(new.state);
            if sandbox.state_changed.raise() {
                self.changed_states.add(entry);
            }
        }
        let memory_mb = sandbox.memory_mb();
        if old.dying_live != new.dying_live {
            self.admission.count_dying_live(new.dying_live, memory_mb);
        }
        if old.dying_entry != new.dying_entry {
            self.admission.count_dying_entry(new.dying_entry);
        }
        self.count_for_key(old, new, memory_mb);
        if (old.tier, old.key) != (new.tier, new.key) {
            if new.tier == Some(Tier::Cold) {
                self.arm_cold(entry);
            }
            if let Some(tier) = old.tier {
                self.tiers.leave(tier, old.key, &mut self.entries, entry);
            }
            if let Some(tier) = new.tier {
                self.tiers.join(tier, new.key, &mut self.entries, entry);
                // It could be evicted for an applicant.
                if self.admission.has_applicants() {
                    self.due.look_at_line();
                }
            }
        }
    }

    /// Counts for a key what a sandbox is to it.
    fn count_for_key(&mut self, old: Derived, new: Derived, memory_mb: u64) {
        let of_key = |it: Derived| (it.key, it.live_of_key, it.dying_live, it.entry_of_key);
        if of_key(old) == of_key(new) {
            return;
        }
        self.keys.count(old.key, |key| key.has_no_longer(old, memory_mb));
        self.keys.count(new.key, |key| key.has(new, memory_mb));
        for key in [old.key, new.key] {
            self.meters.follow(key, self.keys.of(key), self.now.mono);
        }
    }

    /// A sandbox was used just now: it moves to the end of its LRU list.
    #[inline]
    pub(crate) fn touch(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        sandbox.last_used = self.now;
        sandbox.file_access.freeze_again_settled();
        if sandbox.frozen == Frozen::No
            && let Some(rare) = &mut sandbox.rare
        {
            // An earlier request to freeze it is done with, also if it was thawed for a copy.
            rare.frozen_on_request = false;
        }
        let Derived { tier, key, .. } = sandbox.derived;
        if let Some(tier) = tier {
            self.tiers.leave(tier, key, &mut self.entries, entry);
            self.tiers.join(tier, key, &mut self.entries, entry);
        }
    }

    /// Counts a new sandbox.
    pub(crate) fn count_in(&mut self, entry: EntryIx) {
        self.counts.came(SandboxState::Cold);
        self.settle(entry);
    }

    /// Takes a sandbox out of every count and list.
    pub(crate) fn count_out(&mut self, entry: EntryIx) {
        let sandbox = &self.entries[entry];
        let derived = sandbox.derived;
        let memory_mb = sandbox.memory_mb();
        self.counts.went(derived.state);
        if derived.dying_live {
            self.admission.count_dying_live(false, memory_mb);
        }
        if derived.dying_entry {
            self.admission.count_dying_entry(false);
        }
        self.count_for_key(derived, Derived::NOTHING, memory_mb);
        if let Some(tier) = derived.tier {
            self.tiers.leave(tier, derived.key, &mut self.entries, entry);
        }
        let mut alarm = self.entries[entry].alarm;
        self.alarms.clear(Ringer::Entry(entry), &mut alarm);
        self.entries[entry].alarm = alarm;
    }

    /// Sets the alarm of a sandbox to `at` or before.
    pub(crate) fn arm(&mut self, entry: EntryIx, at: Mono) {
        let sandbox = &mut self.entries[entry];
        self.alarms.at_latest(Ringer::Entry(entry), &mut sandbox.alarm, at);
    }

    pub(crate) fn pool_due(&mut self, pool: PoolIx) {
        if self.pools[pool].due.raise() {
            self.due.look_at_pool(pool);
        }
    }

    pub(crate) fn session_due(&mut self, session: SessionIx) {
        if self.sessions[session].due.raise() {
            self.due.look_at_session(session);
        }
    }

    /// Runs the reconcilers until nothing more follows.
    pub(crate) fn reconcile_all(&mut self) {
        let mut rounds = 0_u32;
        while let Some(next) = self.due.next() {
            rounds += 1;
            debug_assert!(rounds < ROUNDS_MAX, "the reconcilers never come to rest");
            match next {
                ReconcileItem::Session(session) => {
                    if let Some(known) = self.sessions.get_mut(session)
                        && known.due.lower()
                    {
                        self.drive_session(session);
                        self.drive_copies(session);
                    }
                }
                ReconcileItem::Pool(pool) => {
                    if let Some(known) = self.pools.get_mut(pool)
                        && known.due.lower()
                    {
                        self.reconcile_pool(pool);
                    }
                }
                ReconcileItem::PlaceQueue => self.admit(),
                ReconcileItem::Archives => self.archive_next(),
            }
        }
        self.finish_shutdown();
    }
}
