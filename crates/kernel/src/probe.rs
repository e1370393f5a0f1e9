//! Whether a sandbox that a session comes back to is alive. A probe has a deadline; one that is
//! certainly gone is given up at once, and one that cannot be reached is asked again before it is.

use std::sync::Arc;

use model::EndCause;

use crate::Kernel;
use crate::effect::Action;
use crate::entry::OpKind;
use crate::event::Outcome;
use crate::slab::Ix;

impl Kernel {
    /// Nothing was heard of it for a while.
    pub(crate) fn needs_probe(&self, ix: Ix) -> bool {
        self.now.mono.since(self.entries[ix].proven_at) > self.config.probe_fresh_ms
    }

    pub(crate) fn probe(&mut self, ix: Ix, attempt: u32) {
        let action = Action::Probe { instance: self.entries[ix].instance };
        self.begin(ix, OpKind::Probe(attempt), self.config.probe_timeout_ms, action);
    }

    pub(crate) fn probe_ended(&mut self, ix: Ix, attempt: u32, outcome: Outcome) {
        let detail = match outcome {
            Outcome::Done => {
                self.entries[ix].proven_at = self.now.mono;
                self.arm_quiet(ix);
                self.drive_entry(ix);
                return;
            }
            Outcome::Failed(failure) => failure.detail,
            Outcome::TimedOut => Arc::from("it did not answer in time"),
        };
        if attempt < self.config.probe_attempts {
            self.probe(ix, attempt + 1);
        } else {
            self.died(ix, EndCause::ProbeFailed, Some(detail));
        }
    }
}
