//! Looks up sessions, live and ended: Ash shows ended sessions for ever. A session may end without a
//! request of this dialect, so its view is stored when it begins, and again with its messages. The
//! engine decides how long to keep it.

use engine::{Caller, SessionQuery, SessionView};
use model::{ErrorCode, KeyId, Refusal, SessionId, SessionStatus};
use serde_json::Value;

use super::answer;
use super::errors::AshError;
use crate::app::App;

/// The kind of the stored views of ended sessions.
const KIND: &str = "ash.session";

const PAGE: u32 = 1000;

/// A session of Ash that the caller may see.
pub(super) struct KnownSession {
    pub(super) tenant: KeyId,
    pub(super) status: SessionStatus,
    pub(super) shown: Value,
    /// As it is now; none if it ended and nothing else is known of it.
    pub(super) view: Option<SessionView>,
}

impl KnownSession {
    pub(super) fn of(view: SessionView) -> Self {
        let (tenant, status) = (view.tenant, view.status);
        Self { tenant, status, shown: answer::session(&view), view: Some(view) }
    }
}

/// Finds a session, also one that ended.
pub(super) async fn find_session(
    app: &App,
    caller: Caller,
    id: SessionId,
) -> Result<KnownSession, AshError> {
    match app.engine.session(caller, id) {
        Ok(view) if answer::agent_of(&view).is_some() => Ok(KnownSession::of(view)),
        Ok(_) => Err(AshError::no_session()),
        Err(refusal) => ended(app, caller, id).await?.ok_or_else(|| gone(&refusal)),
    }
}

/// A session that is neither live nor stored is answered as not found.
fn gone(refusal: &Refusal) -> AshError {
    let is_gone = [ErrorCode::SessionEnded, ErrorCode::SessionUnknown].contains(&refusal.code);
    if is_gone { AshError::no_session() } else { refusal.clone().into() }
}

async fn ended(app: &App, caller: Caller, id: SessionId) -> Result<Option<KnownSession>, AshError> {
    let found = app.engine.ended_session(KIND, caller.key, id).await?;
    let shown = found.and_then(|body| serde_json::from_str(&body).ok());
    Ok(shown.map(|shown| {
        let (tenant, status) = (caller.key, SessionStatus::Ended);
        KnownSession { tenant, status, shown, view: None }
    }))
}

/// Stores the view of a session as it will be shown after its end.
pub(super) async fn remember(app: &App, view: &SessionView) -> Result<(), AshError> {
    let mut shown = answer::session(view);
    shown["status"] = "ended".into();
    shown["sandboxId"] = "".into();
    Ok(app.engine.store_ended_session(KIND, view.tenant, view.id, shown.to_string()).await?)
}

/// The same behind the answer: only the end of the session needs it.
pub(super) fn remember_soon(app: &App, view: SessionView) {
    let app = app.clone();
    tasks::spawn(async move {
        if let Err(error) = remember(&app, &view).await {
            // Its next message tries again.
            tracing::debug!(session = %view.id, ?error, "cannot store the view of a session of Ash");
        }
    });
}

/// Stores the views of all sessions that have none: those of an earlier version, and those that
/// were forked outside of this dialect.
pub(super) async fn remember_all(app: &App) -> Result<(), AshError> {
    let mut query = SessionQuery { limit: PAGE, ..SessionQuery::default() };
    loop {
        let page = app.engine.sessions(Caller::SERVER, &query);
        for view in page.sessions.iter().filter(|view| answer::agent_of(view).is_some()) {
            if app.engine.ended_session(KIND, view.tenant, view.id).await?.is_none() {
                remember(app, view).await?;
            }
        }
        query.after = page.next;
        if query.after.is_none() {
            return Ok(());
        }
    }
}

/// The stored views of a key's ended sessions.
pub(super) async fn all_ended(app: &App, caller: Caller) -> Result<Vec<Value>, AshError> {
    let over = app.engine.ended_sessions(KIND, caller).await?;
    Ok(over.iter().filter_map(|body| serde_json::from_str(body).ok()).collect())
}
