//! Turns: one at a time per session. The sandbox is `running` from the moment a turn is asked for,
//! so that nothing can take it away in between; a turn ends exactly once, whatever ends it.

use std::sync::Arc;

use model::lifecycle::TurnOutcome;
use model::record::OnDisconnect;
use model::{
    EndCause, ErrorCode, LifecycleEvent, Mono, Refusal, RequestId, SessionId, TerminatedReason,
    TurnId,
};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::effect::Action;
use crate::entry::{After, EntryIx, OpKind, Phase, Resolve};
use crate::event::{Outcome, WhenBusy};
use crate::removal::broken;
use crate::reply::{Reply, SessionReady};
use crate::request::{RequestIx, Waiting};
use crate::session::{ControlKind, Queued, SessionIx, Stage, Turn};

impl Kernel {
    pub(crate) fn turn_requested(
        &mut self,
        request: RequestId,
        id: SessionId,
        turn: TurnId,
        when_busy: WhenBusy,
    ) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        let session = self.session_by_id(id)?;
        self.refuse_when_over(session)?;
        self.refuse_while_held(session)?;
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
        let deadline = self.now.mono.plus(self.config.bind_timeout_ms);
        let req = self.wait(request, deadline, Waiting::Turn { session, turn });
        self.arm_request(req);
        self.sessions.client_came(request, session);
        self.bind_turn(session, turn, Some(req), Some(request));
        Ok(Reply::Pending)
    }

    fn bind_turn(
        &mut self,
        session: SessionIx,
        id: TurnId,
        request: Option<RequestIx>,
        client: Option<RequestId>,
    ) {
        let deadline = self.now.mono.plus(self.config.bind_timeout_ms);
        let turn = Turn { id, request, client, stage: Stage::Binding, deadline, ready: None };
        self.sessions[session].turn = Some(turn);
        self.sessions[session].last_active_at = self.now.wall;
        self.arm_session(session, deadline);
        if let Some(entry) = self.sessions[session].entry
            && self.entries[entry].phase == Phase::InUse
        {
            let sandbox = &mut self.entries[entry];
            sandbox.holds.turn_bound();
            sandbox.clean.wanted();
            self.settle(entry);
        }
        self.mark_session(session);
        self.engage(session);
    }

    /// The sandbox is ready: the turn is given to the harness.
    pub(crate) fn start_turn(&mut self, session: SessionIx, entry: EntryIx, ready: SessionReady) {
        let known = &mut self.sessions[session];
        let Some(turn) = &mut known.turn else { return };
        turn.stage = Stage::Starting;
        turn.deadline = Mono::NEVER;
        turn.ready = Some(ready);
        let (session_id, turn) = (known.id, turn.id);
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
        let Some(session) = self.entries[entry].session() else { return };
        let detail = match outcome {
            Outcome::Done => {
                self.turn_started(session, entry);
                return;
            }
            Outcome::Failed(failure) => failure.detail,
            Outcome::TimedOut => Arc::from("the harness did not take the turn in time"),
        };
        self.died(entry, EndCause::TurnFailed, Some(detail));
    }

    fn turn_started(&mut self, session: SessionIx, entry: EntryIx) {
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
        let sandbox = &self.entries[entry];
        let event = LifecycleEvent::TurnStarted {
            session: known.id,
            turn: id,
            sandbox_id: sandbox.id,
            generation: sandbox.generation,
        };
        let tenant = known.settings.tenant;
        self.publish(tenant, event);
        if let (Some(req), Some(ready)) = (request, ready) {
            self.answer(req, Ok(Reply::TurnStarted(ready)));
        }
        self.arm_session(session, deadline);
    }

    pub(crate) fn turn_withdrawn(&mut self, id: SessionId, turn: TurnId) {
        let Some(session) = self.sessions.by_id(id) else { return };
        let known = &mut self.sessions[session];
        if known.turn.as_ref().is_some_and(|current| current.id == turn) {
            let refusal = Refusal::new(ErrorCode::Aborted, "the message was withdrawn");
            self.stop_any_turn(session, &refusal);
        } else if let Some(at) = known.queued.iter().position(|queued| queued.turn == turn) {
            self.drop_queued_turn(session, at);
        }
    }

    /// A turn that waits is called off before its time.
    fn drop_queued_turn(&mut self, session: SessionIx, at: usize) {
        let Some(queued) = self.sessions[session].queued.remove(at) else { return };
        self.forget_turn_client(queued.client);
        self.publish_turn_ended(session, queued.turn, TurnOutcome::Aborted);
        self.mark_session(session);
    }

    pub(crate) fn forget_turn_client(&mut self, client: Option<RequestId>) {
        if let Some(client) = client {
            self.sessions.client_left(client);
        }
    }

    /// The harness says that a turn is over.
    pub(crate) fn turn_ended(&mut self, id: SessionId, turn: TurnId, outcome: TurnOutcome) {
        let Some(session) = self.sessions.by_id(id) else { return };
        let Some(current) = &self.sessions[session].turn else { return };
        let stage = current.stage;
        if current.id != turn || stage == Stage::Binding {
            return;
        }
        if let Some(entry) = self.sessions[session].entry {
            if stage == Stage::Starting {
                // It was so quick that its end was heard of before its start.
                self.turn_started(session, entry);
            }
            self.entries[entry].proven_at = self.now.mono;
            self.entries[entry].ops.call_off_turn();
        }
        let outcome = match stage {
            Stage::Stopping(decided) => decided,
            Stage::Binding | Stage::Starting | Stage::Running => outcome,
        };
        self.turn_over(session, outcome, None);
    }

    /// A turn is over: it is told, the sandbox rests, and whatever waited for that goes on.
    fn turn_over(&mut self, session: SessionIx, outcome: TurnOutcome, refusal: Option<&Refusal>) {
        let known = &mut self.sessions[session];
        let Some(turn) = known.turn.take() else { return };
        let binding = turn.stage == Stage::Binding;
        known.last_active_at = self.now.wall;
        self.publish_turn_ended(session, turn.id, outcome);
        self.forget_turn_client(turn.client);
        if let Some(req) = turn.request {
            let refusal = refusal.cloned().unwrap_or_else(|| {
                Refusal::new(ErrorCode::Aborted, "the turn was called off before it started")
            });
            self.answer(req, Err(refusal));
        }
        self.mark_session(session);
        if let Some(entry) = self.sessions[session].entry
            && self.entries[entry].holds.turn_over()
        {
            self.entries[entry].files.write_answered();
            if self.entries[entry].phase == Phase::InUse {
                self.repin(entry);
                self.came_to_rest(entry);
            }
        }
        if binding {
            self.session_unwanted(session);
        }
        self.continue_control(session);
        self.start_next_turn(session);
    }

    /// The session of a turn is gone.
    pub(crate) fn drop_turn(&mut self, session: SessionIx, refusal: &Refusal) {
        let Some(turn) = self.sessions[session].turn.take() else { return };
        self.publish_turn_ended(session, turn.id, TurnOutcome::NotStarted);
        self.forget_turn_client(turn.client);
        if let Some(req) = turn.request {
            self.answer(req, Err(refusal.clone()));
        }
    }

    /// Starts the next turn that waits, unless the session is doing something else.
    pub(crate) fn start_next_turn(&mut self, session: SessionIx) {
        let Some(known) = self.sessions.get_mut(session) else { return };
        if known.turn.is_some() || known.control.is_some() || self.shutdown.is_some() {
            return;
        }
        if let Some(Queued { turn, client }) = self.sessions[session].queued.pop_front() {
            self.bind_turn(session, turn, None, client);
        }
    }

    /// No sandbox could be had for a turn.
    pub(crate) fn turn_not_started(&mut self, session: SessionIx, refusal: &Refusal) {
        self.turn_over(session, TurnOutcome::NotStarted, Some(refusal));
    }

    /// Stops the turn of a session, if there is one, however far it is.
    pub(crate) fn stop_any_turn(&mut self, session: SessionIx, refusal: &Refusal) {
        let Some(turn) = &self.sessions[session].turn else { return };
        match turn.stage {
            Stage::Binding => self.turn_over(session, TurnOutcome::Aborted, Some(refusal)),
            Stage::Starting | Stage::Running => self.stop_turn(session, TurnOutcome::Aborted),
            Stage::Stopping(_) => {}
        }
    }

    /// Has everything killed that a turn started.
    pub(crate) fn stop_turn(&mut self, session: SessionIx, outcome: TurnOutcome) {
        let known = &mut self.sessions[session];
        let (Some(entry), Some(turn)) = (known.entry, &mut known.turn) else { return };
        turn.stage = Stage::Stopping(outcome);
        turn.deadline = Mono::NEVER;
        let turn = turn.id;
        let action = Action::StopTurn { instance: self.entries[entry].instance, turn };
        self.begin(entry, OpKind::StopTurn, self.config.deadlines.turn_ms, action);
    }

    pub(crate) fn stop_turn_ended(&mut self, entry: EntryIx, outcome: &Outcome) {
        let Some(session) = self.entries[entry].session() else { return };
        let Some(Turn { stage: Stage::Stopping(decided), .. }) = self.sessions[session].turn else {
            return;
        };
        match outcome {
            Outcome::Done => {}
            Outcome::Failed(_) | Outcome::TimedOut => {
                // It may go on by itself, so its sandbox must end.
                let cause = match decided {
                    TurnOutcome::Aborted => EndCause::UserAbort,
                    TurnOutcome::TimedOut => EndCause::TurnTimeout,
                    TurnOutcome::Interrupted => EndCause::Shutdown,
                    TurnOutcome::Completed
                    | TurnOutcome::Failed
                    | TurnOutcome::SandboxCrashed
                    | TurnOutcome::Oom
                    | TurnOutcome::DiskLimit
                    | TurnOutcome::NotStarted => EndCause::TurnFailed,
                };
                self.end(entry, cause, After::Cold, Resolve::Firm);
            }
        }
        self.turn_over(session, decided, None);
    }

    /// The sandbox of a session is being removed, so what ran in it is over.
    pub(crate) fn turn_broken(&mut self, session: SessionIx, cause: EndCause) {
        let Some(turn) = &self.sessions[session].turn else { return };
        let outcome = match turn.stage {
            // It has not started: it will, in another sandbox.
            Stage::Binding => return,
            Stage::Stopping(decided) => decided,
            Stage::Starting | Stage::Running => match cause.reason() {
                TerminatedReason::Crash | TerminatedReason::Replaced => TurnOutcome::SandboxCrashed,
                TerminatedReason::Oom => TurnOutcome::Oom,
                TerminatedReason::DiskLimit => TurnOutcome::DiskLimit,
                TerminatedReason::UserAbort | TerminatedReason::Deleted => TurnOutcome::Aborted,
                TerminatedReason::Idle
                | TerminatedReason::Expired
                | TerminatedReason::Evicted
                | TerminatedReason::Shutdown
                | TerminatedReason::Policy => TurnOutcome::Interrupted,
            },
        };
        self.turn_over(session, outcome, Some(&broken(cause)));
    }

    /// The request that waits for a turn to start is over: its client went away, or waits no more.
    pub(crate) fn turn_client_gone(&mut self, session: SessionIx, turn: TurnId, refusal: &Refusal) {
        let Some(current) = &mut self.sessions[session].turn else { return };
        if current.id != turn {
            return;
        }
        current.request = None;
        if refusal.code == ErrorCode::ClientGone {
            self.running_client_lost(session);
        } else if current.stage == Stage::Binding {
            self.turn_over(session, TurnOutcome::NotStarted, None);
        }
    }

    /// The client of a turn went away, which is in progress or waits for others.
    pub(crate) fn turn_client_lost(&mut self, session: SessionIx, client: RequestId) {
        let queued = &self.sessions[session].queued;
        let Some(at) = queued.iter().position(|queued| queued.client == Some(client)) else {
            self.running_client_lost(session);
            return;
        };
        match self.sessions[session].settings.on_disconnect {
            OnDisconnect::Continue => {
                self.sessions[session].queued[at].client = None;
                self.forget_turn_client(Some(client));
            }
            OnDisconnect::Abort => self.drop_queued_turn(session, at),
        }
    }

    /// Nobody follows a turn any more: it goes on, or is aborted if its session wants that.
    fn running_client_lost(&mut self, session: SessionIx) {
        let Some(turn) = &mut self.sessions[session].turn else { return };
        let client = turn.client.take();
        self.forget_turn_client(client);
        match self.sessions[session].settings.on_disconnect {
            OnDisconnect::Continue => {}
            OnDisconnect::Abort => self.abort_turn(session, false),
        }
    }

    pub(crate) fn arm_session(&mut self, session: SessionIx, at: Mono) {
        let known = &mut self.sessions[session];
        self.alarms.at_latest(Ringer::Session(session), &mut known.alarm, at);
    }

    /// Looks at the time that a session's turn takes.
    pub(crate) fn session_rang(&mut self, session: SessionIx) {
        self.sessions[session].alarm = Mono::NEVER;
        let Some(turn) = &self.sessions[session].turn else {
            self.prune_shelf(session);
            return;
        };
        let (stage, deadline) = (turn.stage, turn.deadline);
        if deadline == Mono::NEVER {
            return;
        }
        if deadline > self.now.mono {
            self.arm_session(session, deadline);
            return;
        }
        match stage {
            Stage::Binding => {
                let refusal = self.bind_overdue(session);
                self.turn_over(session, TurnOutcome::NotStarted, Some(&refusal));
            }
            Stage::Running => self.stop_turn(session, TurnOutcome::TimedOut),
            Stage::Starting | Stage::Stopping(_) => {}
        }
    }
}
