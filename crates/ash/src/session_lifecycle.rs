//! Pause, stop, resume, fork. Bodies are not looked at: some clients send an empty one and say that
//! it is JSON.

use axum::extract::State;
use axum::response::Response;
use axum::routing::MethodFilter;
use model::SessionStatus;
use serde_json::json;

use super::errors::AshError;
use super::fields::{At, session_id};
use super::known_sessions::find_session;
use super::sessions::session_view;
use super::{Routes, answer};
use crate::app::App;
use web::front::{By, Needs};

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
    let view = app.engine.pause_session(caller, id).await?;
    Ok(answer::ok(&session_view(&view)))
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
    find_session(&app, caller, id).await?;
    let forked = app.engine.fork_session(caller, id).await;
    let view = forked.map_err(|refusal| AshError::from(refusal).during("fork session"))?;
    Ok(answer::created(&session_view(&view)))
}
