//! Where a deliberate bug changes a decision. Without the feature `flaws` every answer is a
//! constant, so nothing of this is in the product. Each method stands for one decision and for one
//! [`Flaw`], which is listed there.

use model::{EndCause, ErrorCode, KeyId, Mono, Refusal, SandboxState};

use crate::entries::Entries;
use crate::entry::{Entry, EntryIx, Firmness, Phase, Step};
use crate::fair_queue::FairQueue;
use crate::lru_lists::LruList;
use crate::request::RequestIx;
use crate::session::SessionIx;
use crate::shares::Shares;
use crate::{Flaw, Kernel};

/// The bug that is in a kernel on purpose, if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flaws {
    #[cfg(feature = "flaws")]
    present: Option<Flaw>,
}

impl Flaws {
    #[cfg_attr(not(feature = "flaws"), expect(unused_variables, reason = "none is ever present"))]
    pub(crate) const fn new(present: Option<Flaw>) -> Self {
        Self {
            #[cfg(feature = "flaws")]
            present,
        }
    }

    /// Whether the kernel is broken in this way. Without the feature, never.
    #[cfg(feature = "flaws")]
    const fn has(self, flaw: Flaw) -> bool {
        match self.present {
            Some(present) => present as u8 == flaw as u8,
            None => false,
        }
    }

    #[cfg(not(feature = "flaws"))]
    #[expect(clippy::unused_self, reason = "with the feature, there may be one")]
    const fn has(self, _: Flaw) -> bool {
        false
    }
}

/// Flaws of places, launches and waiters.
impl Flaws {
    pub(crate) const fn leaves_live_uncounted(self) -> bool {
        self.has(Flaw::NoReservation)
    }

    pub(crate) const fn frees_slot_twice(self) -> bool {
        self.has(Flaw::SlotFreedTwice)
    }

    pub(crate) const fn launches_unwritten(self) -> bool {
        self.has(Flaw::UnwrittenLaunch)
    }

    pub(crate) const fn forgets_waiters(self) -> bool {
        self.has(Flaw::ReturnForgetsWaiters)
    }

    pub(crate) const fn ignores_deadlines(self) -> bool {
        self.has(Flaw::DeadlineIgnored)
    }

    pub(crate) const fn ignores_full_disk(self) -> bool {
        self.has(Flaw::FullDiskIgnored)
    }

    /// The waiter of a pool that is served next: the first of the key with the fewest sandboxes.
    pub(crate) fn next_waiter(
        self,
        queue: &FairQueue<RequestIx>,
        live: impl Fn(KeyId) -> u32,
    ) -> Option<u64> {
        if self.has(Flaw::LifoWaiters) {
            return queue.iter().next_back().map(|(seq, ..)| seq);
        }
        queue.first(|key| self.live_of_key(live(key))).map(|rank| rank.seq)
    }

    /// How many live sandboxes of a key count against it in a queue.
    pub(crate) const fn live_of_key(self, live: u32) -> u32 {
        if self.has(Flaw::QueueIgnoresShares) { 0 } else { live }
    }

    /// The shares that an eviction respects.
    pub(crate) const fn shares(self, shares: Shares) -> Shares {
        if self.has(Flaw::EvictionIgnoresShares) { shares.unlimited() } else { shares }
    }

    pub(crate) const fn ignores_key_limits(self) -> bool {
        self.has(Flaw::KeyLimitIgnored)
    }

    pub(crate) const fn ignores_session_deadlines(self) -> bool {
        self.has(Flaw::SessionDeadlineIgnored)
    }

    pub(crate) const fn counts_use_as_idle(self) -> bool {
        self.has(Flaw::UseCountsAsIdle)
    }

    /// How much time a sandbox must have left to be handed out.
    pub(crate) const fn margin_ms(self, margin_ms: u64) -> u64 {
        if self.has(Flaw::MarginIgnored) { 0 } else { margin_ms }
    }
}

/// Flaws of sandboxes in use, and after a use.
impl Flaws {
    pub(crate) const fn trusts_stale_proof(self) -> bool {
        self.has(Flaw::StaleProofTrusted)
    }

    pub(crate) const fn ignores_death(self) -> bool {
        self.has(Flaw::DeathIgnored)
    }

    pub(crate) const fn uses_frozen(self) -> bool {
        self.has(Flaw::FrozenNotThawed)
    }

    pub(crate) const fn shares_harness(self) -> bool {
        self.has(Flaw::HarnessShared)
    }

    pub(crate) const fn ignores_process_reads(self) -> bool {
        self.has(Flaw::ProcessReadsIgnored)
    }

    pub(crate) const fn stops_later_processes(self) -> bool {
        self.has(Flaw::StopTakesLaterProcesses)
    }

    pub(crate) const fn lets_process_time_run_frozen(self) -> bool {
        self.has(Flaw::TimeRunsInSleep)
    }

    pub(crate) const fn skips_wipe(self) -> bool {
        self.has(Flaw::WipeSkipped)
    }

    pub(crate) const fn reuses_id(self) -> bool {
        self.has(Flaw::IdReused)
    }

    pub(crate) const fn publishes_start_late(self) -> bool {
        self.has(Flaw::TurnStartPublishedLate)
    }

    /// Whether users do not see the change to this state.
    pub(crate) fn hides_waiting(self, to: SandboxState) -> bool {
        self.has(Flaw::WaitingHidden) && to == SandboxState::Waiting
    }

    /// The effect that a completion counts for.
    pub(crate) fn completed(self, n: u64, entry: &Entry) -> u64 {
        if self.has(Flaw::LateCompletionTrusted) { entry.ops.number().unwrap_or(n) } else { n }
    }

    /// A sandbox went back to its pool: the key of its last user may remain on it.
    pub(crate) const fn tenant_may_remain(self, entry: &mut Entry, last: KeyId) {
        if self.has(Flaw::TenantRemains) {
            entry.ownership.keep_tenant(last);
        }
    }
}

/// Flaws of processes whose programs fail.
impl Flaws {
    pub(crate) const fn leaves_restarts_uncounted(self) -> bool {
        self.has(Flaw::RestartsUncounted)
    }

    pub(crate) const fn forgets_stop_between_programs(self) -> bool {
        self.has(Flaw::StopForgotten)
    }

    pub(crate) const fn ends_process_twice(self) -> bool {
        self.has(Flaw::ProcessEndsTwice)
    }

    pub(crate) const fn drops_hold_in_pause(self) -> bool {
        self.has(Flaw::PauseDropsHold)
    }
}

/// Flaws of the end of sandboxes.
impl Flaws {
    pub(crate) const fn announces_twice(self) -> bool {
        self.has(Flaw::TerminatedTwice)
    }

    /// Whether the user of a sandbox is not notified of an end with this cause.
    pub(crate) fn hides_death(self, cause: EndCause) -> bool {
        self.has(Flaw::DeathUnreported) && cause == EndCause::Crash
    }

    pub(crate) const fn forgets_failed_kill(self) -> bool {
        self.has(Flaw::KillNotRetried)
    }

    pub(crate) const fn ends_victim_in_use(self) -> bool {
        self.has(Flaw::VictimNotVoided)
    }

    pub(crate) const fn ignores_workspace_limit(self) -> bool {
        self.has(Flaw::DiskLimitIgnored)
    }

    /// Whether the idle sweep ends a sandbox although something holds it.
    pub(crate) fn sweeps_held(self, entry: &Entry) -> bool {
        let up = entry.phase() == Phase::InUse && entry.termination.is_none();
        self.has(Flaw::SweepIgnoresHolds) && up
    }

    /// A running sandbox that is evicted although it runs.
    pub(crate) fn running_victim(self, entries: &Entries) -> Option<EntryIx> {
        if !self.has(Flaw::RunningEvicted) {
            return None;
        }
        let up = |entry: &Entry| entry.phase() == Phase::InUse && entry.termination.is_none();
        let running = |entry: &Entry| up(entry) && entry.state() == SandboxState::Running;
        entries.iter().find(|(_, entry)| running(entry)).map(|(victim, _)| victim)
    }

    /// The sandbox of a tier that is evicted first: the least recently used.
    pub(crate) const fn first_of(self, tier: &LruList) -> Option<EntryIx> {
        if self.has(Flaw::MruEviction) { tier.last() } else { tier.first() }
    }
}

/// Flaws of files.
impl Flaws {
    pub(crate) const fn skips_save(self) -> bool {
        self.has(Flaw::PersistSkipped)
    }

    pub(crate) const fn kills_after_failed_save(self) -> bool {
        self.has(Flaw::FailedPersistKills)
    }

    pub(crate) const fn counts_later_as_saved(self) -> bool {
        self.has(Flaw::SaveCoversLater)
    }

    pub(crate) const fn freezes_unsaved(self) -> bool {
        self.has(Flaw::FrozenUnsaved)
    }

    pub(crate) const fn gives_up_wanted(self) -> bool {
        self.has(Flaw::WantedGivenUp)
    }

    pub(crate) const fn deletes_files_at_limit(self) -> bool {
        self.has(Flaw::LimitDeletesFiles)
    }

    pub(crate) const fn copies_half_restored(self) -> bool {
        self.has(Flaw::HalfRestoredCopied)
    }

    /// Until when a sandbox stays quiesced.
    pub(crate) fn quiesced_until(self, until: Mono) -> Mono {
        if self.has(Flaw::QuiescedTooLong) { until.plus(1_000_000) } else { until }
    }

    pub(crate) const fn quiesces_mid_turn(self) -> bool {
        self.has(Flaw::QuiescedMidTurn)
    }

    pub(crate) const fn leaves_quiesced(self) -> bool {
        self.has(Flaw::LeftQuiesced)
    }

    pub(crate) const fn asks_frozen_guest(self) -> bool {
        self.has(Flaw::FrozenGuestAsked)
    }

    pub(crate) const fn hides_losses(self) -> bool {
        self.has(Flaw::SilentStateLoss)
    }

    pub(crate) const fn forgets_losses(self) -> bool {
        self.has(Flaw::LossForgotten)
    }
}

/// Broken decisions that a sound kernel never makes.
impl Kernel {
    /// A session that is getting a sandbox forgets it, and so gets another.
    pub(crate) fn flaw_gets_another_sandbox(&mut self, session: SessionIx, entry: EntryIx) {
        if self.flaws.has(Flaw::TwoSandboxesPerSession)
            && self.entries[entry].phase() == Phase::Launching
        {
            self.sessions[session].entry = None;
        }
    }

    /// A client that goes away keeps its slot, or the sandbox that is being bound to it.
    pub(crate) fn flaw_leaks_for_gone_client(&mut self, req: RequestIx) -> bool {
        if !self.flaws.has(Flaw::GoneClientLeaks) {
            return false;
        }
        let waiter = self.waiter(req);
        let (pool, seq) = (waiter.pool, waiter.seq);
        if waiter.entry.is_none() {
            self.pools[pool].occupied.slot_taken();
            self.leave_pool_queue(pool, seq);
            self.forget_request(req);
        }
        true
    }

    /// Programs that wait for a restart in a sandbox that ends are restarted all the same.
    pub(crate) fn flaw_restarts_waiting_programs(&mut self, entry: EntryIx) {
        if !self.flaws.has(Flaw::RestartInEndedSandbox) {
            return;
        }
        let processes = self.entries[entry].rare.as_ref().map(|rare| rare.processes.keys());
        for process in processes.into_iter().flatten().copied().collect::<Vec<_>>() {
            self.begin_restart(entry, process);
        }
    }

    /// A caller that wants the sandbox of a session is refused because it is quiesced.
    pub(crate) fn flaw_refuses_while_quiesced(&self, session: SessionIx) -> Result<(), Refusal> {
        let still = |entry: EntryIx| self.entries[entry].ops.is_quiescing();
        if self.flaws.has(Flaw::QuiesceRefuses) && self.sessions[session].entry.is_some_and(still) {
            return Err(Refusal::new(
                ErrorCode::SessionBusy,
                "the files of the sandbox are being copied",
            ));
        }
        Ok(())
    }

    /// A session ends and its files stay.
    pub(crate) fn flaw_ends_without_files(&mut self, session: SessionIx) -> bool {
        if !self.flaws.has(Flaw::EndedKeepsFiles) {
            return false;
        }
        let live = self.sessions[session].entry.filter(|entry| self.entries[*entry].is_live());
        match live {
            Some(entry) => {
                let after = self.after_leaving(entry);
                self.end(entry, EndCause::SessionEnded, after, Firmness::Firm);
            }
            None => self.leave_finished(session),
        }
        true
    }

    /// A restart puts the sandbox of a lease back into its pool.
    pub(crate) fn flaw_readopts(&mut self, entry: EntryIx) -> bool {
        if !self.flaws.has(Flaw::LeaseSurvivesRestart) {
            return false;
        }
        self.entries[entry].ownership.returned_to_pool();
        self.entries[entry].take(Step::Launch);
        self.put_idle(entry, Step::Warm);
        true
    }
}
