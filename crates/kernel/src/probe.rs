//! Probes a sandbox that its session comes back to. A probe has a deadline. A sandbox that is
//! certainly gone ends at once; one that cannot be reached is probed again first.

use std::sync::Arc;

use model::EndCause;

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{EntryIx, OpKind};
use crate::event::Outcome;

impl Kernel {
    /// Whether it has not answered for longer than `probe_fresh_ms`.
    pub(crate) fn needs_probe(&self, entry: EntryIx) -> bool {
        self.now.mono.since(self.entries[entry].proven_at) > self.config.probe_fresh_ms
    }

    pub(crate) fn probe(&mut self, entry: EntryIx, attempt: u32) {
        let action = Action::Probe { instance: self.entries[entry].instance };
        self.begin(entry, OpKind::Probe(attempt), self.config.probe_timeout_ms, action);
    }

    pub(crate) fn probe_ended(&mut self, entry: EntryIx, attempt: u32, outcome: Outcome) {
        let detail = match outcome {
            Outcome::Done => {
                self.entries[entry].proven_at = self.now.mono;
                self.arm_freeze_and_sweep(entry);
                self.drive_entry(entry);
                return;
            }
            Outcome::Failed(failure) => failure.detail,
            Outcome::TimedOut => Arc::from("the sandbox did not answer in time"),
        };
        if attempt < self.config.probe_attempts {
            self.probe(entry, attempt + 1);
        } else {
            self.died(entry, EndCause::ProbeFailed, Some(detail));
        }
    }
}
