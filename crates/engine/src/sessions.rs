//! Sessions: conversations that outlive their sandboxes. The kernel decides what happens to one;
//! this module asks it, and answers with the session as it is then.

use std::collections::BTreeMap;
use std::sync::Arc;

use kernel::{
    DeadlineChange, Event, Reply, SessionFilter, SessionView, UseKind, UseTarget, WhenBusy,
};
use model::record::OnDisconnect;
use model::{
    Deadline, ErrorCode, NetworkPolicy, Refusal, Role, SecretName, SecretUse, SeedId, SessionId,
    SessionStatus, TemplateName, TurnChange, TurnId, TurnPiece, TurnRecord, Wall,
};
use store::TurnQuery;

use crate::boxed;
use crate::core::{Attached, Core, unavailable};
use crate::ids::fresh_uuid;
use crate::keys::Caller;
use crate::network::with_next_binding;
use crate::sandboxes::unexpected;
use crate::session_creation::UndeliveredSession;
use crate::session_names::NameChange;
use crate::state_loss;
use crate::turns::{Live, TurnFollow, TurnRefused};
use crate::{Engine, claim};

/// The largest message.
pub const INPUT_BYTES_MAX: usize = 8 * 1024 * 1024;
const PAGE_MAX: u32 = 1_000;

/// A session to create.
#[derive(Debug, Clone)]
pub struct SessionRequest {
    /// Of which template.
    pub template: TemplateName,
    /// Its id, where a repeated request must be recognised.
    pub session: Option<SessionId>,
    /// Environment of its programs.
    pub env: BTreeMap<String, String>,
    /// What it may reach, within its template's policy; that policy if not given.
    pub network: Option<NetworkPolicy>,
    /// Secrets that it uses beside those of its template.
    pub secrets: Vec<SecretUse>,
    /// Values of secrets that the caller brings itself.
    pub secret_values: BTreeMap<SecretName, String>,
    /// Labels by which the caller finds it.
    pub metadata: BTreeMap<String, String>,
    /// Configuration for its harness, as a JSON object.
    pub config: Option<Arc<str>>,
    /// The seed archive that it begins with.
    pub seed: Option<SeedId>,
    /// How long it may be idle; the template's value if not given.
    pub idle_timeout_ms: Option<u64>,
    /// When it ends or pauses without a request.
    pub deadline: Option<Deadline>,
    /// What happens to a turn whose client disconnects.
    pub on_disconnect: OnDisconnect,
    /// How long to wait for a place if none is free; the node's value if not given.
    pub wait_ms: Option<u64>,
}

impl SessionRequest {
    /// A session of a template, and every default.
    pub fn of(template: TemplateName) -> Self {
        Self {
            template,
            session: None,
            env: BTreeMap::new(),
            network: None,
            secrets: Vec::new(),
            secret_values: BTreeMap::new(),
            metadata: BTreeMap::new(),
            config: None,
            seed: None,
            idle_timeout_ms: None,
            deadline: None,
            on_disconnect: OnDisconnect::default(),
            wait_ms: None,
        }
    }
}

/// Which sessions to list, newest first.
#[derive(Debug, Clone, Default)]
pub struct SessionQuery {
    /// Only those in this status.
    pub status: Option<SessionStatus>,
    /// Only those of this template.
    pub template: Option<TemplateName>,
    /// Only those with all of these labels.
    pub metadata: Vec<(String, String)>,
    /// Only those older than a session with this time and id, whether that still exists or not.
    pub after: Option<(Wall, SessionId)>,
    /// At most so many.
    pub limit: u32,
}

/// A page of sessions.
#[derive(Debug, Clone, Default)]
pub struct SessionPage {
    /// Those that were asked for.
    pub sessions: Vec<SessionView>,
    /// Where the next page begins, if there may be more.
    pub next: Option<(Wall, SessionId)>,
}

/// Changes to a session.
#[derive(Debug, Clone, Default)]
pub struct SessionUpdate {
    /// Its labels from now on.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Configuration for its harness from its next turn on, as JSON; none if `null`.
    pub config: Option<Arc<str>>,
    /// Its deadline.
    pub deadline: DeadlineChange,
}

/// A message to a session.
#[derive(Debug, Clone)]
pub struct TurnRequest {
    /// The message, as JSON.
    pub input: Arc<str>,
    /// What to do if another turn is in progress.
    pub when_busy: WhenBusy,
    /// Its id, where a repeated request must be recognised.
    pub turn: Option<TurnId>,
    /// How long to wait for a place if none is free; the node's value if not given.
    pub wait_ms: Option<u64>,
}

/// A turn that was accepted.
pub struct StartedTurn {
    /// Its id.
    pub turn: TurnId,
    /// Whether it waits for earlier turns.
    pub queued: bool,
    /// Its pieces, from the beginning.
    pub follow: TurnFollow,
}

/// The result of an abort.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted {
    /// The aborted turn, if there was one.
    pub turn: Option<TurnId>,
    /// Whether the sandbox still lives.
    pub sandbox_kept: bool,
}

impl Engine {
    /// Creates a session; done when it has a sandbox and its harness is ready. A bridge of Ash that
    /// waits in the sandbox, and was ready for other sessions, is only given its settings: the first
    /// turn waits for it.
    #[boxed]
    pub async fn create_session(
        &self,
        caller: Caller,
        asked: SessionRequest,
    ) -> Result<SessionView, Refusal> {
        let session = match asked.session {
            Some(session) => self.refuse_used_session(session).await?,
            None => self.fresh_session()?,
        };
        let _room = self.check_secrets(caller, &asked).await?;
        self.begin_session(caller, session, asked, None)?.ready(self, caller).await
    }

    /// An id that had turns is never given to another session: the turns are still stored.
    async fn refuse_used_session(&self, id: SessionId) -> Result<SessionId, Refusal> {
        let found = self.core.store.turns(&TurnQuery { session: id, after: 0, limit: 1 }).await;
        if found.map_err(|error| unavailable(&error.to_string()))?.is_empty() {
            return Ok(id);
        }
        let cause = format!("session {id} exists or existed");
        Err(Refusal::new(ErrorCode::IdConflict, cause))
    }

    /// A session; also one that has ended, while its record is known.
    pub fn session(&self, caller: Caller, id: SessionId) -> Result<SessionView, Refusal> {
        self.check_session(caller, id)?;
        self.core.read(|kernel| kernel.session(id).ok_or_else(|| kernel.session_gone(id)))
    }

    /// Sessions that the caller may see, newest first.
    pub fn sessions(&self, caller: Caller, query: &SessionQuery) -> SessionPage {
        let tenant = match caller.role {
            Role::Admin => None,
            Role::Use | Role::Read => Some(caller.key),
        };
        let limit = query.limit.clamp(1, PAGE_MAX) as usize;
        let filter = SessionFilter {
            tenant,
            status: query.status,
            template: query.template.clone(),
            labels: query.metadata.clone(),
            after: query.after,
        };
        let sessions = self.core.read(|kernel| kernel.sessions(&filter, limit));
        let last = sessions.last().filter(|_| sessions.len() == limit);
        let next = last.map(|view| (view.created_at, view.id));
        SessionPage { sessions, next }
    }

    /// How many sessions are in each status.
    pub fn sessions_by_status(&self) -> [(SessionStatus, u32); SessionStatus::ALL.len()] {
        let counts = self.core.read(kernel::Kernel::sessions_by_status);
        std::array::from_fn(|index| (SessionStatus::ALL[index], counts[index]))
    }

    /// Changes the labels of a session, the configuration of its harness, or its deadline.
    #[boxed]
    pub async fn update_session(
        &self,
        caller: Caller,
        id: SessionId,
        update: SessionUpdate,
    ) -> Result<SessionView, Refusal> {
        self.check_session(caller, id)?;
        claim::check_settings(update.metadata.as_ref(), update.config.as_ref())?;
        let SessionUpdate { metadata: labels, config, deadline } = update;
        let event = Event::SessionChanged { session: id, labels, config, deadline };
        self.core.ask(self.core.request(), event).await?;
        self.session(caller, id)
    }

    /// Pauses a session: nothing of it runs until it is used again.
    #[boxed]
    pub async fn pause_session(
        &self,
        caller: Caller,
        id: SessionId,
    ) -> Result<SessionView, Refusal> {
        self.check_session(caller, id)?;
        let request = self.core.request();
        self.core.ask(request, Event::PauseRequested { request, session: id }).await?;
        self.session(caller, id)
    }

    /// Resumes a session; done when it has a sandbox and its harness is ready.
    pub async fn resume_session(
        &self,
        caller: Caller,
        id: SessionId,
    ) -> Result<SessionView, Refusal> {
        self.resume_session_within(caller, id, None).await
    }

    /// As [`Self::resume_session`], and waits no longer than this for a place.
    #[boxed]
    pub async fn resume_session_within(
        &self,
        caller: Caller,
        id: SessionId,
        wait_ms: Option<u64>,
    ) -> Result<SessionView, Refusal> {
        self.check_session(caller, id)?;
        let request = self.core.request();
        let event = Event::ResumeRequested { request, session: id, wait_ms };
        let asking = self.core.ask(request, event);
        let reply = with_next_binding(&self.core, UseTarget::Session(id), true, asking).await?;
        let Reply::SessionReady(ready) = reply else { return Err(unexpected(&reply)) };
        state_loss::note(ready.lost());
        self.ready_harness(caller, id).await?;
        self.session(caller, id)
    }

    /// Ends the sandbox of a session and keeps its files until it is resumed.
    #[boxed]
    pub async fn stop_session(
        &self,
        caller: Caller,
        id: SessionId,
    ) -> Result<SessionView, Refusal> {
        self.check_session(caller, id)?;
        let request = self.core.request();
        self.core.ask(request, Event::SessionStopRequested { request, session: id }).await?;
        self.session(caller, id)
    }

    /// Ends a session; done when nothing of it runs. Ending an ended session succeeds too.
    #[boxed]
    pub async fn end_session(
        &self,
        caller: Caller,
        id: SessionId,
    ) -> Result<Option<SessionView>, Refusal> {
        self.end_session_with(caller, id, None).await
    }

    /// The same, and removes its name with it if one is given.
    pub(crate) async fn end_session_with(
        &self,
        caller: Caller,
        id: SessionId,
        name: Option<NameChange>,
    ) -> Result<Option<SessionView>, Refusal> {
        self.check_session(caller, id)?;
        let before = self.core.read(|kernel| kernel.session(id));
        let request = self.core.request();
        let event = Event::SessionEndRequested { request, session: id };
        let name = name.map(|name| Attached::Name(Box::new(name)));
        self.core.ask_with(request, event, name).await?;
        let seed = before.as_ref().and_then(|view| view.claim.as_ref()?.seed);
        if seed.is_some() {
            self.core.seed_holders.unname();
        }
        let now = self.core.read(|kernel| kernel.session(id));
        Ok(now.or(before.map(|view| SessionView {
            status: SessionStatus::Ended,
            sandbox_status: model::SandboxStatus::Disconnected,
            sandbox_id: None,
            ..view
        })))
    }

    /// Creates a session with the files and the history of this one.
    #[boxed]
    pub async fn fork_session(
        &self,
        caller: Caller,
        id: SessionId,
    ) -> Result<SessionView, Refusal> {
        self.check_session(caller, id)?;
        let session = self.fresh_session()?;
        let request = self.core.request();
        let event = Event::ForkRequested { request, parent: id, session };
        let unknown = UndeliveredSession { core: &self.core, session };
        match self.core.ask(request, event).await {
            Ok(_) => {}
            Err(refusal) => {
                unknown.delivered();
                return Err(refusal);
            }
        }
        let view = self.session(caller, session)?;
        unknown.delivered();
        // What the parent lost and had not reported is missing in the copy too.
        for of in [id, session] {
            state_loss::note(self.core.read(|kernel| kernel.unreported_loss_of(of)));
        }
        Ok(view)
    }

    /// Aborts the turn in progress; done when the turn has ended.
    #[boxed]
    pub async fn abort_session(
        &self,
        caller: Caller,
        id: SessionId,
        keep_sandbox: bool,
    ) -> Result<Aborted, Refusal> {
        self.check_session(caller, id)?;
        let request = self.core.request();
        let event = Event::AbortRequested { request, session: id, keep_sandbox };
        let reply = self.core.ask(request, event).await?;
        let Reply::Aborted { turn, sandbox_kept } = reply else { return Err(unexpected(&reply)) };
        Ok(Aborted { turn, sandbox_kept })
    }

    /// Sends a message; done when the turn has started, or is queued.
    #[boxed]
    pub async fn start_turn(
        &self,
        caller: Caller,
        id: SessionId,
        asked: TurnRequest,
    ) -> Result<StartedTurn, Refusal> {
        self.check_session(caller, id)?;
        let sending = self.send_turn(id, asked);
        with_next_binding(&self.core, UseTarget::Session(id), false, sending).await
    }

    async fn send_turn(&self, id: SessionId, asked: TurnRequest) -> Result<StartedTurn, Refusal> {
        if asked.input.len() > INPUT_BYTES_MAX {
            let cause = format!("input: at most {INPUT_BYTES_MAX} bytes");
            return Err(Refusal::new(ErrorCode::TooLarge, cause));
        }
        let now = self.now().wall;
        let tenant = self
            .core
            .read(|kernel| kernel.tenant_of_session(id).ok_or_else(|| kernel.session_gone(id)))?;
        let turn = match asked.turn {
            Some(turn) => turn,
            None => TurnId::from_uuid(fresh_uuid(now)?),
        };
        let live = Live::new(turn, tenant, Arc::clone(&asked.input));
        self.core.turns.expect(&live).map_err(|why| match why {
            TurnRefused::Known => sent_already(turn),
            TurnRefused::TooMuch => {
                let cause = "queued messages take too much memory";
                Refusal::new(ErrorCode::TurnQueueFull, cause).retry_after(1_000)
            }
        })?;
        let expected = ExpectedTurn { core: &self.core, turn };
        if asked.turn.is_some() {
            self.refuse_known_turn(turn).await?;
        }
        let record = TurnRecord {
            id: turn,
            number: 0,
            session: id,
            tenant,
            input: asked.input,
            created_at: now,
            started: None,
            end: None,
        };
        let request = self.core.request();
        let TurnRequest { when_busy, wait_ms, .. } = asked;
        let event = Event::TurnRequested { request, session: id, turn, when_busy, wait_ms };
        let follow = TurnFollow::new(&self.core, id, turn, 0);
        // From here on the kernel says what becomes of it.
        expected.accepted();
        let put = Attached::Turn(Box::new(TurnChange::Put(record)));
        let reply = self.core.ask_with(request, event, Some(put)).await?;
        let queued = matches!(reply, Reply::TurnQueued { .. });
        if let Reply::TurnStarted(ready) = &reply {
            state_loss::note(ready.lost());
        } else if !queued {
            return Err(unexpected(&reply));
        }
        Ok(StartedTurn { turn, queued, follow: follow.of_client(request) })
    }

    async fn refuse_known_turn(&self, turn: TurnId) -> Result<(), Refusal> {
        let known = self.core.store.turn(turn).await;
        match known.map_err(|error| unavailable(&error.to_string()))? {
            Some(_) => Err(sent_already(turn)),
            None => Ok(()),
        }
    }

    /// Follows a turn from a piece on, whether it is in progress or has ended.
    #[boxed]
    pub async fn follow_turn(
        &self,
        caller: Caller,
        id: SessionId,
        turn: TurnId,
        after: u64,
    ) -> Result<TurnFollow, Refusal> {
        // In memory first: a turn that ends meanwhile is in the store by then. A turn that begins
        // meanwhile is found by the second look.
        let follow = TurnFollow::new(&self.core, id, turn, after);
        let record = self.turn(caller, id, turn).await?;
        match record.end {
            Some(_) => Ok(follow),
            None => Ok(follow.look_again()),
        }
    }

    /// A turn as it is stored.
    #[boxed]
    pub async fn turn(
        &self,
        caller: Caller,
        id: SessionId,
        turn: TurnId,
    ) -> Result<TurnRecord, Refusal> {
        let record = self.core.store.turn(turn).await;
        let record = record.map_err(|error| unavailable(&error.to_string()))?;
        match record {
            Some(record) if record.session == id && caller.sees(record.tenant) => Ok(record),
            Some(_) | None => {
                let cause = format!("no turn {turn} of session {id} is known");
                Err(Refusal::new(ErrorCode::TurnUnknown, cause))
            }
        }
    }

    /// Whether an environment would be valid for a session, for a dialect that stores it for later.
    pub fn check_env(&self, env: &BTreeMap<String, String>) -> Result<(), Refusal> {
        claim::check_env(env)
    }

    /// Turns of a session after a number, oldest first.
    #[boxed]
    pub async fn turns(
        &self,
        caller: Caller,
        id: SessionId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TurnRecord>, Refusal> {
        let mut query = TurnQuery { session: id, after, limit: limit.clamp(1, PAGE_MAX) };
        loop {
            let found = self.core.store.turns(&query).await;
            let mut found = found.map_err(|error| unavailable(&error.to_string()))?;
            let Some(last) = found.last().map(|record| record.number) else {
                // The history of a session may outlive its record.
                return if query.after > 0 && query.after == after {
                    Ok(found)
                } else {
                    self.check_session(caller, id).map(|()| found)
                };
            };
            found.retain(|record| caller.sees(record.tenant));
            if !found.is_empty() {
                return Ok(found);
            }
            query.after = last;
        }
    }

    /// Pieces of a turn after a number.
    #[boxed]
    pub async fn turn_pieces(
        &self,
        caller: Caller,
        id: SessionId,
        turn: TurnId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TurnPiece>, Refusal> {
        self.turn(caller, id, turn).await?;
        let found = self.core.store.pieces(turn, after, limit.clamp(1, PAGE_MAX)).await;
        found.map_err(|error| unavailable(&error.to_string()))
    }

    /// Waits until the harness of a session is ready, if the harness is a program.
    pub(crate) async fn ready_harness(&self, caller: Caller, id: SessionId) -> Result<(), Refusal> {
        let template = self.session(caller, id)?.template;
        let has_program = self.template(&template).is_some_and(|it| it.harness.program().is_some());
        if !has_program {
            return Ok(());
        }
        // The use keeps the sandbox while its harness starts.
        let held = self.use_session(caller, id, UseKind::Read, None).await?;
        let ready = self.core.harnesses.ready(&self.core, held.grant().instance, id);
        match held.while_there(ready).await {
            // A harness that is busy is ready.
            Err(refusal) if refusal.code == ErrorCode::HarnessBusy => Ok(()),
            ready => ready.map(drop),
        }
    }

    /// What belongs to another key does not exist.
    pub fn check_session(&self, caller: Caller, id: SessionId) -> Result<(), Refusal> {
        match self.core.read(|kernel| kernel.tenant_of_session(id)) {
            Some(tenant) if caller.sees(tenant) => Ok(()),
            Some(_) | None => Err(unknown_session(id)),
        }
    }
}

/// A turn that is about to be sent. If this is dropped, it was not sent.
struct ExpectedTurn<'a> {
    core: &'a Core,
    turn: TurnId,
}

impl ExpectedTurn<'_> {
    fn accepted(self) {
        std::mem::forget(self);
    }
}

impl Drop for ExpectedTurn<'_> {
    fn drop(&mut self) {
        self.core.turns.forget(self.turn);
    }
}

fn unknown_session(id: SessionId) -> Refusal {
    Refusal::new(ErrorCode::SessionUnknown, format!("no session {id} is known"))
}

fn sent_already(turn: TurnId) -> Refusal {
    Refusal::new(ErrorCode::IdConflict, format!("turn {turn} was sent already"))
}
