//! Pause, stop, resume, fork. A pause waits for the message and the programs in progress. Bodies are
//! not looked at: some clients send an empty one and say that it is JSON.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::routing::MethodFilter;
use model::{ErrorCode, Refusal, SessionStatus};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::errors::AshError;
use super::fields::{At, session_id};
use super::known_sessions::{find_session, remember_soon};
use super::sessions::session_view;
use super::{Routes, answer};
use crate::app::App;
use web::front::{By, Needs};

/// How long a pause waits: less than clients of Ash wait for an answer.
const PAUSE_TIMEOUT: Duration = Duration::from_mins(4);
/// The pause between two attempts.
const PAUSE_PERIOD: Duration = Duration::from_millis(100);

pub(super) fn routes(routes: &mut Routes) {
    let post = MethodFilter::POST;
    let of = "/api/sessions/{id}/pause";
    routes.add(post, of, "/compat/ash/api/sessions/{id}/pause", Needs::Use, pause);
    let of = "/api/sessions/{id}/stop";
    routes.add(post, of, "/compat/ash/api/sessions/{id}/stop", Needs::Use, stop);
    let of = "/api/sessions/{id}/resume";
    routes.add(post, of, "/compat/ash/api/sessions/{id}/resume", Needs::Use, resume);
    let of = "/api/sessions/{id}/fork";
    routes.add(post, of, "/compat/ash/api/sessions/{id}/fork", Needs::Use, fork);
}

fn cannot(what: &str, status: SessionStatus) -> AshError {
    let status = answer::status(status);
    AshError::new(400, format!("Cannot {what} session with status \"{status}\""))
}

async fn pause(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    let status = find_session(&app, caller, id).await?.status;
    if status != SessionStatus::Active {
        return Err(cannot("pause", status));
    }
    let until = Instant::now() + PAUSE_TIMEOUT;
    loop {
        match app.engine.pause_session(caller, id).await {
            Ok(view) => return Ok(answer::ok(&session_view(&view))),
            // In Ash a pause lets the message in progress end. Here it also says when that is so.
            Err(refusal) if is_busy(&refusal) && Instant::now() < until => {
                sleep(PAUSE_PERIOD).await;
            }
            Err(refusal) => return Err(refusal.into()),
        }
    }
}

/// Whether a session cannot be paused only because something is in progress in it.
fn is_busy(refusal: &Refusal) -> bool {
    [ErrorCode::TurnInProgress, ErrorCode::SessionBusy, ErrorCode::SandboxBusy]
        .contains(&refusal.code)
}

async fn stop(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    let status = find_session(&app, caller, id).await?.status;
    match status {
        SessionStatus::Active | SessionStatus::Starting => {}
        SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Ended => {
            return Err(cannot("stop", status));
        }
    }
    let view = app.engine.stop_session(caller, id).await?;
    Ok(answer::ok(&session_view(&view)))
}

async fn resume(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    let known = find_session(&app, caller, id).await?;
    match known.status {
        SessionStatus::Ended => Err(AshError::ended()),
        SessionStatus::Active => Ok(answer::ok(&json!({"session": known.shown}))),
        SessionStatus::Starting | SessionStatus::Paused | SessionStatus::Stopped => {
            let resumed = app.engine.resume_session_within(caller, id, Some(0)).await;
            let failed = |refusal| AshError::from(refusal).during("resume session");
            Ok(answer::ok(&session_view(&resumed.map_err(failed)?)))
        }
    }
}

async fn fork(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    if find_session(&app, caller, id).await?.status == SessionStatus::Ended {
        return Err(AshError::ended());
    }
    let forked = app.engine.fork_session(caller, id).await;
    let view = forked.map_err(|refusal| AshError::from(refusal).during("fork session"))?;
    let shown = session_view(&view);
    remember_soon(&app, view);
    Ok(answer::created(&shown))
}
