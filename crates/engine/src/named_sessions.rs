//! Sessions with names. A name is committed with the first record of its session. Ending the
//! session by its name removes the name in the same transaction. If the session ends otherwise, the
//! name stays and leads to an ended session until it is used again, or until the key has no room
//! for another name.

use std::sync::Arc;

use kernel::{Event, UseKind};
use model::{
    Document, DocumentChange, ErrorCode, KeyId, Refusal, SandboxId, SessionId, SessionStatus, Wall,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{DocumentQuery, Store, StoreError};
use tokio::sync::OwnedMutexGuard;

use crate::answers::JOURNAL_PATIENCE;
use crate::boxed;
use crate::core::{Core, unavailable};
use crate::documents;
use crate::named_documents::{self, NamedError, refuse_too_much, run_to_completion};
use crate::session_names::{self, NameChange, NameKey, Names, Seen};
use crate::{Caller, Engine, SessionRequest, Use};

/// How many earlier sandboxes of a session are remembered: their processes can still be read.
const BEFORE_MAX: usize = 8;

/// A session with a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NamedSession {
    /// Its name.
    pub name: String,
    /// The session, which may have ended.
    pub session: SessionId,
    /// The description by its creator.
    pub object: Value,
    /// When it was created.
    pub created_at: Wall,
    /// When the description last changed.
    pub updated_at: Wall,
    /// The sandboxes that it had, latest first.
    #[serde(default)]
    pub sandboxes: Vec<SandboxId>,
}

impl NamedSession {
    fn document(&self, key: &NameKey) -> Result<Document, Refusal> {
        let body = serde_json::to_string(self)
            .map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
        let NameKey { kind, tenant, name } = key.clone();
        Ok(Document { kind, tenant, name, seed: None, body: body.into() })
    }

    fn read(document: &Document) -> Result<Self, Refusal> {
        serde_json::from_str(&document.body).map_err(|error| {
            let name = &document.name;
            let cause = format!("the stored name {name:?} cannot be decoded: {error}");
            Refusal::new(ErrorCode::Internal, cause)
        })
    }
}

fn key(kind: &str, tenant: KeyId, name: &str) -> NameKey {
    NameKey { kind: kind.to_owned(), tenant, name: name.to_owned() }
}

impl Engine {
    /// The session of a name. A session that is still being created is not visible.
    #[boxed]
    pub async fn named_session(
        &self,
        kind: &'static str,
        tenant: KeyId,
        name: &str,
    ) -> Result<Option<Arc<NamedSession>>, Refusal> {
        let Some(found) = written(&self.core, &key(kind, tenant, name)).await? else {
            return Ok(None);
        };
        let seen = self.core.state().names.seen(found.session);
        match seen {
            Seen::Itself => Ok(Some(found)),
            Seen::Before(before) => Ok(Some(Arc::new(NamedSession::read(&before)?))),
            Seen::Nothing => Ok(None),
        }
    }

    /// All named sessions of a kind that a key has, by name.
    #[boxed]
    pub async fn named_sessions(
        &self,
        kind: &'static str,
        tenant: KeyId,
    ) -> Result<Vec<NamedSession>, Refusal> {
        let mut all = Vec::new();
        for document in documents::all(&self.core, kind, tenant).await? {
            let named = NamedSession::read(&document)?;
            let seen = self.core.state().names.seen(named.session);
            match seen {
                Seen::Itself => all.push(named),
                Seen::Before(before) => all.push(NamedSession::read(&before)?),
                Seen::Nothing => {}
            }
        }
        Ok(all)
    }

    /// Whether a session exists for a caller and has not ended.
    pub fn is_session_alive(&self, caller: Caller, session: SessionId) -> bool {
        self.session(caller, session).is_ok_and(|view| view.status != SessionStatus::Ended)
    }

    /// Creates a session under a name, or returns the one that has the name; and whether it was
    /// created. Concurrent callers create one session. The creation is finished even if its caller
    /// goes away.
    #[boxed]
    pub async fn create_named_session(
        &self,
        kind: &'static str,
        caller: Caller,
        name: &str,
        object: Value,
        asked: SessionRequest,
    ) -> Result<(Arc<NamedSession>, bool), NamedError> {
        // A caller that waits for a name waits for the store, too.
        self.core.refuse_if_journal_fails()?;
        let (engine, key) = (self.clone(), key(kind, caller.key, name));
        run_to_completion(async move {
            let _alone =
                engine.core.named_documents.lock(kind, key.tenant, Some(&key.name)).await?;
            let before = written(&engine.core, &key).await?;
            match before {
                Some(there) if engine.is_session_alive(caller, there.session) => Ok((there, false)),
                Some(_) | None => Ok((engine.make_named(caller, key, object, asked).await?, true)),
            }
        })
        .await
    }

    /// Creates the session of a name that has none. The caller holds the lock of the name.
    async fn make_named(
        &self,
        caller: Caller,
        key: NameKey,
        object: Value,
        asked: SessionRequest,
    ) -> Result<Arc<NamedSession>, NamedError> {
        let _room = self.check_secrets(caller, &asked).await?;
        let (session, now) = (self.fresh_session()?, self.now().wall);
        let (name, sandboxes) = (key.name.clone(), Vec::new());
        let (created_at, updated_at) = (now, now);
        let named = NamedSession { name, session, object, created_at, updated_at, sandboxes };
        let document = named.document(&key)?;
        let begun = {
            self.forget_ended_names_if_full(caller, &key, &document).await?;
            let alone = self.core.named_documents.lock(&key.kind, key.tenant, None).await?;
            refuse_too_much(&self.core, &document).await?;
            let before = named_documents::find(&self.core, &key).await?;
            let before = before.map(|kept| kept.document.clone());
            let change = NameChange::Making { session, document, before };
            let begun = self.begin_session(caller, session, asked, Some(change))?;
            // So that the next count includes this one.
            self.core.hold_until_written(alone);
            begun
        };
        let made = match begun.ready(self, caller).await {
            Ok(view) => view,
            Err(refusal) => {
                // The next caller of the name finds what was there before.
                self.give_up_named(session).await;
                return Err(refusal.into());
            }
        };
        let noted = match made.sandbox_id {
            Some(sandbox) => self.note_sandbox(&key, session, sandbox).await,
            None => Ok(None),
        };
        self.core.state().names.made(session);
        match noted {
            Ok(noted) => Ok(noted.unwrap_or_else(|| Arc::new(named))),
            Err(error) => {
                tracing::debug!(
                    %session,
                    ?error,
                    "the sandbox of a named session will be recorded at its next use"
                );
                Ok(Arc::new(named))
            }
        }
    }

    /// Removes the names of ended sessions if they leave no room for another name: sessions that
    /// end at their deadline would fill the key's room for ever.
    async fn forget_ended_names_if_full(
        &self,
        caller: Caller,
        key: &NameKey,
        document: &Document,
    ) -> Result<(), NamedError> {
        let alone = self.core.named_documents.lock(&key.kind, key.tenant, None).await?;
        match refuse_too_much(&self.core, document).await {
            Err(NamedError::TooMany(_) | NamedError::TooLarge(_)) => {}
            checked @ (Ok(()) | Err(NamedError::Busy | NamedError::Refused(_))) => return checked,
        }
        let mut removed = Vec::new();
        for document in documents::all(&self.core, &key.kind, key.tenant).await? {
            let session = NamedSession::read(&document)?.session;
            let is_made = matches!(self.core.state().names.seen(session), Seen::Itself);
            if is_made && !self.is_session_alive(caller, session) {
                removed.push(NameKey::of(&document).removed());
            }
        }
        if !removed.is_empty() {
            self.core.write_names(alone, removed, None).await?;
        }
        Ok(())
    }

    /// Ends a session that could not be created. Its name goes with it.
    async fn give_up_named(&self, session: SessionId) {
        let request = self.core.request();
        let event = Event::SessionEndRequested { request, session };
        match self.core.ask(request, event).await {
            Ok(_) => {}
            Err(refusal) if refusal.code == ErrorCode::SessionUnknown => {}
            Err(error) => {
                tracing::warn!(
                    %session,
                    %error,
                    "a session whose creation failed could not be ended"
                );
            }
        }
    }

    /// Changes the description of a named session; none if there is no such name.
    #[boxed]
    pub async fn update_named_session(
        &self,
        kind: &'static str,
        caller: Caller,
        name: &str,
        object: Value,
    ) -> Result<Option<Arc<NamedSession>>, NamedError> {
        let (now, key) = (self.now().wall, key(kind, caller.key, name));
        self.change_named_session(&key, |named| {
            let named = NamedSession { object: object.clone(), updated_at: now, ..named.clone() };
            Some(named)
        })
        .await
    }

    /// Ends the session of a name and removes the name. Returns what it was; none if there is no
    /// such name.
    #[boxed]
    pub async fn end_named_session(
        &self,
        kind: &'static str,
        caller: Caller,
        name: &str,
    ) -> Result<Option<Arc<NamedSession>>, NamedError> {
        let Some(named) = self.named_session(kind, caller.key, name).await? else {
            return Ok(None);
        };
        let (session, key) = (named.session, key(kind, caller.key, name));
        let change = NameChange::Ending { session, key: key.clone() };
        match self.end_session_with(caller, session, Some(change)).await {
            Ok(_) => {}
            Err(refusal) if refusal.code == ErrorCode::SessionUnknown => {}
            Err(refusal) => return Err(refusal.into()),
        }
        self.remove_name_of_ended(caller, &key, session).await?;
        Ok(Some(named))
    }

    /// Removes the name of a session that had already ended, unless another session has it by now.
    async fn remove_name_of_ended(
        &self,
        caller: Caller,
        key: &NameKey,
        session: SessionId,
    ) -> Result<(), NamedError> {
        let is_left =
            |found: Option<Arc<NamedSession>>| found.is_some_and(|it| it.session == session);
        if !is_left(written(&self.core, key).await?) {
            return Ok(());
        }
        let alone = self.core.named_documents.lock(&key.kind, key.tenant, None).await?;
        let has_ended = !self.is_session_alive(caller, session);
        if has_ended && is_left(written(&self.core, key).await?) {
            self.core.write_names(alone, vec![key.removed()], None).await?;
        }
        Ok(())
    }

    /// Begins to use the session of a name, which wakes it, and records its sandbox.
    #[boxed]
    pub async fn use_named_session(
        &self,
        kind: &'static str,
        caller: Caller,
        named: &NamedSession,
        how: UseKind,
    ) -> Result<Use, NamedError> {
        let used = self.use_session(caller, named.session, how, None).await?;
        let sandbox = used.sandbox();
        if named.sandboxes.first() != Some(&sandbox) {
            let key = key(kind, caller.key, &named.name);
            self.note_sandbox(&key, named.session, sandbox).await?;
        }
        Ok(used)
    }

    async fn note_sandbox(
        &self,
        key: &NameKey,
        session: SessionId,
        sandbox: SandboxId,
    ) -> Result<Option<Arc<NamedSession>>, NamedError> {
        self.change_named_session(key, |now| {
            // The name may have been removed or created again meanwhile.
            if now.session != session || now.sandboxes.first() == Some(&sandbox) {
                return None;
            }
            let mut now = now.clone();
            now.sandboxes.insert(0, sandbox);
            now.sandboxes.truncate(BEFORE_MAX);
            Some(now)
        })
        .await
    }

    /// Changes the stored entry of a name with `change`; leaves it if `change` returns none.
    async fn change_named_session(
        &self,
        key: &NameKey,
        change: impl Fn(&NamedSession) -> Option<NamedSession> + Send + Sync,
    ) -> Result<Option<Arc<NamedSession>>, NamedError> {
        loop {
            self.core.refuse_if_journal_fails()?;
            let alone = self.core.named_documents.lock(&key.kind, key.tenant, None).await?;
            let seen = self.core.state().names.followed();
            let Some(now) = written(&self.core, key).await? else { return Ok(None) };
            let Some(changed) = change(&now) else { return Ok(Some(now)) };
            let document = changed.document(key)?;
            refuse_too_much(&self.core, &document).await?;
            let put = vec![DocumentChange::Put(document)];
            if self.core.write_names(alone, put, Some(seen)).await? {
                return Ok(Some(Arc::new(changed)));
            }
        }
    }
}

/// The session of a name as it is stored, also one that is being created.
async fn written(core: &Core, key: &NameKey) -> Result<Option<Arc<NamedSession>>, Refusal> {
    let Some(kept) = named_documents::find(core, key).await? else { return Ok(None) };
    if let Some(named) = kept.session.get() {
        return Ok(Some(Arc::clone(named)));
    }
    let read = Arc::new(NamedSession::read(&kept.document)?);
    Ok(Some(Arc::clone(kept.session.get_or_init(|| read))))
}

impl Core {
    /// Keeps the right to change names until all earlier decisions are committed, so that the next
    /// holder reads all of them.
    fn hold_until_written(&self, alone: OwnedMutexGuard<()>) {
        let Some(receiver) = self.queue_documents(Vec::new(), None) else { return };
        tasks::spawn(async move {
            // An engine that has stopped drops the sender.
            let _ = receiver.await;
            drop(alone);
        });
    }

    /// Writes names, unless some have changed with their sessions since `seen` was read; whether it
    /// did. A write that has begun is committed even if its caller goes away.
    async fn write_names(
        &self,
        alone: OwnedMutexGuard<()>,
        changes: Vec<DocumentChange>,
        seen: Option<u64>,
    ) -> Result<bool, Refusal> {
        self.refuse_if_journal_fails()?;
        let Some(receiver) = self.queue_documents(changes, seen) else { return Ok(false) };
        let writing = tasks::spawn(async move {
            let written = receiver.await;
            drop(alone);
            written.is_ok()
        });
        tokio::select! {
            biased;
            written = writing => match written {
                Ok(true) => Ok(true),
                Ok(false) | Err(_) => Err(unavailable("the engine has stopped")),
            },
            cause = self.journal_health.failed_for(JOURNAL_PATIENCE) => Err(unavailable(&cause)),
        }
    }
}

/// The names whose sessions an earlier run was ending. A note about another session's name, or one
/// that cannot be read, is skipped and removed.
pub(crate) async fn left_over(store: &dyn Store) -> Result<Names, StoreError> {
    let query =
        DocumentQuery { kind: Some(session_names::ENDING.to_owned()), ..DocumentQuery::default() };
    let mut ending = Vec::new();
    for note in store.documents(&query).await? {
        if let Some((session, key)) = session_names::noted(&note) {
            let query = DocumentQuery {
                kind: Some(key.kind.clone()),
                tenant: Some(key.tenant),
                name: Some(key.name.clone()),
            };
            let found = store.documents(&query).await?;
            let named = found.first().and_then(|document| NamedSession::read(document).ok());
            if named.is_some_and(|named| named.session == session) {
                ending.push((session, key));
                continue;
            }
        }
        let Document { kind, tenant, name, .. } = note;
        let query = DocumentQuery { kind: Some(kind), tenant: Some(tenant), name: Some(name) };
        if let Err(error) = store.remove_documents(&query).await {
            tracing::warn!(
                %error,
                "the note of an earlier run about a session that it was ending could not be removed"
            );
        }
    }
    Ok(Names::left_over(ending))
}

/// Continues to end the sessions that an earlier run was ending by their names.
pub(crate) fn go_on_ending(core: &Arc<Core>) {
    let ending = core.state().names.ending();
    for (session, _) in ending {
        let known = core.read(|kernel| kernel.session(session));
        match known {
            Some(view) if view.status != SessionStatus::Ended => {
                let request = core.request();
                core.notify(Event::SessionEndRequested { request, session });
            }
            // Its sandbox is still being removed, and the name goes with the session.
            Some(_) => {}
            None => {
                let gone = core.state().names.gone(session);
                // No caller waits for it.
                drop(core.queue_documents(gone, None));
            }
        }
    }
}
