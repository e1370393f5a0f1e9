//! When an idle sandbox is frozen, and when the idle sweep makes it cold. A sandbox that is in use,
//! about to be used, or kept alive is never frozen or swept.

use model::{EndCause, ErrorCode, Mono, Refusal, SandboxId};

use crate::Kernel;
use crate::deletion::sandbox_unknown;
use crate::entry::{AfterEnd, Entry, EntryIx, EntryOwner, Firmness, Phase};

impl Kernel {
    /// When a sandbox will be frozen, if there is no activity before.
    pub(crate) fn freezes_at(&self, entry: EntryIx) -> Option<Mono> {
        let sandbox = &self.entries[entry];
        if !sandbox.may_freeze() {
            return None;
        }
        let after_ms = sandbox.template.freeze_after_ms.unwrap_or(self.config.freeze_after_ms);
        let mut quiet = if sandbox.file_access.freezes_again() {
            self.now.mono
        } else {
            sandbox.last_used.mono.plus(after_ms)
        };
        if self.must_save_first(sandbox) {
            // A save failed lately: the next attempt is then.
            quiet = quiet.max(sandbox.spared_until);
        }
        Some(sandbox.kills_until().map_or(quiet, |until| quiet.max(until)))
    }

    /// When the idle sweep will make a sandbox cold, if there is no activity before. Sweeps happen
    /// at fixed times.
    pub(crate) fn sleeps_at(&self, entry: EntryIx) -> Option<Mono> {
        let sandbox = &self.entries[entry];
        let session = sandbox.session()?;
        let may_go = sandbox.tier(self.now.mono).is_some() || self.flaws.sweeps_held(sandbox);
        if self.shutdown.is_some() || !may_go {
            return None;
        }
        if sandbox.phase() == Phase::Cold {
            return None;
        }
        let idle_ms = self.sessions[session]
            .settings
            .idle_timeout_ms
            .or(sandbox.template.idle_timeout_ms)
            .unwrap_or(self.config.idle_timeout_ms);
        let interval_ms = self.config.sweep_interval_ms;
        let due = sandbox.last_used.mono.plus(idle_ms);
        Some(Mono(due.0.div_ceil(interval_ms).saturating_mul(interval_ms)))
    }

    /// Sets the alarm for the next freeze or sweep of an idle sandbox.
    pub(crate) fn arm_freeze_and_sweep(&mut self, entry: EntryIx) {
        let at = match (self.freezes_at(entry), self.sleeps_at(entry)) {
            (Some(freezes), Some(sleeps)) => freezes.min(sleeps),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return,
        };
        self.arm(entry, at);
    }

    /// The idle sweep: makes a sandbox cold that was idle for too long.
    pub(crate) fn sweep(&mut self, entry: EntryIx) {
        if self.sleeps_at(entry).is_some_and(|at| at <= self.now.mono) {
            self.end(entry, EndCause::Idle, AfterEnd::Cold, Firmness::Voidable);
        }
    }

    pub(crate) fn freeze_if_quiet(&mut self, entry: EntryIx) {
        if self.freezes_at(entry).is_none_or(|at| at > self.now.mono) {
            return;
        }
        if self.must_save_first(&self.entries[entry]) {
            self.save(entry);
        } else {
            self.freeze(entry);
        }
    }

    /// Whether its files must be saved before a freeze: they are only in its processes' memory, and
    /// a frozen sandbox cannot save them.
    pub(crate) fn must_save_first(&self, entry: &Entry) -> bool {
        entry.has_unsaved_files() && !self.flaws.freezes_unsaved()
    }

    /// The live sandbox of a lease or a session, by its id.
    pub(crate) fn usable(&self, sandbox: SandboxId) -> Result<EntryIx, Refusal> {
        let Some(entry) = self.entries.by_id(sandbox) else {
            return Err(match self.tombstones.of_sandbox(sandbox) {
                Some(ended) => Refusal::sandbox_ended(ended),
                None => sandbox_unknown(sandbox),
            });
        };
        let known = &self.entries[entry];
        match (known.phase(), known.owner()) {
            (Phase::InUse, EntryOwner::Lease(_) | EntryOwner::Session(_)) => Ok(entry),
            (Phase::Killing, _) => {
                let cause = known.end_cause();
                Err(crate::removal::gone(cause))
            }
            (Phase::Wiping | Phase::Proving, _) => Err(crate::removal::gone(EndCause::Returned)),
            (Phase::Cold, _) => {
                let cause = known.slept.unwrap_or(EndCause::Idle);
                Err(crate::removal::gone(cause))
            }
            (Phase::Launching | Phase::Idle | Phase::Claiming(_) | Phase::InUse, _) => {
                let cause = "the sandbox is not under a lease or session";
                Err(Refusal::new(ErrorCode::NotLeased, cause))
            }
        }
    }
}
