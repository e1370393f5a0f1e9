//! The whole workspace of a session as an archive, down and up.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::MethodFilter;
use engine::UseKind;
use engine::archive::{Bounds, Packing, Unpacking, Unusual};
use futures_util::stream;
use http::HeaderValue;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use serde_json::json;

use super::errors::AshError;
use super::fields::{At, Fields, session_id};
use super::files::WORKSPACE;
use super::known_sessions::find_session;
use super::{Routes, answer, request_body};
use crate::app::App;
use web::archive::pack::Sending;
use web::archive::source::Source;
use web::front::{By, Needs};
use web::refused::Refused;

/// A bundle of 100 MiB as base64.
const BODY_MAX: u64 = 134 << 20;

pub(super) fn routes(routes: &mut Routes) {
    let (of, name) = ("/api/sessions/{id}/workspace", "/compat/ash/api/sessions/{id}/workspace");
    routes.add(MethodFilter::GET, of, name, Needs::Read, download);
    routes.add(MethodFilter::POST, of, name, Needs::Use, upload);
}

async fn download(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    find_session(&app, caller, id).await?;
    let used = app.engine.use_session(caller, id, UseKind::Read, Some(0)).await?;
    let packing = Packing::start(used, WORKSPACE, app.settings.archive_entries_max).await?;
    let pieces = stream::try_unfold(Sending::new(packing, true), |mut sending| async move {
        let piece = sending.next().await?;
        Ok::<_, std::io::Error>(piece.map(|piece| (piece, sending)))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/gzip"));
    let disposition = format!("attachment; filename=\"{id}.tar.gz\"");
    if let Ok(value) = HeaderValue::try_from(disposition) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

fn bundle_of(mut body: Fields) -> Result<Vec<u8>, AshError> {
    let bundle = body.required_text("bundle", usize::MAX)?;
    let wrong = |_| AshError::new(400, "Invalid base64 content");
    let bytes = wire::from_base64(&bundle).map_err(wrong)?;
    if bytes.is_empty() {
        return Err(AshError::new(400, "Empty bundle"));
    }
    Ok(bytes)
}

async fn upload(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
    request: Request,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    find_session(&app, caller, id).await?;
    let read = request_body::read(request, &app, BODY_MAX, bundle_of).await?;
    let bytes = read.taken;
    let used = app.engine.use_session(caller, id, UseKind::Files, Some(0)).await?;
    let source = Source::new(Body::from(bytes), true, app.settings.body_stall);
    let entries = app.settings.archive_entries_max;
    let (bytes, unusual) = (app.settings.archive_bytes_max, Unusual::Refuse);
    let unpacking = Unpacking::new(&used, source, WORKSPACE, Bounds { entries, bytes, unusual });
    unpacking.run().await.map_err(Refused::from)?;
    drop(read.share);
    Ok(answer::ok(&json!({"message": "Workspace restored to live sandbox"})))
}
