//! Files in the workspace of a session. Everything goes through the guest, so no link leads to a
//! file of the host.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::MethodFilter;
use engine::{Entry, EntryKind, Use, UseKind};
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use model::{ErrorCode, Refusal};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use super::deploy::inner_path;
use super::errors::AshError;
use super::fields::{At, session_id};
use super::known_sessions::find_session;
use super::uploads::Uploads;
use super::{Routes, answer, request_body};
use crate::app::App;
use web::contents::contents;
use web::front::{By, Needs};
use web::query::Query;

pub(super) const WORKSPACE: &str = "/workspace";
pub(super) const JSON_FILE_MAX: u64 = 1 << 20;
const RAW_FILE_MAX: u64 = 100 << 20;
const BODY_MAX: u64 = 200 << 20;
const LIST: u32 = 500;
const LISTED_MAX: usize = 10_000;
const DEPTH_MAX: usize = 64;
const NO_FILE: &str = "Path is not a file";

pub(super) fn routes(routes: &mut Routes) {
    let (all, one) = ("/api/sessions/{id}/files", "/api/sessions/{id}/files/{*path}");
    let all_name = "/compat/ash/api/sessions/{id}/files";
    let one_name = "/compat/ash/api/sessions/{id}/files/{path}";
    routes.add(MethodFilter::GET, all, all_name, Needs::Read, list);
    routes.add(MethodFilter::POST, all, all_name, Needs::Use, write);
    routes.add(MethodFilter::GET, one, one_name, Needs::Read, read);
    routes.add(MethodFilter::DELETE, one, one_name, Needs::Use, remove);
}

/// Whether a file is sent as JSON; none if the request does not say.
pub(super) fn format_of(query: &mut Query) -> Result<Option<bool>, AshError> {
    match query.text("format")?.as_deref() {
        None => Ok(None),
        Some("json") => Ok(Some(true)),
        Some("raw") => Ok(Some(false)),
        Some(_) => Err(AshError::invalid("querystring/format must be one of json, raw")),
    }
}

fn no_file(refusal: Refusal) -> AshError {
    if refusal.code == ErrorCode::PathWrongKind {
        return AshError::new(400, NO_FILE);
    }
    refusal.into()
}

fn path_in(given: &str) -> Result<(String, String), AshError> {
    let inner = inner_path(given).ok_or_else(|| AshError::new(400, "Invalid file path"))?;
    let whole = format!("{WORKSPACE}/{inner}");
    Ok((inner, whole))
}

async fn list(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
    mut query: Query,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    let hidden = match query.text("includeHidden")?.as_deref() {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => {
            return Err(AshError::invalid("querystring/includeHidden must be one of true, false"));
        }
    };
    find_session(&app, caller, id).await?;
    let used = app.engine.use_session(caller, id, UseKind::Read, Some(0)).await?;
    let (files, truncated) = all_files(&used, hidden).await?;
    let mut listing = json!({"files": files, "source": "sandbox"});
    if truncated {
        listing["truncated"] = true.into();
    }
    Ok(answer::ok(&listing))
}

/// All files beneath the workspace; whether there are more than are listed.
async fn all_files(used: &Use, hidden: bool) -> Result<(Vec<Value>, bool), AshError> {
    let mut files = Vec::new();
    let mut left = vec![String::new()];
    let mut truncated = false;
    while let Some(directory) = left.pop() {
        let at = format!("{WORKSPACE}/{directory}");
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = match used.list_files(&at, after.as_deref(), LIST).await {
                Ok(page) => page,
                // Closed to the user of the sandbox, or gone since it was listed.
                Err(refusal)
                    if !directory.is_empty()
                        && [ErrorCode::PathNotFound, ErrorCode::PathDenied]
                            .contains(&refusal.code) =>
                {
                    break;
                }
                Err(refusal) => return Err(refusal.into()),
            };
            after = page.entries.last().filter(|_| page.more).map(|entry| entry.name.clone());
            for entry in &page.entries {
                let name = String::from_utf8_lossy(&entry.name);
                if !hidden && name.starts_with('.') {
                    continue;
                }
                let path = format!("{directory}{name}");
                match entry.kind {
                    EntryKind::File if files.len() < LISTED_MAX => files.push(shown(&path, entry)),
                    EntryKind::Directory if path.matches('/').count() < DEPTH_MAX => {
                        left.push(format!("{path}/"));
                    }
                    EntryKind::File | EntryKind::Directory => truncated = true,
                    EntryKind::Link | EntryKind::Other => {}
                }
            }
            if after.is_none() || truncated {
                break;
            }
        }
        if truncated {
            break;
        }
    }
    files.sort_by(|one, other| one["path"].as_str().cmp(&other["path"].as_str()));
    Ok((files, truncated))
}

fn shown(path: &str, entry: &Entry) -> Value {
    let modified = wire::Time(entry.modified_ms).to_string();
    json!({"path": path, "size": entry.size, "modifiedAt": modified})
}

async fn read(
    State(app): State<App>,
    By(caller): By,
    At((id, path)): At<(String, String)>,
    mut query: Query,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    let is_json = format_of(&mut query)?.unwrap_or(false);
    let (inner, whole) = path_in(&path)?;
    find_session(&app, caller, id).await?;
    let used = app.engine.use_session(caller, id, UseKind::Read, Some(0)).await?;
    let opened = used.read_file(&whole, 0, None).await;
    let mut reader = opened.map_err(no_file)?;
    if reader.entry.kind != EntryKind::File {
        return Err(AshError::new(400, NO_FILE));
    }
    let size = reader.entry.size;
    let most = if is_json { JSON_FILE_MAX } else { RAW_FILE_MAX };
    if size > most {
        return Err(AshError::new(400, format!("File too large: more than {most} bytes")));
    }
    if !is_json {
        let body = contents(used, reader, Some(size));
        let mut response = as_download(&inner, body, Some(size));
        let source = HeaderName::from_static("x-ash-source");
        response.headers_mut().insert(source, HeaderValue::from_static("sandbox"));
        return Ok(response);
    }
    let mut bytes = Vec::new();
    if let Err(error) = (&mut reader).take(JSON_FILE_MAX).read_to_end(&mut bytes).await {
        return Err(used.explain(error).await.into());
    }
    let content = String::from_utf8_lossy(&bytes);
    let file_json = json!({"path": inner, "content": content, "size": size, "source": "sandbox"});
    Ok(answer::ok(&file_json))
}

/// A file as bytes, which a browser must not render as a page.
pub(super) fn as_download(path: &str, body: Body, size: Option<u64>) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type(path)));
    let no_sniffing = HeaderName::from_static("x-content-type-options");
    headers.insert(no_sniffing, HeaderValue::from_static("nosniff"));
    let name = path.rsplit('/').next().unwrap_or_default();
    let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
    let disposition = format!("attachment; filename*=UTF-8''{name}");
    if let Ok(value) = HeaderValue::try_from(disposition) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
    if let Some(size) = size {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    }
    response
}

fn media_type(path: &str) -> &'static str {
    let ending = path.rsplit('/').next().and_then(|name| name.rsplit_once('.'));
    match ending.map(|(_, ending)| ending.to_ascii_lowercase()).as_deref() {
        Some("txt" | "log") => "text/plain; charset=utf-8",
        Some("md") => "text/markdown; charset=utf-8",
        Some("html" | "htm") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("csv") => "text/csv; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("xml") => "application/xml",
        Some("pdf") => "application/pdf",
        Some("zip") => "application/zip",
        Some("gz" | "tgz") => "application/gzip",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("svg") => "image/svg+xml",
        Some("webp") => "image/webp",
        Some(_) | None => "application/octet-stream",
    }
}

async fn write(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
    request: Request,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    find_session(&app, caller, id).await?;
    let read = request_body::read_whole(request, &app, BODY_MAX, |body| Uploads::of(&body)).await?;
    let Uploads { target, files } = read.taken;
    let used = app.engine.use_session(caller, id, UseKind::Files, Some(0)).await?;
    let mut results = Vec::new();
    for file in files {
        let written = file.write(&used, &target).await;
        results.push(match written {
            Ok(size) => json!({"path": file.path, "written": true, "size": size}),
            Err(why) => json!({"path": file.path, "written": false, "error": why}),
        });
    }
    drop(read.share);
    Ok(answer::ok(&json!({"files": results})))
}

async fn remove(
    State(app): State<App>,
    By(caller): By,
    At((id, path)): At<(String, String)>,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    let (inner, whole) = path_in(&path)?;
    find_session(&app, caller, id).await?;
    let used = app.engine.use_session(caller, id, UseKind::Files, Some(0)).await?;
    used.remove(&whole, false).await.map_err(no_file)?;
    Ok(answer::ok(&json!({"path": inner, "deleted": true})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn download_has_its_type_and_a_safe_file_name() {
        let response = as_download("a/b\"ü\r\n.TXT", Body::empty(), Some(3));
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("content-type"), "text/plain; charset=utf-8");
        let expected = "attachment; filename*=UTF-8''b%22%C3%BC%0D%0A%2ETXT";
        assert_eq!(header("content-disposition"), expected);
        assert_eq!(header("content-length"), "3");
        assert_eq!(media_type("Makefile"), "application/octet-stream");
        assert_eq!(media_type("a.d/x"), "application/octet-stream");
    }
}
