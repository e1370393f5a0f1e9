//! How turns end: the harness reports it, a caller stops them, their sandbox ends, or they never
//! start. A turn ends exactly once, and what waited for that continues.

use model::lifecycle::TurnOutcome;
use model::{EndCause, ErrorCode, Mono, Refusal, SessionId, TerminatedReason, TurnId};

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{AfterEnd, EntryIx, Firmness, OpKind, Phase, Readiness};
use crate::event::Outcome;
use crate::removal::interrupted_use_refusal;
use crate::session::{ControlKind, SessionIx, Stage, Turn, UnpublishedEnd};

impl Kernel {
    /// The harness reports that a turn ended.
    pub(crate) fn turn_ended(&mut self, id: SessionId, turn: TurnId, outcome: TurnOutcome) {
        let Some(session) = self.sessions.by_id(id) else { return };
        let Some(current) = &self.sessions[session].turn else { return };
        let stage = current.stage;
        if current.id != turn || stage == Stage::Binding {
            return;
        }
        if let Some(entry) = self.sessions[session].entry {
            if stage == Stage::Starting {
                // The turn ended before the completion of the effect that started it.
                self.turn_taken(session, entry);
            }
            self.entries[entry].proven_at = self.now.mono;
            self.entries[entry].ops.cancel_turn();
        }
        let outcome = match stage {
            Stage::Stopping(decided) => decided,
            Stage::Binding | Stage::Starting | Stage::Running => outcome,
        };
        self.finish_turn(session, outcome, None);
    }

    /// Ends a turn: publishes its end, and continues what waited for that.
    pub(crate) fn finish_turn(
        &mut self,
        session: SessionIx,
        outcome: TurnOutcome,
        refusal: Option<&Refusal>,
    ) {
        let known = &mut self.sessions[session];
        let Some(turn) = known.turn.take() else { return };
        let binding = turn.stage == Stage::Binding;
        known.last_active_at = self.now.wall;
        if !binding && self.ends_with_sandbox(session, outcome) {
            let end = UnpublishedEnd { turn: turn.id, outcome };
            self.sessions[session].unpublished_end = Some(end);
        } else {
            self.publish_turn_ended(session, turn.id, outcome);
        }
        self.forget_turn_client(turn.client);
        if let Some(req) = turn.request {
            let refusal = refusal.cloned().unwrap_or_else(|| {
                Refusal::new(ErrorCode::Aborted, "the turn was called off before it started")
            });
            self.answer(req, Err(refusal));
        }
        self.mark_session(session);
        if let Some(entry) = self.sessions[session].entry
            && self.entries[entry].holds.finish_turn()
        {
            self.entries[entry].files.write_answered();
            if self.entries[entry].phase() == Phase::InUse {
                self.recompute_demand(entry);
                self.on_activity_ended(entry);
            }
        }
        if binding {
            self.session_unwanted(session);
        }
        self.continue_control(session);
        self.start_next_turn(session);
    }

    /// Whether the sandbox of a turn that is over ends too. The turn's followers must hear of that
    /// before the end of the turn, which is the last they hear.
    fn ends_with_sandbox(&self, session: SessionIx, outcome: TurnOutcome) -> bool {
        let known = &self.sessions[session];
        let Some(entry) = known.entry else { return false };
        let sandbox = &self.entries[entry];
        // A server that stops may be gone before the sandbox is.
        if outcome == TurnOutcome::Interrupted || sandbox.ready != Readiness::Ready {
            return false;
        }
        let is_left = match known.control.as_ref().map(|control| control.kind) {
            Some(
                ControlKind::Abort { keep_sandbox: false, .. }
                | ControlKind::Stop
                | ControlKind::Expire
                | ControlKind::End(_),
            ) => true,
            Some(
                ControlKind::Abort { keep_sandbox: true, .. }
                | ControlKind::Pause
                | ControlKind::Fork,
            )
            | None => false,
        };
        sandbox.is_live() && (is_left || sandbox.termination.is_some())
    }

    /// Publishes the end of a turn that waited for the end of its sandbox: the sandbox is gone, or
    /// stays, or cannot be removed for now.
    pub(crate) fn publish_waiting_end(&mut self, entry: EntryIx) {
        let Some(session) = self.entries[entry].session() else { return };
        let Some(end) = self.sessions[session].unpublished_end.take() else { return };
        self.publish_turn_ended(session, end.turn, end.outcome);
        self.mark_session(session);
    }

    /// Drops the turn of a session that is removed.
    pub(crate) fn drop_turn(&mut self, session: SessionIx, refusal: &Refusal) {
        let Some(turn) = self.sessions[session].turn.take() else { return };
        self.publish_turn_ended(session, turn.id, TurnOutcome::NotStarted);
        self.forget_turn_client(turn.client);
        if let Some(req) = turn.request {
            self.answer(req, Err(refusal.clone()));
        }
    }

    /// The session got no sandbox for a turn.
    pub(crate) fn turn_not_started(&mut self, session: SessionIx, refusal: &Refusal) {
        self.finish_turn(session, TurnOutcome::NotStarted, Some(refusal));
    }

    /// Stops the turn of a session, if there is one, however far it is.
    pub(crate) fn stop_any_turn(&mut self, session: SessionIx, refusal: &Refusal) {
        let Some(turn) = &self.sessions[session].turn else { return };
        let expired = self.sessions[session].leaves_at_deadline();
        let outcome = if expired { TurnOutcome::Expired } else { TurnOutcome::Aborted };
        match turn.stage {
            Stage::Binding => self.finish_turn(session, outcome, Some(refusal)),
            Stage::Starting | Stage::Running => self.stop_turn(session, outcome),
            Stage::Stopping(_) => {}
        }
    }

    /// Kills everything that a turn started.
    pub(crate) fn stop_turn(&mut self, session: SessionIx, outcome: TurnOutcome) {
        let known = &mut self.sessions[session];
        let (Some(entry), Some(turn)) = (known.entry, &mut known.turn) else { return };
        turn.stage = Stage::Stopping(outcome);
        turn.deadline = Mono::NEVER;
        let turn = turn.id;
        self.unquiesce_for_stop(entry);
        let action = Action::StopTurn { instance: self.entries[entry].instance, turn };
        self.begin(entry, OpKind::StopTurn, self.config.deadlines.turn_ms, action);
    }

    pub(crate) fn stop_turn_ended(&mut self, entry: EntryIx, outcome: &Outcome) {
        self.source_changed(entry);
        let Some(session) = self.entries[entry].session() else { return };
        let Some(Turn { stage: Stage::Stopping(decided), .. }) = self.sessions[session].turn else {
            return;
        };
        match outcome {
            Outcome::Done => {}
            Outcome::Failed(_) | Outcome::TimedOut => {
                // The turn may still run, so its sandbox must end.
                let cause = match decided {
                    TurnOutcome::Aborted => EndCause::UserAbort,
                    TurnOutcome::TimedOut => EndCause::TurnTimeout,
                    TurnOutcome::Interrupted => EndCause::Shutdown,
                    TurnOutcome::Expired => EndCause::DeadlineReached,
                    TurnOutcome::Completed
                    | TurnOutcome::Failed
                    | TurnOutcome::SandboxCrashed
                    | TurnOutcome::Oom
                    | TurnOutcome::DiskLimit
                    | TurnOutcome::NotStarted => EndCause::TurnFailed,
                };
                let after = match decided {
                    // Who aborted it does not meet this sandbox again.
                    TurnOutcome::Aborted => AfterEnd::Renamed,
                    TurnOutcome::TimedOut
                    | TurnOutcome::Interrupted
                    | TurnOutcome::Expired
                    | TurnOutcome::Completed
                    | TurnOutcome::Failed
                    | TurnOutcome::SandboxCrashed
                    | TurnOutcome::Oom
                    | TurnOutcome::DiskLimit
                    | TurnOutcome::NotStarted => AfterEnd::Cold,
                };
                self.end(entry, cause, after, Firmness::Firm);
            }
        }
        self.finish_turn(session, decided, None);
    }

    /// The sandbox of a session is being removed: ends the turn that ran in it.
    pub(crate) fn turn_broken(&mut self, session: SessionIx, cause: EndCause) {
        let Some(turn) = &self.sessions[session].turn else { return };
        let outcome = match turn.stage {
            // It has not started yet: it will start in another sandbox.
            Stage::Binding => return,
            Stage::Stopping(decided) => decided,
            Stage::Starting | Stage::Running => match cause.reason() {
                TerminatedReason::Crash | TerminatedReason::Replaced => TurnOutcome::SandboxCrashed,
                TerminatedReason::Oom => TurnOutcome::Oom,
                TerminatedReason::DiskLimit => TurnOutcome::DiskLimit,
                TerminatedReason::UserAbort | TerminatedReason::Deleted => TurnOutcome::Aborted,
                TerminatedReason::Expired if cause == EndCause::DeadlineReached => {
                    TurnOutcome::Expired
                }
                TerminatedReason::Idle
                | TerminatedReason::Expired
                | TerminatedReason::Evicted
                | TerminatedReason::Shutdown
                | TerminatedReason::Policy => TurnOutcome::Interrupted,
            },
        };
        self.finish_turn(session, outcome, Some(&interrupted_use_refusal(cause)));
    }
}
