//! Who may launch an instance, and when. A place is reserved before anything starts and released
//! when its removal is confirmed, each exactly once. Applicants without a place wait in one queue
//! for the whole node. Eviction makes room for them; it never makes room to refill a pool.

use std::collections::BTreeMap;

use model::why::Shortage;
use model::{ErrorCode, Refusal};

use crate::Kernel;
use crate::entry::EntryIx;
use crate::pool::PoolIx;
use crate::session::SessionIx;

/// Places in use, and the queue for places.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    live: u32,
    memory_mb: u64,
    /// Of those, what will be free when every termination has ended.
    dying_live: u32,
    dying_memory_mb: u64,
    dying_entries: u32,
    /// Applicants for a place, in order of arrival.
    queue: BTreeMap<u64, Applicant>,
    queued_entries: u32,
    queued_memory_mb: u64,
}

/// A pool or a session that wants to launch an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Applicant {
    pub(crate) who: ApplicantKind,
    pub(crate) needs_entry: bool,
    pub(crate) memory_mb: u64,
}

/// For whom an instance is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApplicantKind {
    /// For a caller that waits for a pool.
    Pool(PoolIx),
    /// For a session.
    Session(SessionIx),
}

impl Admission {
    pub(crate) fn has_applicants(&self) -> bool {
        !self.queue.is_empty()
    }

    /// An instance takes a place, and memory as far as that is known.
    pub(crate) const fn process_began(&mut self, memory_mb: u64) {
        self.live += 1;
        self.memory_mb += memory_mb;
    }

    /// The instance is gone, and its place is free.
    pub(crate) const fn process_ended(&mut self, memory_mb: u64) {
        self.live -= 1;
        self.memory_mb -= memory_mb;
    }

    pub(crate) const fn live(&self) -> u32 {
        self.live
    }

    /// The memory of all instances.
    pub(crate) const fn memory_mb(&self) -> u64 {
        self.memory_mb
    }

    pub(crate) fn count_dying_live(&mut self, dying: bool, memory_mb: u64) {
        if dying {
            self.dying_live += 1;
            self.dying_memory_mb += memory_mb;
        } else {
            self.dying_live -= 1;
            self.dying_memory_mb -= memory_mb;
        }
    }

    pub(crate) fn count_dying_entry(&mut self, dying: bool) {
        if dying {
            self.dying_entries += 1;
        } else {
            self.dying_entries -= 1;
        }
    }

    fn join(&mut self, seq: u64, applicant: Applicant) {
        self.queue.insert(seq, applicant);
        self.queued_entries += u32::from(applicant.needs_entry);
        self.queued_memory_mb += applicant.memory_mb;
    }

    fn leave(&mut self, seq: u64) -> Option<Applicant> {
        let applicant = self.queue.remove(&seq)?;
        self.queued_entries -= u32::from(applicant.needs_entry);
        self.queued_memory_mb -= applicant.memory_mb;
        Some(applicant)
    }

    pub(crate) fn dying(&self) -> (u32, u64, u32) {
        (self.dying_live, self.dying_memory_mb, self.dying_entries)
    }

    pub(crate) fn applicants(&self) -> impl DoubleEndedIterator<Item = (u64, &Applicant)> {
        self.queue.iter().map(|(seq, applicant)| (*seq, applicant))
    }
}

impl Kernel {
    /// Puts an applicant into the queue for a place.
    pub(crate) fn apply_for_place(&mut self, applicant: Applicant) -> u64 {
        let seq = self.minter.next_arrival();
        self.admission.join(seq, applicant);
        self.due.look_at_line();
        seq
    }

    pub(crate) fn withdraw_application(&mut self, seq: u64) {
        self.admission.leave(seq);
        self.due.look_at_line();
    }

    /// Whether one more instance fits right now, and no applicant waits.
    pub(crate) fn has_room_for(&self, memory_mb: u64) -> bool {
        !self.admission.has_applicants() && self.fits(true, memory_mb)
    }

    fn fits(&self, needs_entry: bool, memory_mb: u64) -> bool {
        let taken = &self.admission;
        taken.live < self.config.max_live
            && self
                .config
                .memory_budget_mb
                .is_none_or(|budget| taken.memory_mb + memory_mb <= budget)
            && (!needs_entry || self.entries.count() < self.config.max_sandboxes)
    }

    pub(crate) fn reserve_live(&mut self, entry: EntryIx) {
        self.entries[entry].place_reserved();
        if !self.flaws.leaves_live_uncounted() {
            self.admission.process_began(self.entries[entry].memory_mb());
        }
    }

    pub(crate) fn release_live(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        sandbox.place_released();
        let memory_mb = sandbox.memory_mb();
        self.settle(entry);
        if !self.flaws.leaves_live_uncounted() {
            self.admission.process_ended(memory_mb);
        }
        self.due.look_at_line();
    }

    /// Launches what fits, in order of arrival, and makes room for the rest.
    pub(crate) fn admit(&mut self) {
        while let Some((seq, applicant)) = self.admission.queue.first_key_value() {
            let (seq, applicant) = (*seq, *applicant);
            if !self.fits(applicant.needs_entry, applicant.memory_mb) {
                break;
            }
            self.admission.leave(seq);
            match applicant.who {
                ApplicantKind::Pool(pool) => self.place_for_pool(pool),
                ApplicantKind::Session(session) => self.place_for_session(session),
            }
        }
        self.make_room();
        if !self.admission.has_applicants() {
            for pool in self.due.take_starved() {
                if self.pools.get(pool).is_some() {
                    self.pool_due(pool);
                }
            }
        }
    }

    /// Chooses victims until their places are enough for all applicants, or no victim is left.
    pub(crate) fn make_room(&mut self) {
        // Each round ends one sandbox, so the number of sandboxes bounds the rounds.
        for _ in 0..=self.entries.len() {
            match self.shortage() {
                Some(shortage) if self.evict_one(shortage) => {}
                Some(_) | None => break,
            }
        }
    }

    /// What will still be short for the applicants when every termination has ended.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        let Admission { live, memory_mb, queue, .. } = &self.admission;
        let entries = self.entries.count();
        let (dying_live, dying_memory_mb, dying_entries) = self.admission.dying();
        let waiting = queue.len() as u32;
        if waiting == 0 {
            return None;
        }
        if entries - dying_entries + self.admission.queued_entries > self.config.max_sandboxes {
            return Some(Shortage::Entries);
        }
        if live.saturating_sub(dying_live) + waiting > self.config.max_live {
            return Some(Shortage::Processes);
        }
        let promised = memory_mb.saturating_sub(dying_memory_mb) + self.admission.queued_memory_mb;
        self.config
            .memory_budget_mb
            .is_some_and(|budget| promised > budget)
            .then_some(Shortage::Memory)
    }

    /// Whether an applicant will get its place from what is free or ending, after those ahead of
    /// it.
    pub(crate) fn is_covered(&self, seq: u64) -> bool {
        let taken = &self.admission;
        let (dying_live, dying_memory_mb, dying_entries) = taken.dying();
        // A sandbox launched for a refill can be evicted as soon as it is idle.
        let (spares, spare_memory_mb) = self.refill_launches();
        let mut live = taken.live.saturating_sub(dying_live + spares);
        let mut entries = (self.entries.count() - dying_entries).saturating_sub(spares);
        let mut memory_mb = taken.memory_mb.saturating_sub(dying_memory_mb + spare_memory_mb);
        for (_, ahead) in taken.queue.range(..=seq) {
            live += 1;
            entries += u32::from(ahead.needs_entry);
            memory_mb += ahead.memory_mb;
        }
        live <= self.config.max_live
            && entries <= self.config.max_sandboxes
            && self.config.memory_budget_mb.is_none_or(|budget| memory_mb <= budget)
    }

    /// Launches for a refill, and their memory.
    fn refill_launches(&self) -> (u32, u64) {
        self.pools.iter().fold((0, 0), |(count, memory_mb), (_, pool)| {
            let spares = pool.occupied.launching().saturating_sub(pool.expecting());
            let each_mb = u64::from(pool.template.limits.memory_mb);
            (count + spares, memory_mb + u64::from(spares) * each_mb)
        })
    }

    /// The refusal of a caller for whom no place is free or can be freed.
    pub(crate) fn capacity_exhausted(&self, shortage: Option<Shortage>) -> Refusal {
        let cause = match shortage {
            Some(shortage) => self.place_shortage(shortage),
            None => "no place was free in time".to_owned(),
        };
        Refusal::new(ErrorCode::CapacityExhausted, cause).retry_after(1_000)
    }

    /// Which setting leaves no place, and why no eviction helps.
    pub(crate) fn place_shortage(&self, shortage: Shortage) -> String {
        let limit = match shortage {
            Shortage::Entries => u64::from(self.config.max_sandboxes),
            Shortage::Processes => u64::from(self.config.max_live),
            Shortage::Memory => self.config.memory_budget_mb.unwrap_or(0),
        };
        let reached = shortage.in_words();
        format!("{reached} ({limit}), and no sandbox may be evicted: all are in use or held")
    }
}
