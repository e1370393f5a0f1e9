//! How effects begin, and what their completion means. A completion counts only if its effect is in
//! progress; late and repeated ones change nothing.

use std::sync::Arc;

use model::{EffectId, EndCause, Generation, InstanceId, Mono, SandboxId};

use crate::Kernel;
use crate::effect::{Action, Effect};
use crate::entry::{EntryIx, EntryOwner, Op, OpKind, Phase};
use crate::event::{DeathCause, Failure, FailureKind, Outcome};

impl Kernel {
    /// Begins an effect on a sandbox.
    pub(crate) fn begin(&mut self, entry: EntryIx, kind: OpKind, timeout_ms: u64, action: Action) {
        let n = self.minter.effect();
        let deadline = self.now.mono.plus(timeout_ms);
        let sandbox = &mut self.entries[entry];
        sandbox.ops.began(Op { n, kind, deadline });
        let id = EffectId { sandbox: sandbox.id, generation: sandbox.generation, n };
        self.out.effects.push(Effect { id, deadline, action });
        self.arm(entry, deadline);
    }

    /// Begins a wait that holds the lane of an effect on a sandbox.
    pub(crate) fn begin_wait(&mut self, entry: EntryIx, kind: OpKind, until: Mono) {
        let n = self.minter.effect();
        self.entries[entry].ops.began(Op { n, kind, deadline: until });
        self.arm(entry, until);
    }

    /// Sends an effect on a thing without a sandbox; the id of the thing names it.
    pub(crate) fn send_without_sandbox(
        &mut self,
        name: u128,
        n: u64,
        deadline: Mono,
        action: Action,
    ) {
        let id = EffectId { sandbox: SandboxId::from_u128(name), generation: Generation(0), n };
        self.out.effects.push(Effect { id, deadline, action });
    }

    pub(crate) fn effect_ended(&mut self, id: EffectId, outcome: Outcome) {
        if self.removal_effect_ended(id.n, &outcome) || self.shelved_archive_ended(id.n, &outcome) {
            return;
        }
        let Some(entry) = self.entries.by_id(id.sandbox) else { return };
        let n = self.flaws.completed(id.n, &self.entries[entry]);
        match self.entries[entry].ops.ended(n) {
            Some(kind) => self.op_ended(entry, kind, outcome),
            None => self.process_effect_ended(entry, n, &outcome),
        }
    }

    pub(crate) fn op_ended(&mut self, entry: EntryIx, kind: OpKind, outcome: Outcome) {
        if let Outcome::Failed(Failure { kind: FailureKind::Gone, detail }) = &outcome
            && let Some(cause) = kind.death()
        {
            let detail = Arc::clone(detail);
            self.died(entry, cause, Some(detail));
            return;
        }
        match kind {
            OpKind::Launch => self.launch_ended(entry, outcome),
            OpKind::Claim => self.claim_ended(entry, outcome),
            OpKind::Probe(attempt) => self.probe_ended(entry, attempt, outcome),
            OpKind::Wipe => self.wipe_ended(entry, &outcome),
            OpKind::Prove => self.prove_ended(entry, &outcome),
            OpKind::Freeze => self.freeze_ended(entry, outcome),
            OpKind::Thaw => self.thaw_ended(entry, outcome),
            OpKind::Quiesce => self.quiesce_ended(entry, &outcome),
            OpKind::Quiesced => self.unquiesce(entry, 1),
            OpKind::Unquiesce(attempt) => self.unquiesce_ended(entry, attempt, outcome),
            OpKind::StartTurn => self.start_turn_ended(entry, outcome),
            OpKind::StopTurn => self.stop_turn_ended(entry, &outcome),
            // The guest did not run in time.
            OpKind::AwaitGuest => self.save_ended(entry, Outcome::TimedOut),
            OpKind::Persist => self.save_ended(entry, outcome),
            OpKind::Kill => self.kill_ended(entry, &outcome),
            OpKind::AwaitSource => self.copy_from_source(entry),
            OpKind::Copy => self.copy_ended(entry, outcome),
            OpKind::Archive => self.archive_ended(entry, &outcome),
        }
    }

    /// A sandbox without a guest must not be handed out. The users of one that is in use learn of
    /// its end from its death, which has the cause.
    pub(crate) fn guest_lost(&mut self, instance: InstanceId) {
        let Some(entry) = self.entries.by_instance(instance) else { return };
        match self.entries[entry].phase() {
            Phase::Launching
            | Phase::Idle
            | Phase::Claiming(_)
            | Phase::Wiping
            | Phase::Proving => {
                self.died(entry, EndCause::Crash, Some("its guest ended".into()));
            }
            Phase::InUse => self.entries[entry].clean.guest_lost(),
            Phase::Cold | Phase::Killing => {}
        }
    }

    pub(crate) fn instance_died(
        &mut self,
        instance: InstanceId,
        cause: DeathCause,
        detail: Option<Arc<str>>,
    ) {
        if let Some(entry) = self.entries.by_instance(instance) {
            let cause = match cause {
                DeathCause::Crash => EndCause::Crash,
                DeathCause::Oom => EndCause::Oom,
            };
            let leased = matches!(self.entries[entry].owner(), EntryOwner::Lease(_));
            if leased && self.flaws.ignores_death() {
                return;
            }
            self.died(entry, cause, detail);
        }
    }
}

impl OpKind {
    /// The end cause if this effect found the instance gone; none if that means nothing for the
    /// sandbox.
    const fn death(self) -> Option<EndCause> {
        match self {
            Self::Claim
            | Self::Wipe
            | Self::Prove
            | Self::Freeze
            | Self::Thaw
            | Self::Quiesce
            | Self::Unquiesce(_)
            | Self::StartTurn
            | Self::StopTurn
            | Self::Persist => Some(EndCause::Crash),
            Self::Probe(_) => Some(EndCause::ProbeFailed),
            Self::Launch
            | Self::Quiesced
            | Self::AwaitGuest
            | Self::Kill
            | Self::AwaitSource
            | Self::Copy
            | Self::Archive => None,
        }
    }
}
