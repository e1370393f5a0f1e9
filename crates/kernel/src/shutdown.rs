//! Stopping in order: no new work, no sweep and no refill; what runs may finish within the grace
//! period; files are saved and everything is removed. Only then does the kernel report that the
//! server may exit.

use model::lifecycle::TurnOutcome;
use model::{EndCause, ErrorCode, Mono, Refusal};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::effect::Notice;
use crate::entry::{AfterEnd, EntryIx, EntryOwner, Firmness, Phase};
use crate::session::Stage;

/// A shutdown in progress.
#[derive(Debug)]
pub(crate) struct Shutdown {
    grace_until: Mono,
    grace_ended: bool,
    complete: bool,
    alarm: Mono,
}

impl Kernel {
    pub(crate) fn shutdown_began(&mut self, grace_ms: u64) {
        let grace_until = self.now.mono.plus(grace_ms);
        if let Some(shutdown) = &mut self.shutdown {
            // A second request may shorten the grace period, never extend it.
            if grace_until < shutdown.grace_until {
                shutdown.grace_until = grace_until;
                self.alarms.at_latest(Ringer::Shutdown, &mut shutdown.alarm, grace_until);
            }
            return;
        }
        let mut shutdown =
            Shutdown { grace_until, grace_ended: false, complete: false, alarm: Mono::NEVER };
        self.alarms.at_latest(Ringer::Shutdown, &mut shutdown.alarm, grace_until);
        self.shutdown = Some(shutdown);
        for pool in self.pools.indices() {
            self.pool_due(pool);
        }
        for session in self.sessions.indices() {
            if self.sessions.get(session).is_some() {
                self.drop_queued_turns(session);
                self.fail_wants(session, &stopping());
            }
        }
        self.end_inactive_sandboxes();
    }

    pub(crate) fn shutdown_grace_ended(&mut self) {
        let Some(shutdown) = &mut self.shutdown else { return };
        shutdown.alarm = Mono::NEVER;
        if self.now.mono < shutdown.grace_until {
            let at = shutdown.grace_until;
            self.alarms.at_latest(Ringer::Shutdown, &mut shutdown.alarm, at);
            return;
        }
        shutdown.grace_ended = true;
        for session in self.sessions.indices() {
            let Some(turn) = &self.sessions[session].turn else { continue };
            if matches!(turn.stage, Stage::Starting | Stage::Running) {
                self.stop_turn(session, TurnOutcome::Interrupted);
            }
        }
        self.end_inactive_sandboxes();
    }

    fn end_inactive_sandboxes(&mut self) {
        for entry in self.entries.indices() {
            if self.entries.get(entry).is_some() {
                self.end_if_stopping(entry);
            }
        }
    }

    /// Ends a sandbox if the server is stopping and it has no activity, or the grace period has
    /// ended.
    pub(crate) fn end_if_stopping(&mut self, entry: EntryIx) {
        let Some(shutdown) = &self.shutdown else { return };
        let sandbox = &self.entries[entry];
        if !sandbox.is_live() || (!sandbox.is_quiet() && !shutdown.grace_ended) {
            return;
        }
        let cause = EndCause::Shutdown;
        match (sandbox.phase(), sandbox.owner()) {
            // A turn that is being stopped must end first.
            (Phase::InUse, EntryOwner::Session(_)) if sandbox.holds.has_turn() => {}
            (Phase::InUse, EntryOwner::Session(_)) => {
                self.end(entry, cause, AfterEnd::Cold, Firmness::Firm);
            }
            (Phase::Launching, EntryOwner::Session(_)) if sandbox.files.has_files() => {
                self.end(entry, cause, AfterEnd::Cold, Firmness::Now);
            }
            (
                Phase::InUse
                | Phase::Launching
                | Phase::Claiming(_)
                | Phase::Idle
                | Phase::Wiping
                | Phase::Proving,
                _,
            ) => self.end(entry, cause, AfterEnd::Gone, Firmness::Now),
            (Phase::Cold | Phase::Killing, _) => {}
        }
    }

    /// Reports, once, that nothing is left.
    pub(crate) fn finish_shutdown(&mut self) {
        let nothing_left = self.admission.live() == 0 && self.pending_removals.orphans() == 0;
        if let Some(shutdown) = &mut self.shutdown
            && !shutdown.complete
            && nothing_left
        {
            shutdown.complete = true;
            self.alarms.clear(Ringer::Shutdown, &mut shutdown.alarm);
            self.out.notices.push(Notice::ShutdownComplete);
        }
    }

    /// Whether the server was asked to stop.
    pub const fn is_stopping(&self) -> bool {
        self.shutdown.is_some()
    }

    pub(crate) fn refuse_when_stopping(&self) -> Result<(), Refusal> {
        if self.shutdown.is_some() { Err(stopping()) } else { Ok(()) }
    }
}

/// The refusal of a caller while the server stops.
pub(crate) fn stopping() -> Refusal {
    Refusal::new(ErrorCode::ShuttingDown, "the server is stopping").retry_after(5_000)
}
