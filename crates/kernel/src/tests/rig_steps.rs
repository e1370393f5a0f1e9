//! More helpers of the rig: what users and machines do, and what can be read afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::lifecycle::{ActiveCause, TurnOutcome};
use model::why::{Alive, Ended, Why};
use model::{
    ClaimSettings, ColdEviction, EndCause, Generation, LifecycleEvent, NodeConfig, ProcessId,
    RequestId, SandboxId, SandboxState, SessionId, SessionStatus, Template, TemplateName,
};

use super::rig::{Rig, quiesce, template};
use crate::{
    Action, DeathCause, Effect, Event, Launch, Outcome, SandboxView, SessionReady, SessionSettings,
    SessionView, StartedProcess, UseKind, UseTarget,
};

/// Cases of one kind, by what they are.
pub(super) type Cases<T> = &'static [(&'static str, T)];

/// A node with room for this many entries and processes.
pub(super) fn tight(max_sandboxes: u32, max_live: u32) -> NodeConfig {
    NodeConfig { max_sandboxes, max_live, ..NodeConfig::default() }
}

/// The same, where files are deleted with an evicted entry.
pub(super) fn tight_deleting(max_sandboxes: u32, max_live: u32) -> NodeConfig {
    let cold_eviction = ColdEviction::DeleteFiles;
    NodeConfig { cold_eviction, ..tight(max_sandboxes, max_live) }
}

/// The same template under another name.
pub(super) fn other(name: &str, pool_size: u32, max_overflow: u32) -> Template {
    Template { name: TemplateName::new(name).unwrap(), ..template(pool_size, max_overflow) }
}

/// Settings with one variable.
pub(super) fn env(value: &str) -> Arc<ClaimSettings> {
    let env = BTreeMap::from([("WHO".to_owned(), value.to_owned())]);
    Arc::new(ClaimSettings { env, ..ClaimSettings::default() })
}

/// A session that binds these settings.
pub(super) fn claiming(value: &str) -> SessionSettings {
    SessionSettings { claim: Some(env(value)), ..SessionSettings::default() }
}

/// What was published to a session about its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Active {
    pub(super) sandbox: SandboxId,
    pub(super) generation: Generation,
    pub(super) cause: ActiveCause,
    pub(super) previous: Option<SandboxId>,
    pub(super) state_lost: bool,
}

impl Rig {
    #[track_caller]
    pub(super) fn delete(&mut self, sandbox: SandboxId) -> RequestId {
        self.ask(|request| Event::DeleteRequested { request, sandbox })
    }

    #[track_caller]
    pub(super) fn pause(&mut self, session: SessionId) -> RequestId {
        self.ask(|request| Event::PauseRequested { request, session })
    }

    #[track_caller]
    pub(super) fn resume(&mut self, session: SessionId) -> RequestId {
        let wait_ms = self.session_wait_ms;
        self.ask(|request| Event::ResumeRequested { request, session, wait_ms })
    }

    #[track_caller]
    pub(super) fn stop(&mut self, session: SessionId) -> RequestId {
        self.ask(|request| Event::SessionStopRequested { request, session })
    }

    #[track_caller]
    pub(super) fn end(&mut self, session: SessionId) -> RequestId {
        self.ask(|request| Event::SessionEndRequested { request, session })
    }

    #[track_caller]
    pub(super) fn abort(&mut self, session: SessionId, keep_sandbox: bool) -> RequestId {
        self.ask(|request| Event::AbortRequested { request, session, keep_sandbox })
    }

    #[track_caller]
    pub(super) fn fork(&mut self, parent: SessionId) -> (SessionId, RequestId) {
        let session = SessionId::from_u128(self.id());
        let request = self.ask(|request| Event::ForkRequested { request, parent, session });
        (session, request)
    }

    /// A fork whose copy is in progress, with a parent that is quiesced if it can be.
    #[track_caller]
    pub(super) fn fork_begun(&mut self, parent: SessionId) -> (SessionId, RequestId) {
        let fork = self.fork(parent);
        if self.count(quiesce) > 0 {
            self.finish(quiesce, Outcome::Done);
        }
        fork
    }

    /// A resume that works, with whatever it takes done.
    #[track_caller]
    pub(super) fn resumed(&mut self, session: SessionId) -> SessionReady {
        let request = self.resume(session);
        self.run();
        self.session_ready(request)
    }

    /// A session of another template.
    #[track_caller]
    pub(super) fn create_session_of(&mut self, name: &str) -> (SessionId, RequestId) {
        let session = SessionId::from_u128(self.id());
        let template = TemplateName::new(name).unwrap();
        let settings = SessionSettings::default();
        let request = self.ask(|request| Event::SessionCreated {
            request,
            session,
            template,
            settings,
            wait_ms: None,
        });
        (session, request)
    }

    /// A session that took a turn and is between uses.
    #[track_caller]
    pub(super) fn waiting_session(&mut self) -> (SessionId, SandboxId) {
        let (session, sandbox) = self.session();
        self.whole_turn(session);
        // The earlier ones were used earlier.
        self.pass(1);
        (session, sandbox)
    }

    /// A session that its user stopped, so that its sandbox is cold.
    #[track_caller]
    pub(super) fn cold_session(&mut self) -> (SessionId, SandboxId) {
        let (session, sandbox) = self.waiting_session();
        self.stop(session);
        self.run();
        assert_eq!(self.state(sandbox), SandboxState::Cold);
        (session, sandbox)
    }

    #[track_caller]
    pub(super) fn client_gone(&mut self, request: RequestId) {
        let _ = self.apply(Event::ClientGone { request });
    }

    #[track_caller]
    pub(super) fn dies(&mut self, sandbox: SandboxId) {
        self.dies_of(sandbox, DeathCause::Crash);
    }

    #[track_caller]
    pub(super) fn dies_of(&mut self, sandbox: SandboxId, cause: DeathCause) {
        let instance = self.instance(sandbox);
        let _ = self.apply(Event::InstanceDied { instance, cause, detail: None });
    }

    /// Starts a process that keeps a sandbox alive for ever.
    #[track_caller]
    pub(super) fn keep_awake(&mut self, sandbox: SandboxId) -> ProcessId {
        let process = ProcessId::from_u128(self.id());
        let instance = self.instance(sandbox);
        let (keep_alive, timeout_ms, restart) = (true, 0, None);
        let started =
            StartedProcess { sandbox, instance, process, keep_alive, timeout_ms, restart };
        let _ = self.apply(Event::ProcessStarted(started));
        process
    }

    /// An exec of a session that is granted and goes on.
    #[track_caller]
    pub(super) fn session_exec(&mut self, session: SessionId) -> model::UseId {
        let (request, use_id) = self.use_of(UseTarget::Session(session), UseKind::Exec);
        self.run();
        self.granted(request);
        use_id
    }

    #[track_caller]
    pub(super) fn of(&self, session: SessionId) -> SessionView {
        self.kernel.session(session).expect("a session that is known")
    }

    #[track_caller]
    pub(super) fn status(&self, session: SessionId) -> SessionStatus {
        self.of(session).status
    }

    #[track_caller]
    pub(super) fn generation(&self, sandbox: SandboxId) -> u64 {
        self.kernel.sandbox(sandbox).expect("a sandbox that is known").generation.0
    }

    /// The only sandbox that there is.
    #[track_caller]
    pub(super) fn only(&self) -> SandboxView {
        let all = self.kernel.sandboxes();
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().unwrap()
    }

    pub(super) fn in_state(&self, state: SandboxState) -> Vec<SandboxId> {
        let all = self.kernel.sandboxes().into_iter();
        all.filter(|view| view.state == state).map(|view| view.id).collect()
    }

    #[track_caller]
    pub(super) fn alive(&self, sandbox: SandboxId) -> Alive {
        match self.kernel.why(self.now, sandbox) {
            Some(Why::Alive(alive)) => *alive,
            other => panic!("expected something that exists, found {other:?}"),
        }
    }

    #[track_caller]
    pub(super) fn ended(&self, sandbox: SandboxId) -> Ended {
        match self.kernel.why(self.now, sandbox) {
            Some(Why::Ended(ended)) => ended,
            other => panic!("expected something that ended, found {other:?}"),
        }
    }

    /// The last tombstone of a sandbox in the journal.
    #[track_caller]
    pub(super) fn written_end(&self, sandbox: SandboxId) -> Ended {
        let end = self.store.ended.iter().rev().find(|ended| ended.sandbox == sandbox);
        end.expect("a tombstone in the journal").clone()
    }

    /// Which generations of a sandbox were announced as gone, and why.
    pub(super) fn terminations(&self, sandbox: SandboxId) -> Vec<(u64, EndCause)> {
        let of = |event: &LifecycleEvent| match event {
            LifecycleEvent::SandboxTerminated { sandbox_id, generation, cause, .. }
                if *sandbox_id == sandbox =>
            {
                Some((generation.0, *cause))
            }
            _ => None,
        };
        self.published.iter().filter_map(of).collect()
    }

    /// Every sandbox that was published to a session.
    pub(super) fn actives(&self, of: SessionId) -> Vec<Active> {
        let active = |event: &LifecycleEvent| match *event {
            LifecycleEvent::SandboxActive {
                session,
                sandbox_id: sandbox,
                generation,
                cause,
                previous_id: previous,
                state_lost,
                ..
            } if session == Some(of) => {
                Some(Active { sandbox, generation, cause, previous, state_lost })
            }
            _ => None,
        };
        self.published.iter().filter_map(active).collect()
    }

    /// How the turns of a session ended.
    pub(super) fn outcomes(&self, of: SessionId) -> Vec<TurnOutcome> {
        let outcome = |event: &LifecycleEvent| match event {
            LifecycleEvent::TurnEnded { session, outcome, .. } if *session == of => Some(*outcome),
            _ => None,
        };
        self.published.iter().filter_map(outcome).collect()
    }

    /// The sandboxes whose lost files were published to a session.
    pub(super) fn losses(&self, of: SessionId) -> Vec<SandboxId> {
        let loss = |event: &LifecycleEvent| match event {
            LifecycleEvent::StateLost { session, sandbox_id, .. } if *session == of => {
                Some(*sandbox_id)
            }
            _ => None,
        };
        self.published.iter().filter_map(loss).collect()
    }

    /// The launches in progress, oldest first.
    pub(super) fn launches(&self) -> Vec<Launch> {
        let launch = |effect: &Effect| match &effect.action {
            Action::Launch(launch) => Some((**launch).clone()),
            _ => None,
        };
        self.effects.iter().filter_map(launch).collect()
    }

    /// The sandboxes to which something of this kind is being done, oldest first.
    pub(super) fn targets(&self, wanted: fn(&Action) -> bool) -> Vec<SandboxId> {
        let all = self.effects.iter().filter(|effect| wanted(&effect.action));
        all.map(|effect| effect.id.sandbox).collect()
    }

    /// Ends what is being done to one sandbox.
    #[track_caller]
    pub(super) fn finish_of(
        &mut self,
        sandbox: SandboxId,
        wanted: fn(&Action) -> bool,
        outcome: Outcome,
    ) {
        let of = |effect: &Effect| effect.id.sandbox == sandbox && wanted(&effect.action);
        let at = self.effects.iter().position(of);
        let effect = self.effects.remove(at.expect("such an effect in progress")).unwrap();
        self.end_effect(&effect, outcome);
    }

    /// Processes that exist or may exist.
    pub(super) fn processes(&self) -> usize {
        self.kernel.sandboxes().iter().filter(|view| view.instance.is_some()).count()
    }

    /// Whether the node keeps to its limits.
    #[track_caller]
    pub(super) fn within_limits(&self) {
        let config = &self.kernel.config;
        let all = self.kernel.sandboxes();
        assert!(all.len() <= config.max_sandboxes as usize, "{} entries", all.len());
        assert!(self.processes() <= config.max_live as usize, "{} processes", self.processes());
        if let Some(budget) = config.memory_budget_mb {
            assert!(self.kernel.admission.memory_mb() <= budget, "over the memory budget");
        }
    }

    /// Ends effects as wanted until there are none, looking at the limits after each.
    #[track_caller]
    pub(super) fn run_within_limits(&mut self) {
        self.within_limits();
        while let Some(effect) = self.effects.pop_front() {
            self.end_effect(&effect, Outcome::Done);
            self.within_limits();
        }
    }

    /// Nothing is reserved: no place, no memory, no application.
    #[track_caller]
    pub(super) fn nothing_reserved(&self) {
        assert_eq!(self.processes(), 0);
        assert_eq!((self.kernel.admission.live(), self.kernel.admission.memory_mb()), (0, 0));
        assert!(!self.kernel.admission.has_applicants());
    }
}
