//! Which sandbox is evicted. An eviction frees the resource that is short, takes the least recently
//! used sandbox of the first tier that can free it, and is recorded with its cause and the
//! candidates considered. A running or held sandbox is in no tier.

use std::sync::Arc;

use model::why::{Candidate, Eviction, Shortage, Tier};
use model::{ColdEviction, EndCause};

use crate::Kernel;
use crate::entry::{AfterEnd, EntryIx, Firmness};

impl Kernel {
    /// Evicts one sandbox to relieve a shortage. Returns whether there was a victim.
    pub(crate) fn evict_one(&mut self, shortage: Shortage) -> bool {
        let Some((tier, victim)) = self.choose_victim(shortage) else { return false };
        let eviction = Arc::new(Eviction {
            tier,
            shortage,
            candidates: self.candidates(),
            decided_at: self.now.wall,
        });
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
        true
    }

    fn choose_victim(&self, shortage: Shortage) -> Option<(Tier, EntryIx)> {
        if let Some(victim) = self.flaws.running_victim(&self.entries) {
            return Some((Tier::Waiting, victim));
        }
        let order: &[Tier] = match shortage {
            Shortage::Entries => &[Tier::Cold, Tier::Warm, Tier::Waiting],
            Shortage::Processes | Shortage::Memory => &[Tier::Warm, Tier::Waiting],
        };
        order.iter().find_map(|tier| Some((*tier, self.first_of(*tier)?)))
    }

    /// The first candidate of each tier.
    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |tier: Tier| {
            let order = self.tiers.of(tier);
            let entry = &self.entries[order.first()?];
            Some(Candidate {
                tier,
                sandbox: entry.id,
                last_used_at: entry.last_used.wall,
                of: order.len(),
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
