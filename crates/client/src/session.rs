//! Sessions: conversations that outlive their sandboxes.

use std::ops::Deref;
use std::time::Duration;

use model::{SessionId, SessionStatus, TemplateName, TurnId};
use wire::{
    AbortRequest, Aborted, LogList, Session, SessionList, SessionRequest, SessionUpdate, Turn,
    TurnAnswer, TurnEventList, TurnList, TurnRequest,
};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::events::{EventStream, EventsQuery, JSON};
use crate::inside::Inside;
use crate::query::Target;
use crate::transport::Client;
use crate::turns::{TURN_TIME_MAX, TurnStream, fresh_turn};

/// Which sessions to list.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Of this template.
    pub template: Option<TemplateName>,
    /// In this status.
    pub status: Option<SessionStatus>,
    /// With this metadata.
    pub metadata: Vec<(String, String)>,
    /// At most so many.
    pub limit: Option<u32>,
    /// After the `next` of the page before.
    pub after: Option<String>,
}

impl Client {
    /// Makes a session.
    #[boxed]
    pub async fn create_session(&self, request: &SessionRequest) -> Result<Session, ClientError> {
        let call = Call::post(Target::new("/v1/sessions")).json(request)?.once();
        let waits = Duration::from_millis(request.wait_ms.unwrap_or(0));
        self.json(call.may_take(self.patience().control + waits)).await
    }

    /// One page of sessions, newest first.
    #[boxed]
    pub async fn sessions(&self, filter: &SessionFilter) -> Result<SessionList, ClientError> {
        let mut target = Target::new("/v1/sessions")
            .maybe("template", filter.template.as_ref())
            .maybe("status", filter.status.map(SessionStatus::as_str))
            .maybe("limit", filter.limit)
            .maybe("after", filter.after.as_ref());
        for (word, value) in &filter.metadata {
            target = target.with("metadata", format!("{word}={value}"));
        }
        self.json(Call::get(target)).await
    }

    /// A handle of one session. Nothing is sent yet.
    pub fn session(&self, id: SessionId) -> Conversation {
        let at = Target::new("/v1/sessions").part(&id.to_string());
        Conversation { inside: Inside { client: self.clone(), at }, id }
    }
}

/// One session. Dropping this does not end the session. Programs and files are those of its
/// sandbox; if it has none, it gets one.
#[derive(Debug, Clone)]
pub struct Conversation {
    inside: Inside,
    id: SessionId,
}

impl Deref for Conversation {
    type Target = Inside;

    fn deref(&self) -> &Inside {
        &self.inside
    }
}

impl Conversation {
    /// Its id.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// The session as it is now.
    #[boxed]
    pub async fn get(&self) -> Result<Session, ClientError> {
        self.client.json(Call::get(self.at())).await
    }

    /// Changes its metadata, the configuration of its harness, or its deadline.
    #[boxed]
    pub async fn update(&self, update: &SessionUpdate) -> Result<Session, ClientError> {
        self.client.json(Call::patch(self.at()).json(update)?).await
    }

    /// Ends it. Answered when none of its processes runs.
    #[boxed]
    pub async fn end(&self) -> Result<(), ClientError> {
        let call = Call::delete(self.at()).may_take(self.client.patience().control);
        self.client.done(call).await
    }

    /// Sets it aside until it is used again.
    #[boxed]
    pub async fn pause(&self) -> Result<Session, ClientError> {
        self.control("pause").await
    }

    /// Resumes it. It has a sandbox when this is answered.
    #[boxed]
    pub async fn resume(&self) -> Result<Session, ClientError> {
        self.control("resume").await
    }

    /// Ends its sandbox and keeps its files until it is resumed.
    #[boxed]
    pub async fn stop(&self) -> Result<Session, ClientError> {
        self.control("stop").await
    }

    /// Makes a new session with its files and history.
    #[boxed]
    pub async fn fork(&self) -> Result<Session, ClientError> {
        self.control("fork").await
    }

    async fn control(&self, what: &str) -> Result<Session, ClientError> {
        let call = Call::post(self.at().part(what)).may_take(self.client.patience().control);
        self.client.json(call).await
    }

    /// Aborts the turn in progress. Answered when it has ended.
    #[boxed]
    pub async fn abort(&self, keep_sandbox: bool) -> Result<Aborted, ClientError> {
        let call = Call::post(self.at().part("abort")).json(&AbortRequest { keep_sandbox })?;
        self.client.json(call.may_take(self.client.patience().control)).await
    }

    /// Sends a message, and gives the events of its turn as they come.
    #[boxed]
    pub async fn send(&self, request: TurnRequest) -> Result<TurnStream, ClientError> {
        let turn = request.id.unwrap_or_else(fresh_turn);
        let request = TurnRequest { id: Some(turn), ..request };
        TurnStream::start(self.client.clone(), self.at().part("turns"), turn, &request).await
    }

    /// Sends a message, and waits for the end of its turn.
    #[boxed]
    pub async fn ask(&self, request: &TurnRequest) -> Result<TurnAnswer, ClientError> {
        let call = Call::post(self.at().part("turns")).json(request)?.accept(JSON);
        self.client.json(call.may_take(TURN_TIME_MAX)).await
    }

    /// Follows a turn after an event, whether it is in progress or has ended.
    pub fn follow(&self, turn: TurnId, after: u64) -> TurnStream {
        TurnStream::follow(self.client.clone(), self.at().part("turns"), turn, after)
    }

    /// One page of its turns, oldest first, with the events of each if wanted.
    #[boxed]
    pub async fn turns(
        &self,
        after: Option<u64>,
        limit: Option<u32>,
        with_events: bool,
    ) -> Result<TurnList, ClientError> {
        let target = self.at().part("turns").maybe("after", after).maybe("limit", limit);
        let target = target.maybe("include", with_events.then_some("events"));
        self.client.json(Call::get(target)).await
    }

    /// One turn.
    #[boxed]
    pub async fn turn(&self, turn: TurnId) -> Result<Turn, ClientError> {
        self.client.json(Call::get(self.at().part("turns").part(&turn.to_string()))).await
    }

    /// One page of the stored events of a turn.
    #[boxed]
    pub async fn turn_events(
        &self,
        turn: TurnId,
        after: Option<u64>,
        limit: Option<u32>,
    ) -> Result<TurnEventList, ClientError> {
        let target = self.at().part("turns").part(&turn.to_string()).part("events");
        let target = target.maybe("after", after).maybe("limit", limit);
        self.client.json(Call::get(target).accept(JSON)).await
    }

    /// What its harness wrote outside of turns.
    #[boxed]
    pub async fn logs(&self, after: Option<u64>) -> Result<LogList, ClientError> {
        let target = self.at().part("logs").maybe("after", after);
        self.client.json(Call::get(target).accept(JSON)).await
    }

    /// Its events, from now on or after an earlier one.
    pub fn events(&self, after: Option<u64>) -> EventStream {
        let query = EventsQuery { after, session: Some(self.id), ..EventsQuery::default() };
        EventStream::new(self.client.clone(), query)
    }
}
