//! Sessions as the routes meet them: those that live, and those that ended, which Ash shows for
//! ever. What is shown of one is written down before it ends, and forgotten when it is among the
//! oldest of its key.

use engine::{Caller, SessionView};
use model::{Document, ErrorCode, KeyId, Refusal, SessionId, SessionStatus};
use serde_json::Value;

use super::answer;
use super::errors::AshError;
use crate::app::App;

/// What sessions that ended are called among the documents.
const KIND: &str = "ash.session";
/// How many of a key are kept, about: it is looked now and then.
const ENDED_MAX: usize = 1_000;
/// It is looked at one in so many ends.
const LOOK_EVERY: u128 = 64;

/// A session of Ash that the caller may see.
pub(super) struct Known {
    pub(super) tenant: KeyId,
    pub(super) status: SessionStatus,
    pub(super) shown: Value,
    /// As it is now; none if it ended and nothing else is known of it.
    pub(super) view: Option<SessionView>,
}

impl Known {
    pub(super) fn of(view: SessionView) -> Self {
        let (tenant, status) = (view.tenant, view.status);
        Self { tenant, status, shown: answer::session(&view), view: Some(view) }
    }
}

/// Finds a session, also one that ended.
pub(super) async fn known(app: &App, caller: Caller, id: SessionId) -> Result<Known, AshError> {
    match app.engine.session(caller, id) {
        Ok(view) if answer::agent_of(&view).is_some() => Ok(Known::of(view)),
        Ok(_) => Err(AshError::no_session()),
        Err(refusal) => ended(app, caller, id).await?.ok_or_else(|| gone(&refusal)),
    }
}

/// What of a session is neither there nor written down is not found.
fn gone(refusal: &Refusal) -> AshError {
    let is_gone = [ErrorCode::SessionEnded, ErrorCode::SessionUnknown].contains(&refusal.code);
    if is_gone { AshError::no_session() } else { refusal.clone().into() }
}

async fn ended(app: &App, caller: Caller, id: SessionId) -> Result<Option<Known>, AshError> {
    let found = app.engine.document(KIND, caller.key, &id.to_string()).await?;
    let shown = found.and_then(|document| serde_json::from_str(&document.body).ok());
    Ok(shown.map(|shown| {
        let (tenant, status) = (caller.key, SessionStatus::Ended);
        Known { tenant, status, shown, view: None }
    }))
}

/// Writes down what will be shown of a session that is about to end.
pub(super) async fn remember(app: &App, view: &SessionView) -> Result<(), AshError> {
    let mut shown = answer::session(view);
    shown["status"] = "ended".into();
    shown["sandboxId"] = "".into();
    let document = Document {
        kind: KIND.to_owned(),
        tenant: view.tenant,
        name: view.id.to_string(),
        seed: None,
        body: shown.to_string().into(),
    };
    app.engine.put_document(document).await?;
    if view.id.as_u128().is_multiple_of(LOOK_EVERY) {
        forget_oldest(app, view.tenant).await?;
    }
    Ok(())
}

async fn forget_oldest(app: &App, tenant: KeyId) -> Result<(), AshError> {
    // Ids begin with the time at which they were made, so the oldest come first.
    let all = app.engine.documents(KIND, tenant).await?;
    for document in all.iter().take(all.len().saturating_sub(ENDED_MAX)) {
        app.engine.remove_document(KIND, tenant, &document.name).await?;
    }
    Ok(())
}

/// What is shown of the sessions of a key that ended and of which nothing else is known.
pub(super) async fn all_ended(app: &App, caller: Caller) -> Result<Vec<Value>, AshError> {
    let documents = app.engine.documents(KIND, caller.key).await?;
    let is_over = |document: &&Document| {
        let id: Option<SessionId> = document.name.parse().ok();
        id.is_some_and(|id| app.engine.session(caller, id).is_err())
    };
    let over = documents.iter().filter(is_over);
    Ok(over.filter_map(|document| serde_json::from_str(&document.body).ok()).collect())
}
