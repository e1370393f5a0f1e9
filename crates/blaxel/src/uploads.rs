//! Multipart uploads as Blaxel has them: parts may come in any order and at once. The engine stores
//! the parts, and limits the number of uploads.

use std::collections::BTreeMap;

use axum::extract::Request;
use axum::response::Response;
use engine::{UPLOAD_PARTS_MAX, Upload, UploadError, UploadPart, UseKind};
use serde::Deserialize;
use serde_json::{Value, json};

use super::errors::BlaxelError;
use super::file_changes::{permissions, unwritten};
use super::form::Form;
use super::paths::FilePath;
use super::target::Target;
use super::{answer, request_body};

fn part_view(number: u32, part: &UploadPart) -> Value {
    json!({
        "partNumber": number, "etag": part.etag, "size": part.size,
        "uploadedAt": answer::moment(part.at),
    })
}

fn no_upload(id: &str) -> BlaxelError {
    BlaxelError::new(404, format!("upload {id} not found"))
}

fn refused(id: &str, error: UploadError) -> BlaxelError {
    match error {
        UploadError::Unknown => no_upload(id),
        UploadError::NoParts => BlaxelError::bad("no parts given"),
        UploadError::Missing(number) => BlaxelError::bad(format!("part {number} is missing")),
        UploadError::OtherEtag(number) => {
            BlaxelError::bad(format!("part {number} has a different etag"))
        }
        UploadError::Refused(refusal) => unwritten(refusal),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Initiate {
    permissions: Option<String>,
}

pub(super) async fn initiate(
    target: &Target,
    path: &FilePath,
    request: Request,
) -> Result<Response, BlaxelError> {
    let app = &target.app;
    let (bytes, _share) = request_body::bytes(request, app, app.settings.json_bytes_max).await?;
    let asked: Initiate = request_body::parse(&bytes)?;
    let mode = permissions(asked.permissions.as_deref())?;
    let used = target.begin(UseKind::Files).await?;
    let id = app.engine.begin_upload(target.caller, &used, &path.whole, mode).await;
    answer::ok(&json!({"uploadId": id.map_err(unwritten)?, "path": path.whole}))
}

pub(super) async fn part(
    target: &Target,
    id: &str,
    request: Request,
) -> Result<Response, BlaxelError> {
    let (mut query, request) = request_body::query(request).await?;
    let number = query.text("partNumber")?.and_then(|text| text.parse::<u32>().ok());
    let number = number.filter(|number| (1..=UPLOAD_PARTS_MAX).contains(number));
    let Some(number) = number else {
        let cause = format!("partNumber must be from 1 to {UPLOAD_PARTS_MAX}");
        return Err(BlaxelError::bad(cause));
    };
    let unknown = |error| refused(id, error);
    let engine = &target.app.engine;
    let used = target.begin(UseKind::Files).await?;
    if engine.upload(used.sandbox(), id).is_none() {
        return Err(unknown(UploadError::Unknown));
    }
    let (parts, body) = request.into_parts();
    let mut form = Form::new(&parts.headers, body, target.app.settings.body_stall)?;
    let mut arrived = None;
    while let Some(part) = form.next().await? {
        if part.name != "file" || arrived.is_some() {
            continue;
        }
        let mut writer = engine.write_upload_part(&used, id, number).await.map_err(unknown)?;
        while let Some(chunk) = form.chunk().await? {
            writer.write(&chunk).await.map_err(unwritten)?;
        }
        arrived = Some(writer);
    }
    let Some(arrived) = arrived else {
        return Err(BlaxelError::bad("missing 'file' field in multipart form"));
    };
    let arrived = arrived.finish().await.map_err(unknown)?;
    answer::ok(&json!({"partNumber": number, "etag": arrived.etag, "size": arrived.size}))
}

pub(super) fn parts(target: &Target, id: &str) -> Result<Response, BlaxelError> {
    let now = target.own_now()?;
    let upload = now.and_then(|sandbox| target.app.engine.upload(sandbox, id));
    let Some(upload) = upload else { return Err(no_upload(id)) };
    let parts: Vec<_> =
        upload.parts.iter().map(|(number, part)| part_view(*number, part)).collect();
    answer::ok(&json!({"uploadId": id, "parts": parts}))
}

fn shown(id: &str, upload: &Upload) -> Value {
    let parts = upload.parts.iter();
    let parts: BTreeMap<_, _> =
        parts.map(|(number, part)| (number.to_string(), part_view(*number, part))).collect();
    json!({
        "uploadId": id, "path": upload.path, "permissions": upload.mode.unwrap_or(0o644),
        "initiatedAt": answer::moment(upload.began), "parts": parts,
    })
}

pub(super) fn list(target: &Target) -> Result<Response, BlaxelError> {
    let now = target.own_now()?;
    let all = now.map(|sandbox| target.app.engine.uploads(sandbox)).unwrap_or_default();
    let uploads: Vec<_> = all.iter().map(|(id, upload)| shown(id, upload)).collect();
    answer::ok(&json!({"uploads": uploads}))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Complete {
    parts: Vec<Named>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    part_number: u32,
    #[serde(default)]
    etag: String,
}

pub(super) async fn complete(
    target: &Target,
    id: &str,
    request: Request,
) -> Result<Response, BlaxelError> {
    let app = &target.app;
    let (bytes, _share) = request_body::bytes(request, app, app.settings.json_bytes_max).await?;
    let asked: Complete = request_body::parse(&bytes)?;
    let named = asked.parts.into_iter();
    let parts = named.map(|part| (part.part_number, part.etag.trim_matches('"').to_owned()));
    let used = target.begin(UseKind::Files).await?;
    let done = app.engine.complete_upload(&used, id, parts.collect()).await;
    let upload = done.map_err(|error| refused(id, error))?;
    answer::done(&upload.path, "Multipart upload completed successfully")
}

pub(super) async fn abort(target: &Target, id: &str) -> Result<Response, BlaxelError> {
    let used = target.begin(UseKind::Files).await?;
    let aborted = target.app.engine.abort_upload(&used, id).await;
    aborted.map_err(|error| refused(id, error))?;
    answer::done("", "Multipart upload aborted successfully")
}
