//! Turns: one at a time per session. The sandbox is `running` from the moment a turn is requested,
//! so nothing can take it away in between. A turn ends exactly once.

use std::sync::Arc;

use model::lifecycle::TurnOutcome;
use model::{EndCause, ErrorCode, LifecycleEvent, Mono, Refusal, RequestId, SessionId, TurnId};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::effect::Action;
use crate::entry::{EntryIx, OpKind, Phase};
use crate::event::{Outcome, WhenBusy};
use crate::reply::{Reply, SessionReady};
use crate::request::{RequestIx, WaitingFor};
use crate::session::{ControlKind, Queued, SessionIx, Stage, Turn};

impl Kernel {
    pub(crate) fn turn_requested(
        &mut self,
        request: RequestId,
        id: SessionId,
        turn: TurnId,
        when_busy: WhenBusy,
        wait_ms: Option<u64>,
    ) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        let session = self.session_by_id(id)?;
        self.refuse_when_ended(session)?;
        self.refuse_while_harness_held(session)?;
        let known = &mut self.sessions[session];
        if known.turn.as_ref().is_some_and(|t| t.id == turn)
            || known.queued.iter().any(|queued| queued.turn == turn)
        {
            let cause = format!("turn {turn} was sent already");
            return Err(Refusal::new(ErrorCode::IdConflict, cause));
        }
        let aborting =
            matches!(known.control.as_ref().map(|c| c.kind), Some(ControlKind::Abort { .. }));
        if known.turn.is_some() || aborting {
            return match when_busy {
                WhenBusy::Refuse => Err(Refusal::new(
                    ErrorCode::TurnInProgress,
                    "another turn of the session is in progress",
                )),
                WhenBusy::Queue if known.queued.len() >= self.config.max_queued_turns as usize => {
                    let cause = format!("{} turns are queued already", known.queued.len());
                    Err(Refusal::new(ErrorCode::TurnQueueFull, cause))
                }
                WhenBusy::Queue => {
                    known.queued.push_back(Queued { turn, client: Some(request) });
                    self.sessions.client_came(request, session);
                    self.mark_session(session);
                    Ok(Reply::TurnQueued { turn })
                }
            };
        }
        let req = self.wait_for_session(request, wait_ms, WaitingFor::Turn { session, turn });
        self.sessions.client_came(request, session);
        self.bind_turn(session, turn, Some(req), Some(request), wait_ms);
        Ok(Reply::Pending)
    }

    fn bind_turn(
        &mut self,
        session: SessionIx,
        id: TurnId,
        request: Option<RequestIx>,
        client: Option<RequestId>,
        wait_ms: Option<u64>,
    ) {
        let (place_by, deadline) = self.session_deadlines(wait_ms);
        let stage = Stage::Binding;
        let turn = Turn { id, request, client, stage, place_by, deadline, ready: None };
        self.sessions[session].turn = Some(turn);
        self.sessions[session].last_active_at = self.now.wall;
        let waits = place_by > self.now.mono;
        self.arm_session(session, if waits { place_by } else { deadline });
        if let Some(entry) = self.sessions[session].entry
            && self.entries[entry].phase() == Phase::InUse
        {
            let sandbox = &mut self.entries[entry];
            sandbox.holds.turn_bound();
            sandbox.clean.wanted();
            self.settle(entry);
        }
        self.mark_session(session);
        self.engage(session);
    }

    /// The sandbox is ready: gives the turn to the harness. Only this publishes the start of a
    /// turn, so it is committed before the harness can answer.
    pub(crate) fn start_turn(&mut self, session: SessionIx, entry: EntryIx, ready: SessionReady) {
        let known = &mut self.sessions[session];
        let Some(turn) = &mut known.turn else { return };
        turn.stage = Stage::Starting;
        turn.deadline = Mono::NEVER;
        turn.ready = Some(ready);
        let (session_id, turn) = (known.id, turn.id);
        if !self.flaws.publishes_start_late() {
            self.publish_turn_started(session, entry, turn);
        }
        let sandbox = &mut self.entries[entry];
        sandbox.holds.turn_bound();
        sandbox.clean.began_use();
        sandbox.files.write_began();
        let action = Action::StartTurn { instance: sandbox.instance, session: session_id, turn };
        self.begin(entry, OpKind::StartTurn, self.config.deadlines.turn_ms, action);
        self.mark(entry);
        self.settle(entry);
    }

    pub(crate) fn start_turn_ended(&mut self, entry: EntryIx, outcome: Outcome) {
        self.source_changed(entry);
        let Some(session) = self.entries[entry].session() else { return };
        let detail = match outcome {
            Outcome::Done => {
                self.turn_taken(session, entry);
                return;
            }
            Outcome::Failed(failure) => failure.detail,
            Outcome::TimedOut => Arc::from("the harness did not take the turn in time"),
        };
        self.died(entry, EndCause::TurnFailed, Some(detail));
    }

    fn publish_turn_started(&mut self, session: SessionIx, entry: EntryIx, turn: TurnId) {
        let (known, sandbox) = (&self.sessions[session], &self.entries[entry]);
        let event = LifecycleEvent::TurnStarted {
            session: known.id,
            turn,
            sandbox_id: sandbox.id,
            generation: sandbox.generation,
        };
        self.publish(known.settings.tenant, event);
    }

    /// The harness accepted the turn: answers the waiting client and starts the turn's time limit.
    pub(crate) fn turn_taken(&mut self, session: SessionIx, entry: EntryIx) {
        let now = self.now.mono;
        self.entries[entry].proven_at = now;
        let timeout_ms = self.entries[entry].template.turn_timeout_ms;
        let known = &mut self.sessions[session];
        let Some(turn) = &mut known.turn else { return };
        if turn.stage != Stage::Starting {
            return;
        }
        turn.stage = Stage::Running;
        turn.deadline = now.plus(timeout_ms);
        let (id, deadline, request) = (turn.id, turn.deadline, turn.request.take());
        let ready = turn.ready.take();
        if self.flaws.publishes_start_late() {
            self.publish_turn_started(session, entry, id);
        }
        if let (Some(req), Some(ready)) = (request, ready) {
            self.answer(req, Ok(Reply::TurnStarted(ready)));
        }
        self.arm_session(session, deadline);
    }

    /// Starts the next queued turn, unless an operation on the session is in progress.
    pub(crate) fn start_next_turn(&mut self, session: SessionIx) {
        let Some(known) = self.sessions.get_mut(session) else { return };
        if known.turn.is_some() || known.control.is_some() || self.shutdown.is_some() {
            return;
        }
        if let Some(Queued { turn, client }) = self.sessions[session].queued.pop_front() {
            self.bind_turn(session, turn, None, client, None);
        }
    }

    pub(crate) fn arm_session(&mut self, session: SessionIx, at: Mono) {
        let known = &mut self.sessions[session];
        self.alarms.at_latest(Ringer::Session(session), &mut known.alarm, at);
    }

    /// Looks at a session: first at its deadline, then at its turn and its files.
    pub(crate) fn session_rang(&mut self, session: SessionIx) {
        self.sessions[session].alarm = Mono::NEVER;
        self.meet_deadline(session);
        if self.sessions.get(session).is_some() {
            self.check_turn_time(session);
        }
    }

    /// Checks the time limit of a session's turn.
    fn check_turn_time(&mut self, session: SessionIx) {
        let Some(turn) = &self.sessions[session].turn else {
            self.prune_shelved_files(session);
            return;
        };
        let (stage, deadline) = (turn.stage, turn.deadline);
        if deadline == Mono::NEVER {
            return;
        }
        let lacks_place =
            stage == Stage::Binding && turn.place_by <= self.now.mono && self.lacks_place(session);
        if deadline > self.now.mono && !lacks_place {
            self.arm_session(session, deadline);
            return;
        }
        match stage {
            Stage::Binding => {
                let refusal = self.bind_overdue(session);
                self.finish_turn(session, TurnOutcome::NotStarted, Some(&refusal));
            }
            Stage::Running => self.stop_turn(session, TurnOutcome::TimedOut),
            Stage::Starting | Stage::Stopping(_) => {}
        }
    }
}
