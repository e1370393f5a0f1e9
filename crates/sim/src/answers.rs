//! Delivers answers to clients: checks that each fits its request, records what the client knows
//! now, and lets the client continue.

use kernel::{CheckedOut, CheckoutPath, Event, Grant, Loss, Reply, SessionReady};
use model::record::Owner;
use model::{ErrorCode, InstanceId, Refusal, RequestId, SessionId, UseId};

use crate::checks::{self, Judged, Promise, broken, holds};
use crate::interpreter::Item;
use crate::ledger::{Ask, Expect, LeasePhase, OpenUse, Pending};
use crate::world::World;
use kernel::{UseKind, UseTarget};

impl World {
    /// A request has its answer.
    pub(crate) fn answered(
        &mut self,
        request: RequestId,
        result: Result<Reply, Refusal>,
    ) -> Judged {
        let Some(pending) = self.ledger.close(request) else {
            let gone = self.watch.gone.remove(&request);
            let gives = matches!(result, Ok(Reply::CheckedOut(_) | Reply::Granted(_)));
            if gone && !gives {
                return Ok(());
            }
            return broken(Promise::OneAnswer, || format!("{request:?} also got {result:?}"));
        };
        match result {
            Ok(reply) => self.accepted(request, pending, reply),
            Err(refusal) => {
                self.coverage.count("refusals", refusal.code.as_str());
                self.refused(&pending, &refusal)
            }
        }
    }

    fn refused(&mut self, pending: &Pending, refusal: &Refusal) -> Judged {
        if refusal.code == ErrorCode::SessionEnded
            && let Some(over) = pending.ask.session()
        {
            self.ledger.open_sessions.retain(|open| *open != over);
        }
        match &pending.ask {
            Ask::Checkout { lease, .. } => self.ledger.drop_lease(*lease, LeasePhase::Lost),
            Ask::Turn { turn, .. } => {
                self.ledger.asked_turns.remove(turn);
            }
            Ask::Create { session } | Ask::Fork { session, .. } => {
                if !self.store.sessions.contains_key(session) {
                    self.ledger.open_sessions.retain(|open| open != session);
                }
            }
            Ask::Use { target, .. } => checks::leases::refused(self, *target, refusal)?,
            Ask::Freeze { .. }
            | Ask::Thaw { .. }
            | Ask::Delete { .. }
            | Ask::Abort { .. }
            | Ask::Pause { .. }
            | Ask::Resume { .. }
            | Ask::Stop { .. }
            | Ask::End { .. }
            | Ask::Read { .. }
            | Ask::Destroy { .. } => {}
        }
        checks::quiesce::refused(self, &pending.ask, refusal)?;
        checks::refusals::answer(&pending.ask, refusal)
    }

    fn accepted(&mut self, request: RequestId, pending: Pending, reply: Reply) -> Judged {
        match (pending.ask, reply) {
            (Ask::Checkout { lease, .. }, Reply::CheckedOut(out)) if out.lease == lease => {
                self.checked_out(&out)
            }
            (Ask::Use { use_id, target, kind }, Reply::Granted(grant)) => {
                self.granted(use_id, target, kind, &grant)
            }
            (Ask::Create { session } | Ask::Resume { session }, Reply::SessionReady(ready))
                if ready.session == session =>
            {
                self.ready(&ready)
            }
            (Ask::Turn { session, .. }, Reply::TurnStarted(ready)) if ready.session == session => {
                if let Some(one) = self.ledger.sessions.get_mut(&session) {
                    one.abort_asked = false;
                }
                self.learn_of_loss(ready.lost());
                Ok(())
            }
            (Ask::Freeze { sandbox }, Reply::Frozen { frozen: true }) => {
                checks::uses::frozen_as_answered(self, sandbox, true)
            }
            (Ask::Thaw { sandbox }, Reply::Frozen { frozen: false }) => {
                checks::uses::frozen_as_answered(self, sandbox, false)
            }
            (Ask::Delete { sandbox }, Reply::Gone) => {
                let gone = !self.store.sandboxes.contains_key(&sandbox);
                holds(Promise::AnswerTrue, gone, || format!("{sandbox:?} is not gone"))
            }
            (Ask::Destroy { template }, Reply::Gone) => {
                let gone = !self.store.pools.contains_key(&template);
                holds(Promise::AnswerTrue, gone, || format!("{template} is not gone"))
            }
            (Ask::Read { workspace }, Reply::Readable { instance, guest_awake }) => {
                self.read(request, workspace, instance, guest_awake)
            }
            (Ask::Turn { .. }, Reply::TurnQueued { .. })
            | (Ask::Abort { .. }, Reply::Aborted { .. })
            | (Ask::Pause { .. }, Reply::Paused)
            | (Ask::Stop { .. }, Reply::Stopped) => Ok(()),
            (Ask::End { session }, Reply::Ended) => checks::sessions::over(self, session),
            (Ask::Fork { session, held, .. }, Reply::Forked { session: made })
                if made == session =>
            {
                // An answered fork has everything that its parent had at the request.
                if let Some(known) = self.ledger.sessions.get_mut(&session)
                    && let Expect::AtLeast(floor) = known.expect
                {
                    known.expect = Expect::AtLeast(floor.max(held));
                }
                Ok(())
            }
            (ask, reply) => broken(Promise::AnswerFits, || format!("{ask:?} got {reply:?}")),
        }
    }

    fn checked_out(&mut self, out: &CheckedOut) -> Judged {
        let path = match out.path {
            CheckoutPath::Fast => "fast",
            CheckoutPath::Overflow => "overflow",
            CheckoutPath::Blocked => "blocked",
        };
        self.coverage.count("checkouts", path);
        let owner = Owner::Lease(out.lease);
        if let Some(lease) = self.ledger.leases.get_mut(&out.lease) {
            lease.phase = LeasePhase::Held;
            (lease.sandbox, lease.instance) = (out.sandbox, out.instance);
            lease.expires_at = out.expires_at;
        }
        self.ledger.held.push(out.lease);
        checks::handout::judge(self, owner, out.sandbox, out.generation, out.instance)?;
        checks::handout::proven(self, out)?;
        checks::handout::lifetime(self, out)?;
        // The client turns out to be gone when its answer is sent.
        if self.scenario.rates.fail > 0 && !self.calm && self.choices.below(40) == 39 {
            self.ledger.drop_lease(out.lease, LeasePhase::Returned);
            self.coverage.count("faults", "answer_not_taken");
            self.follow_ups.push_back(Event::LeaseReturned { lease: out.lease });
        }
        Ok(())
    }

    fn granted(&mut self, id: UseId, target: UseTarget, kind: UseKind, grant: &Grant) -> Judged {
        let owner = match target {
            UseTarget::Session(session) => Owner::Session(session),
            UseTarget::Sandbox(sandbox) => checks::leases::user_of(self, sandbox, grant.sandbox)?,
        };
        checks::handout::judge(self, owner, grant.sandbox, grant.generation, grant.instance)?;
        checks::handout::settings(self, owner, grant)?;
        if let Owner::Session(session) = owner {
            self.learn_of_loss(grant.lost);
            checks::sessions::look(self, session, grant.instance)?;
        }
        if kind == UseKind::Harness {
            checks::uses::harness_granted(self, owner, grant.instance)?;
        }
        let now = self.now.mono;
        let kind_name = match kind {
            UseKind::Exec => "exec",
            UseKind::Files => "files",
            UseKind::Read => "read",
            UseKind::Port => "port",
            UseKind::Stream => "stream",
            UseKind::Harness => "harness",
        };
        self.coverage.count("uses", kind_name);
        if let Some(one) = self.runtime.instances.get_mut(&grant.instance) {
            one.active_at = now;
            one.stirred_at = now;
            one.freeze_asked = false;
            one.uses.push(id);
            if !one.marks.contains(&owner) {
                one.marks.push(owner);
            }
        }
        if !matches!(kind, UseKind::Port | UseKind::Read) {
            self.owner_writes(grant.instance, owner);
        }
        self.ledger.uses.insert(id, OpenUse { owner, instance: grant.instance, kind });
        let lasts_ms = if self.calm { 1 } else { self.choices.between(1, self.scenario.work_ms) };
        self.plan(lasts_ms, Item::UseEnds(id));
        Ok(())
    }

    fn ready(&mut self, ready: &SessionReady) -> Judged {
        let owner = Owner::Session(ready.session);
        if let Some(one) = self.ledger.sessions.get_mut(&ready.session) {
            one.stop_asked = false;
        }
        if let Some(one) = self.runtime.instances.get_mut(&ready.instance) {
            one.active_at = self.now.mono;
            one.stirred_at = self.now.mono;
            one.freeze_asked = false;
        }
        checks::handout::judge(self, owner, ready.sandbox, ready.generation, ready.instance)?;
        self.learn_of_loss(ready.lost());
        checks::sessions::look(self, ready.session, ready.instance)
    }

    /// A client reads in an answer that files were lost. The kernel hears that the answer was
    /// delivered, unless the server is killed before.
    fn learn_of_loss(&mut self, lost: Option<Loss>) {
        let Some(Loss { session, generation, .. }) = lost else { return };
        if let Some(one) = self.ledger.sessions.get_mut(&session) {
            one.loss_reported = true;
        }
        if self.calm || self.choices.below(8) != 7 {
            self.follow_ups.push_back(Event::LossReported { session, generation });
        }
    }

    /// The owner of an instance writes a file in it.
    pub(crate) fn owner_writes(&mut self, instance: InstanceId, owner: Owner) {
        let written = self.runtime.write(instance, owner);
        if let (Some(written), Owner::Session(session)) = (written, owner)
            && let Some(session) = self.ledger.sessions.get_mut(&session)
        {
            session.expect = Expect::Exactly(written);
        }
    }

    /// A session writes a file.
    pub(crate) fn session_writes(&mut self, instance: InstanceId, session: SessionId) {
        self.owner_writes(instance, Owner::Session(session));
    }
}
