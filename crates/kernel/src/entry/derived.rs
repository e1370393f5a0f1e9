//! What follows from the facts of a sandbox: the state that users see, its eviction tier, and what
//! it counts for. Only this module computes it; `settle` keeps the counts in step.

use model::why::Tier;
use model::{KeyId, Mono, SandboxState};

use crate::entry::{AfterEnd, Entry, Phase};

/// Derived values, as they are counted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Derived {
    pub(crate) state: SandboxState,
    pub(crate) tier: Option<Tier>,
    pub(crate) dying_live: bool,
    pub(crate) dying_entry: bool,
    /// The key that it counts for; nil if it has no owner.
    pub(crate) key: KeyId,
    /// It counts as a live sandbox of its key.
    pub(crate) live_of_key: bool,
    /// It counts as an entry of its key.
    pub(crate) entry_of_key: bool,
}

impl Derived {
    /// For an entry that is not counted yet.
    pub(crate) const NOTHING: Self = Self {
        state: SandboxState::Cold,
        tier: None,
        dying_live: false,
        dying_entry: false,
        key: KeyId::NIL,
        live_of_key: false,
        entry_of_key: false,
    };
}

impl Entry {
    /// The tier in which it may be evicted.
    pub(crate) fn tier(&self, now: Mono) -> Option<Tier> {
        if self.termination.is_some() || self.holds.is_wanted() || self.holds.is_copied() {
            return None;
        }
        match self.phase {
            Phase::Cold => (self.ops.is_free() || self.is_archiving()).then_some(Tier::Cold),
            Phase::Idle => Some(Tier::Warm),
            Phase::InUse => {
                let session = self.session().is_some();
                (session && self.is_quiet() && !self.is_kept_alive() && self.spared_until <= now)
                    .then_some(Tier::Waiting)
            }
            Phase::Launching
            | Phase::Claiming(_)
            | Phase::Wiping
            | Phase::Proving
            | Phase::Killing => None,
        }
    }

    pub(crate) fn derive(&self, now: Mono) -> Derived {
        let dying_live = self.live && self.termination.is_some();
        let dying_entry = self
            .termination
            .as_ref()
            .is_some_and(|e| matches!(e.after, AfterEnd::Gone | AfterEnd::Shelved));
        Derived {
            state: self.state(),
            tier: self.tier(now),
            dying_live,
            dying_entry,
            key: self.tenant(),
            live_of_key: self.live && !dying_live,
            entry_of_key: !dying_entry,
        }
    }
}
