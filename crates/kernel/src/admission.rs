//! Who may launch an instance, and when. A place is reserved before anything starts and released
//! when its removal is confirmed, each exactly once. Applicants without a place wait in a queue that
//! is fair between keys. Eviction makes room for them; it never makes room to refill a pool.

use std::collections::{BTreeMap, VecDeque};

use model::why::Shortage;
use model::{ErrorCode, KeyId, Refusal};

use crate::Kernel;
use crate::entry::EntryIx;
use crate::fair_queue::{FairQueue, Rank};
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
    /// Sessions that wait for a place.
    sessions: FairQueue<SessionApplicant>,
    /// What each pool wants to launch for its waiters, as the memory of each sandbox.
    pools: BTreeMap<PoolIx, VecDeque<u64>>,
    /// What all applicants want together.
    queued: Wanted,
}

/// A session that wants to launch an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionApplicant {
    session: SessionIx,
    needs_entry: bool,
    memory_mb: u64,
}

/// The applicant whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// A pool, for one of its waiters.
    Pool(PoolIx),
    /// A session, by its number in the order of arrival.
    Session(u64),
}

/// Places that applicants want.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Wanted {
    live: u32,
    entries: u32,
    memory_mb: u64,
}

impl Wanted {
    const fn one(needs_entry: bool, memory_mb: u64) -> Self {
        Self { live: 1, entries: needs_entry as u32, memory_mb }
    }

    const fn add(&mut self, other: Self) {
        self.live += other.live;
        self.entries += other.entries;
        self.memory_mb += other.memory_mb;
    }

    const fn subtract(&mut self, other: Self) {
        self.live -= other.live;
        self.entries -= other.entries;
        self.memory_mb -= other.memory_mb;
    }
}

impl SessionApplicant {
    const fn wanted(self) -> Wanted {
        Wanted::one(self.needs_entry, self.memory_mb)
    }
}

impl Admission {
    pub(crate) const fn has_applicants(&self) -> bool {
        self.queued.live > 0
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

    pub(crate) fn dying(&self) -> (u32, u64, u32) {
        (self.dying_live, self.dying_memory_mb, self.dying_entries)
    }

    /// A pool wants to launch one more sandbox for its waiters.
    fn pool_joins(&mut self, pool: PoolIx, memory_mb: u64) {
        self.pools.entry(pool).or_default().push_back(memory_mb);
        self.queued.add(Wanted::one(true, memory_mb));
    }

    /// A pool gets the place that it applied for first, or withdraws what it applied for last.
    fn pool_leaves(&mut self, pool: PoolIx, placed: bool) {
        let Some(wanted) = self.pools.get_mut(&pool) else { return };
        let left = if placed { wanted.pop_front() } else { wanted.pop_back() };
        if wanted.is_empty() {
            self.pools.remove(&pool);
        }
        if let Some(memory_mb) = left {
            self.queued.subtract(Wanted::one(true, memory_mb));
        }
    }

    /// How many sandboxes each pool waits to launch, for audits.
    pub(crate) fn applying(&self, pool: PoolIx) -> u32 {
        self.pools.get(&pool).map_or(0, |wanted| wanted.len() as u32)
    }

    /// The keys whose sessions wait.
    pub(crate) fn waiting_keys(&self) -> Vec<KeyId> {
        self.sessions.keys().collect()
    }

    /// The session of a key that came last.
    pub(crate) fn latest_of(&self, key: KeyId) -> Option<SessionIx> {
        self.sessions.last_of_key(key).map(|applicant| applicant.session)
    }

    /// The sessions in the queue, for audits.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (u64, KeyId, SessionIx, u64)> {
        self.sessions.iter().map(|(seq, key, it)| (seq, key, it.session, it.memory_mb))
    }
}

impl Kernel {
    /// Puts a session into the queue for a place.
    pub(crate) fn apply_for_place(
        &mut self,
        session: SessionIx,
        needs_entry: bool,
        memory_mb: u64,
    ) -> u64 {
        let seq = self.minter.next_arrival();
        let key = self.sessions[session].settings.tenant;
        let applicant = SessionApplicant { session, needs_entry, memory_mb };
        self.admission.sessions.insert(seq, key, applicant);
        self.admission.queued.add(applicant.wanted());
        self.keys.count(key, |key| key.waits(memory_mb));
        self.due.look_at_line();
        seq
    }

    /// A session leaves the queue: it gets its place, or no longer wants one.
    fn leave_place_queue(&mut self, seq: u64) -> Option<SessionIx> {
        let (key, applicant) = self.admission.sessions.remove(seq)?;
        self.admission.queued.subtract(applicant.wanted());
        self.keys.count(key, |key| key.waits_no_longer(applicant.memory_mb));
        Some(applicant.session)
    }

    pub(crate) fn withdraw_application(&mut self, seq: u64) {
        self.leave_place_queue(seq);
        self.due.look_at_line();
    }

    /// A pool applies for a place for one of its waiters.
    pub(crate) fn apply_for_pool(&mut self, pool: PoolIx) {
        let memory_mb = self.pools[pool].template.limits.memory_mb.into();
        self.pools[pool].occupied.applied();
        self.admission.pool_joins(pool, memory_mb);
        self.due.look_at_line();
    }

    pub(crate) fn withdraw_for_pool(&mut self, pool: PoolIx) {
        self.admission.pool_leaves(pool, false);
        self.pools[pool].occupied.withdrawn();
        self.due.look_at_line();
    }

    /// How many live sandboxes a key has, as a queue sees it.
    pub(crate) fn live_of_key(&self, key: KeyId) -> u32 {
        self.flaws.live_of_key(self.keys.live(key))
    }

    /// Whether one more instance fits right now, and no applicant waits.
    pub(crate) fn has_room_for(&self, memory_mb: u64) -> bool {
        !self.admission.has_applicants() && self.fits(true, memory_mb)
    }

    /// Whether the memory budget allows such a sandbox at all.
    pub(crate) fn can_ever_fit(&self, memory_mb: u64) -> bool {
        self.config.memory_budget_mb.is_none_or(|budget| memory_mb <= budget)
    }

    fn fits(&self, needs_entry: bool, memory_mb: u64) -> bool {
        match self.shortage_for(memory_mb) {
            None => true,
            Some(Shortage::Entries) => !needs_entry,
            Some(Shortage::Processes | Shortage::Memory | Shortage::KeyLimit) => false,
        }
    }

    /// What the node has too little of for one more sandbox; entries come last, because an instance
    /// that replaces another needs none.
    pub(crate) fn shortage_for(&self, memory_mb: u64) -> Option<Shortage> {
        let (taken, config) = (&self.admission, &self.config);
        if taken.live >= config.max_live {
            Some(Shortage::Processes)
        } else if config.memory_budget_mb.is_some_and(|budget| taken.memory_mb + memory_mb > budget)
        {
            Some(Shortage::Memory)
        } else if self.entries.count() >= config.max_sandboxes {
            Some(Shortage::Entries)
        } else {
            None
        }
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

    /// Launches what fits, in the order of the queue, and makes room for the rest.
    pub(crate) fn admit(&mut self) {
        self.enforce_limits_on_waiting();
        while let Some((next, wanted)) = self.next_applicant() {
            if !self.fits(wanted.entries > 0, wanted.memory_mb) {
                break;
            }
            match next {
                Next::Pool(pool) => {
                    self.admission.pool_leaves(pool, true);
                    self.place_for_pool(pool);
                }
                Next::Session(seq) => {
                    if let Some(session) = self.leave_place_queue(seq) {
                        self.place_for_session(session);
                    }
                }
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

    /// What is short for an applicant of a key that has fewer live sandboxes than the key of the
    /// next waiter of a pool. The idle sandboxes of that pool give way to it: otherwise a key with
    /// many waiters would keep the places of its pool for ever.
    pub(crate) fn shortage_ahead_of(&self, pool: PoolIx) -> Option<Shortage> {
        if !self.admission.has_applicants() {
            return None;
        }
        let shortage = self.shortage()?;
        let waiter = self.pools[pool].queue.first(|key| self.live_of_key(key))?;
        let (rank, next, _) = self.next_in_place_queue()?;
        let goes_first = next != Next::Pool(pool) && rank.live < waiter.live;
        (goes_first && !self.is_covered(rank)).then_some(shortage)
    }

    /// The applicant whose turn it is: of the key with the fewest live sandboxes, then the first.
    fn next_applicant(&self) -> Option<(Next, Wanted)> {
        self.next_in_place_queue().map(|(_, next, wanted)| (next, wanted))
    }

    fn next_in_place_queue(&self) -> Option<(Rank, Next, Wanted)> {
        let sessions = &self.admission.sessions;
        let first =
            sessions.first_of_keys().filter(|(key, ..)| self.has_room_within_limits(*key, 0, 0));
        let first = first.map(|(key, seq, _)| Rank { live: self.live_of_key(key), seq }).min();
        let session = first.and_then(|rank| {
            let applicant = sessions.get(rank.seq)?;
            Some((rank, Next::Session(rank.seq), applicant.wanted()))
        });
        let pools = self.admission.pools.iter().filter_map(|(pool, wanted)| {
            let rank = self.pool_ranks(*pool).next().unwrap_or(Rank::LAST);
            Some((rank, Next::Pool(*pool), Wanted::one(true, *wanted.front()?)))
        });
        pools.chain(session).min_by_key(|(rank, ..)| *rank)
    }

    /// The positions of a pool's waiters for which it applies for a place. The first waiters get
    /// what is being launched or cleaned already.
    fn pool_ranks(&self, pool: PoolIx) -> impl Iterator<Item = Rank> {
        let known = &self.pools[pool];
        let coming = known.occupied.launching() + known.occupied.cleaning();
        known.queue.order(|key| self.live_of_key(key)).skip(coming as usize)
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
        let Admission { live, memory_mb, queued, .. } = &self.admission;
        let entries = self.entries.count();
        let (dying_live, dying_memory_mb, dying_entries) = self.admission.dying();
        if queued.live == 0 {
            return None;
        }
        if entries - dying_entries + queued.entries > self.config.max_sandboxes {
            return Some(Shortage::Entries);
        }
        if live.saturating_sub(dying_live) + queued.live > self.config.max_live {
            return Some(Shortage::Processes);
        }
        let promised = memory_mb.saturating_sub(dying_memory_mb) + queued.memory_mb;
        self.config
            .memory_budget_mb
            .is_some_and(|budget| promised > budget)
            .then_some(Shortage::Memory)
    }

    /// Whether an applicant at this position will get its place from what is free or ending, after
    /// those ahead of it.
    pub(crate) fn is_covered(&self, rank: Rank) -> bool {
        let taken = &self.admission;
        let (dying_live, dying_memory_mb, dying_entries) = taken.dying();
        // A sandbox launched for a refill can be evicted as soon as it is idle.
        let (spares, spare_memory_mb) = self.refill_launches();
        let mut total = Wanted {
            live: taken.live.saturating_sub(dying_live + spares),
            entries: (self.entries.count() - dying_entries).saturating_sub(spares),
            memory_mb: taken.memory_mb.saturating_sub(dying_memory_mb + spare_memory_mb),
        };
        for ahead in taken.sessions.order(|key| self.live_of_key(key)) {
            if ahead <= rank
                && let Some(applicant) = taken.sessions.get(ahead.seq)
            {
                total.add(applicant.wanted());
            }
        }
        for (pool, wanted) in &taken.pools {
            for (ahead, memory_mb) in self.pool_ranks(*pool).zip(wanted) {
                if ahead <= rank {
                    total.add(Wanted::one(true, *memory_mb));
                }
            }
        }
        total.live <= self.config.max_live
            && total.entries <= self.config.max_sandboxes
            && self.config.memory_budget_mb.is_none_or(|budget| total.memory_mb <= budget)
    }

    /// Whether a session in the queue will get its place from what is free or ending.
    pub(crate) fn is_session_covered(&self, seq: u64) -> bool {
        let mut order = self.admission.sessions.order(|key| self.live_of_key(key));
        order.find(|rank| rank.seq == seq).is_some_and(|rank| self.is_covered(rank))
    }

    /// Whether a waiter of a pool will get a sandbox that is coming, or a place.
    pub(crate) fn is_waiter_covered(&self, pool: PoolIx, seq: u64) -> bool {
        let known = &self.pools[pool];
        let mut order = known.queue.order(|key| self.live_of_key(key)).enumerate();
        let Some((ahead, rank)) = order.find(|(_, rank)| rank.seq == seq) else { return false };
        let coming = known.occupied.launching() + known.occupied.cleaning();
        ahead < coming as usize || self.is_covered(rank)
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
            Shortage::KeyLimit => return shortage.in_words().to_owned(),
        };
        let reached = shortage.in_words();
        format!("{reached} ({limit}), and no sandbox may be evicted: all are in use or held")
    }
}
