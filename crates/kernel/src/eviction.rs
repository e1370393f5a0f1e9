//! Which sandbox is evicted. An eviction frees the resource that is short, from the first tier that
//! can free it: first from keys that have more than their share, and of these the least recently
//! used sandbox. It is recorded with its cause and the candidates considered. A running or held
//! sandbox is in no tier.

use std::sync::Arc;

use model::why::{Candidate, Eviction, Shortage, Tier};
use model::{ColdEviction, EndCause, KeyId};

use crate::Kernel;
use crate::entry::{AfterEnd, EntryIx, Firmness};
use crate::shares::Shares;

impl Kernel {
    /// Evicts one sandbox to relieve a shortage. Returns whether there was a victim.
    pub(crate) fn evict_one(&mut self, shortage: Shortage) -> bool {
        let shares = self.flaws.shares(self.shares(shortage));
        let Some((tier, victim)) = self.choose_victim(shortage, shares) else { return false };
        let candidates = self.candidates(shares);
        self.evict(
            tier,
            victim,
            Eviction { tier, shortage, candidates, decided_at: self.now.wall },
        );
        true
    }

    /// Evicts a sandbox of a key because a limit of that key is reached: the least recently used of
    /// its sessions. Returns whether there was one.
    pub(crate) fn evict_own(&mut self, key: KeyId) -> bool {
        let Some(own) = self.tiers.of_key(Tier::Waiting, key) else { return false };
        let Some(victim) = own.first() else { return false };
        let candidate = Candidate {
            tier: Tier::Waiting,
            sandbox: self.entries[victim].id,
            last_used_at: self.entries[victim].last_used.wall,
            of: own.len(),
        };
        let eviction = Eviction {
            tier: Tier::Waiting,
            shortage: Shortage::KeyLimit,
            candidates: vec![candidate],
            decided_at: self.now.wall,
        };
        self.evict(Tier::Waiting, victim, eviction);
        true
    }

    fn evict(&mut self, tier: Tier, victim: EntryIx, eviction: Eviction) {
        let shortage = eviction.shortage;
        let eviction = Arc::new(eviction);
        match tier {
            Tier::Cold => self.evict_cold(victim, eviction),
            Tier::Warm => {
                self.end(victim, EndCause::Evicted, AfterEnd::Gone, Firmness::Now);
                self.note_eviction(victim, eviction);
            }
            Tier::Waiting if shortage == Shortage::Entries => {
                // No cold sandbox is left: this one goes cold and its entry is removed in one step.
                let (after, firmness) = match self.config.cold_eviction {
                    ColdEviction::KeepFiles => (AfterEnd::Shelved, Firmness::Voidable),
                    ColdEviction::DeleteFiles => {
                        let entry = &self.entries[victim];
                        self.counts.gave_up_files(entry.files.has_any());
                        (AfterEnd::Gone, Firmness::Now)
                    }
                };
                self.end(victim, EndCause::Evicted, after, firmness);
                self.note_eviction(victim, eviction);
            }
            Tier::Waiting => {
                self.end(victim, EndCause::Evicted, AfterEnd::Cold, Firmness::Voidable);
                self.note_eviction(victim, eviction);
            }
        }
    }

    fn choose_victim(&self, shortage: Shortage, shares: Shares) -> Option<(Tier, EntryIx)> {
        if let Some(victim) = self.flaws.running_victim(&self.entries) {
            return Some((Tier::Waiting, victim));
        }
        let order: &[Tier] = match shortage {
            Shortage::Entries => &[Tier::Cold, Tier::Warm, Tier::Waiting],
            Shortage::Processes | Shortage::Memory | Shortage::KeyLimit => {
                &[Tier::Warm, Tier::Waiting]
            }
        };
        order.iter().find_map(|tier| Some((*tier, self.first_of(*tier, shares)?)))
    }

    /// The sandbox that is evicted first in a tier: of a key above its share if there is one, and
    /// then the least recently used.
    fn first_of(&self, tier: Tier, shares: Shares) -> Option<EntryIx> {
        let firsts = self.tiers.of(tier).filter_map(|(key, list)| {
            let first = self.flaws.first_of(list)?;
            let used = self.entries[first].last_used.mono;
            Some((!self.is_above_share(shares, key), used, self.entries[first].id, first))
        });
        firsts.min_by_key(|(within, used, id, _)| (*within, *used, *id)).map(|(.., first)| first)
    }

    /// The first candidate of each tier.
    fn candidates(&self, shares: Shares) -> Vec<Candidate> {
        let candidate = |tier: Tier| {
            let entry = &self.entries[self.first_of(tier, shares)?];
            Some(Candidate {
                tier,
                sandbox: entry.id,
                last_used_at: entry.last_used.wall,
                of: self.tiers.len(tier),
            })
        };
        Tier::ALL.into_iter().filter_map(candidate).collect()
    }

    fn note_eviction(&mut self, victim: EntryIx, eviction: Arc<Eviction>) {
        // A victim without an instance is gone already.
        if let Some(termination) = self.entries.get_mut(victim).and_then(|e| e.termination.as_mut())
        {
            termination.eviction = Some(eviction);
        }
    }

    /// Removes the entry of a cold sandbox: there is no instance to wait for.
    fn evict_cold(&mut self, victim: EntryIx, eviction: Arc<Eviction>) {
        match self.config.cold_eviction {
            ColdEviction::KeepFiles if !self.flaws.deletes_files_at_limit() => {
                self.cancel_archive(victim);
                self.shelve(victim);
            }
            ColdEviction::KeepFiles | ColdEviction::DeleteFiles => {
                self.counts.gave_up_files(self.entries[victim].files.has_files());
                self.lose_files(victim, EndCause::Evicted.reason());
            }
        }
        self.remove_entry(victim, EndCause::Evicted, None, Some(eviction));
    }
}
