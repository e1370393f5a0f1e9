//! Sessions: created, given turns, aborted, paused, stopped, ended and forked.

use std::collections::BTreeMap;
use std::sync::Arc;

use kernel::{DeadlineChange, Event, SessionSettings, UseTarget, WhenBusy};
use model::record::OnDisconnect;
use model::{
    ClaimSettings, Deadline, DeadlineAction, KeyId, NetworkPolicy, RequestId, SessionId,
    TemplateName, TurnId, Wall,
};

use crate::checks::Judged;
use crate::ledger::{Ask, Expect, Session};
use crate::scenario::rule;
use crate::world::World;

impl World {
    pub(super) fn act_create_session(&mut self) -> Judged {
        if self.ledger.open_sessions.len() > self.scenario.clients as usize + 3 {
            return self.act_end_session();
        }
        let request = self.request();
        let session = SessionId::from_u128(self.ledger.fresh());
        let template = self.any_template();
        let tenant = self.some_tenant();
        let claim = self.claim();
        let on_disconnect =
            if self.choices.below(3) == 2 { OnDisconnect::Abort } else { OnDisconnect::Continue };
        let idle_timeout_ms = self.choices.pick(&[None, Some(4_000)]).flatten();
        let deadline = if self.choices.below(8) == 7 { Some(self.deadline()) } else { None };
        self.add_session(
            session,
            tenant,
            template.clone(),
            claim.clone(),
            on_disconnect,
            Expect::Exactly(0),
        );
        if let Some(one) = self.ledger.sessions.get_mut(&session) {
            one.deadlines.extend(deadline);
        }
        let settings = SessionSettings { tenant, claim, idle_timeout_ms, deadline, on_disconnect };
        let (wait_ms, patience_ms) = self.session_wait();
        let event = Event::SessionCreated { request, session, template, settings, wait_ms };
        self.ask(request, patience_ms, Ask::Create { session }, event)
    }

    /// A deadline to come.
    fn deadline(&mut self) -> Deadline {
        let action =
            if self.choices.below(2) == 0 { DeadlineAction::End } else { DeadlineAction::Pause };
        let now = self.now.wall;
        let at = self.choices.pick(&[Some(9_000), None, Some(40_000)]).flatten();
        let at = at.map(|ms| Wall(now.0 + ms));
        let idle_ms = match at {
            Some(_) => self.choices.pick(&[None, Some(6_000)]).flatten(),
            None => self.choices.pick(&[3_000, 12_000]),
        };
        Deadline { at, idle_ms, action }
    }

    /// How long a request waits for a place, and how long it may wait in all.
    pub(super) fn session_wait(&mut self) -> (Option<u64>, u64) {
        let config = &self.scenario.config;
        let (default_ms, bind_ms) = (config.wait_ms, config.bind_timeout_ms);
        let wait_ms = self.choices.pick(&[None, Some(0), Some(2_000)]).flatten();
        (wait_ms, wait_ms.unwrap_or(default_ms) + bind_ms)
    }

    pub(super) fn add_session(
        &mut self,
        id: SessionId,
        tenant: KeyId,
        template: TemplateName,
        claim: Option<Arc<ClaimSettings>>,
        on_disconnect: OnDisconnect,
        expect: Expect,
    ) {
        let network = claim.as_ref().and_then(|claim| claim.network.clone());
        let session = Session {
            tenant,
            template,
            claim,
            on_disconnect,
            expect,
            loss_reported: false,
            active: None,
            abort_asked: false,
            stop_asked: false,
            end_asked: false,
            networks: vec![network],
            deadlines: Vec::new(),
            busy_at: self.now.wall,
        };
        self.ledger.sessions.insert(id, session);
        self.ledger.open_sessions.push(id);
    }

    pub(super) fn act_turn(&mut self) -> Judged {
        let Some(session) = self.some_session() else { return Ok(()) };
        let request = self.request();
        let turn = TurnId::from_u128(self.ledger.fresh());
        let when_busy = if self.choices.below(2) == 0 { WhenBusy::Refuse } else { WhenBusy::Queue };
        self.ledger.asked_turns.insert(turn, (session, request));
        let (wait_ms, patience_ms) = self.session_wait();
        let event = Event::TurnRequested { request, session, turn, when_busy, wait_ms };
        self.ask(request, patience_ms, Ask::Turn { session, turn }, event)
    }

    pub(super) fn control(
        &mut self,
        session: SessionId,
        ask: Ask,
        event: Event,
        request: RequestId,
    ) -> Judged {
        let patience_ms = self.scenario.config.control_timeout_ms;
        let instance = self.store.live_of_session(session).and_then(|record| record.instance);
        if matches!(ask, Ask::Pause { .. })
            && let Some(instance) = instance
            && let Some(one) = self.runtime.instances.get_mut(&instance)
        {
            one.freeze_asked = true;
        }
        self.ask(request, patience_ms, ask, event)
    }

    pub(super) fn act_abort(&mut self) -> Judged {
        let Some(session) = self.some_session() else { return Ok(()) };
        let request = self.request();
        if self.choices.below(5) == 4 {
            return self.withdraw(session);
        }
        let keep_sandbox = self.choices.below(3) == 2;
        if let Some(one) = self.ledger.sessions.get_mut(&session) {
            one.abort_asked = true;
        }
        let event = Event::AbortRequested { request, session, keep_sandbox };
        self.control(session, Ask::Abort { session }, event, request)
    }

    /// Calls off the message that was sent last, whatever became of it.
    fn withdraw(&mut self, session: SessionId) -> Judged {
        let sent = self.ledger.asked_turns.iter().filter(|(_, (of, _))| *of == session);
        let Some(turn) = sent.map(|(turn, _)| *turn).max() else { return Ok(()) };
        if let Some(one) = self.ledger.sessions.get_mut(&session) {
            one.abort_asked = true;
        }
        self.notify(Event::TurnWithdrawn { session, turn })
    }

    pub(super) fn act_pause(&mut self) -> Judged {
        let Some(session) = self.some_session() else { return Ok(()) };
        let request = self.request();
        let event = Event::PauseRequested { request, session };
        self.control(session, Ask::Pause { session }, event, request)
    }

    /// Changes labels or the harness configuration.
    fn change(&mut self, session: SessionId) -> Judged {
        let labels = match self.choices.below(3) {
            0 => None,
            1 => Some(BTreeMap::new()),
            _ => Some(BTreeMap::from([("word".to_owned(), "other".to_owned())])),
        };
        let config = self.choices.pick(&[None, Some("null"), Some("{}")]).flatten().map(Arc::from);
        let deadline = match self.choices.below(6) {
            4 => DeadlineChange::Remove,
            5 => DeadlineChange::Set(self.deadline()),
            _ => DeadlineChange::Keep,
        };
        if let DeadlineChange::Set(deadline) = deadline
            && let Some(one) = self.ledger.sessions.get_mut(&session)
        {
            one.deadlines.push(deadline);
        }
        let words = labels.as_ref().map(BTreeMap::len);
        self.notify(Event::SessionChanged { session, labels, config, deadline })?;
        match words {
            None => Ok(()),
            Some(0) => {
                self.change_network(session, Some(NetworkPolicy::Allow(vec![rule("a.test:443")])))
            }
            Some(_) => self.change_network(session, None),
        }
    }

    /// Changes what its sandboxes may reach.
    fn change_network(&mut self, session: SessionId, network: Option<NetworkPolicy>) -> Judged {
        let target = UseTarget::Session(session);
        let event = Event::NetworkChanged { target, network: network.clone() };
        let answer = self.submit(event, None)?;
        let Some(one) = self.ledger.sessions.get_mut(&session) else { return Ok(()) };
        match answer {
            // The server crashed: it may be stored, or not.
            None => one.networks.push(network),
            Some(Ok(_)) => one.networks = vec![network],
            Some(Err(_)) => {}
        }
        Ok(())
    }

    pub(super) fn act_resume(&mut self) -> Judged {
        let Some(session) = self.some_session() else { return Ok(()) };
        if self.choices.below(4) == 3 {
            return self.change(session);
        }
        let request = self.request();
        let (wait_ms, patience_ms) = self.session_wait();
        let event = Event::ResumeRequested { request, session, wait_ms };
        self.ask(request, patience_ms, Ask::Resume { session }, event)
    }

    pub(super) fn act_stop_session(&mut self) -> Judged {
        let Some(session) = self.some_session() else { return Ok(()) };
        let request = self.request();
        if let Some(one) = self.ledger.sessions.get_mut(&session) {
            one.stop_asked = true;
        }
        let event = Event::SessionStopRequested { request, session };
        self.control(session, Ask::Stop { session }, event, request)
    }

    pub(super) fn act_end_session(&mut self) -> Judged {
        let Some(session) = self.some_session() else { return Ok(()) };
        let request = self.request();
        if let Some(one) = self.ledger.sessions.get_mut(&session) {
            one.end_asked = true;
        }
        // Some clients keep using a session that has ended.
        if self.choices.below(4) != 3 {
            self.ledger.open_sessions.retain(|open| *open != session);
        }
        let event = Event::SessionEndRequested { request, session };
        self.control(session, Ask::End { session }, event, request)
    }

    pub(super) fn act_fork(&mut self) -> Judged {
        let Some(parent) = self.some_session() else { return Ok(()) };
        let request = self.request();
        let session = SessionId::from_u128(self.ledger.fresh());
        let Some(from) = self.ledger.sessions.get(&parent) else { return Ok(()) };
        let (tenant, template, claim) = (from.tenant, from.template.clone(), from.claim.clone());
        let (on_disconnect, deadlines) = (from.on_disconnect, from.deadlines.clone());
        let networks = from.networks.clone();
        let own = self.store.of_session.get(&parent).and_then(|all| all.first());
        let sandbox = own.and_then(|id| self.store.sandboxes.get(id));
        let shelved = self.store.sessions.get(&parent).and_then(|record| record.files);
        let workspace = sandbox.map(|record| record.workspace).or(shelved.map(|f| f.workspace));
        let files = workspace.and_then(|workspace| self.runtime.workspaces.get(&workspace));
        // Until the fork is answered, a crash may leave only what was durable.
        let (floor, held) = files.map_or((0, 0), |files| (files.durable, files.live));
        let expect = Expect::AtLeast(floor);
        self.add_session(session, tenant, template, claim, on_disconnect, expect);
        if let Some(fork) = self.ledger.sessions.get_mut(&session) {
            fork.deadlines = deadlines;
            fork.networks = networks;
        }
        let event = Event::ForkRequested { request, parent, session };
        self.control(parent, Ask::Fork { parent, session, held }, event, request)
    }
}
