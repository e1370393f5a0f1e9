//! Large files in parts, which may come in any order and at once. Parts are files of the sandbox until
//! they are put together, so they count against its own disk; what nobody completes expires.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::extract::Request;
use axum::response::Response;
use engine::{Caller, Use, UseKind};
use model::{ErrorCode, Refusal, SandboxId, Wall};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use super::changes::{permissions, unwritten};
use super::errors::BlaxelError;
use super::form::Form;
use super::paths::{FilePath, WORKSPACE};
use super::target::{Target, is_unknown};
use super::{answer, reading};
use crate::app::App;

/// Where parts are until they are put together.
const PLACE: &str = ".shoal-uploads";
const PARTS_MAX: u32 = 10_000;
/// Of all keys; one key alone cannot take them all.
const UPLOADS_MAX: usize = 4_096;
const UPLOADS_OF_KEY_MAX: usize = 256;
const UPLOADS_OF_ONE_MAX: usize = 64;
/// How many that are left over are looked at each time.
const LISTED_MAX: u32 = 1_000;
const EXPIRES_MS: u64 = 24 * 3600 * 1000;

/// Uploads that are not complete, by id.
#[derive(Default)]
pub(super) struct Uploads(Mutex<BTreeMap<String, Upload>>);

#[derive(Debug, Clone)]
struct Upload {
    by: Caller,
    sandbox: SandboxId,
    path: String,
    mode: Option<u32>,
    began: Wall,
    parts: BTreeMap<u32, Arrived>,
}

#[derive(Debug, Clone)]
struct Arrived {
    etag: String,
    size: u64,
    at: Wall,
}

impl Arrived {
    fn told(&self, number: u32) -> Value {
        json!({
            "partNumber": number, "etag": self.etag, "size": self.size,
            "uploadedAt": answer::moment(self.at),
        })
    }
}

impl Uploads {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Upload>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, id: &str, sandbox: SandboxId) -> Option<Upload> {
        self.all().get(id).filter(|upload| upload.sandbox == sandbox).cloned()
    }

    /// Begins one, unless there are too many. Those of sandboxes that are no more do not count.
    fn begin(
        &self,
        id: &str,
        upload: Upload,
        is_there: impl Fn(Caller, SandboxId) -> bool,
    ) -> Result<(), Refusal> {
        let mut all = self.all();
        let now = upload.began;
        all.retain(|_, known| {
            now.0.saturating_sub(known.began.0) < EXPIRES_MS && is_there(known.by, known.sandbox)
        });
        let of_one = all.values().filter(|known| known.sandbox == upload.sandbox).count();
        let of_key = all.values().filter(|known| known.by.key == upload.by.key).count();
        if all.len() >= UPLOADS_MAX || of_one >= UPLOADS_OF_ONE_MAX || of_key >= UPLOADS_OF_KEY_MAX
        {
            let cause = "too many uploads are not complete: complete or abort some";
            return Err(Refusal::new(ErrorCode::LimitReached, cause));
        }
        all.insert(id.to_owned(), upload);
        Ok(())
    }
}

fn directory(id: &str) -> String {
    format!("{WORKSPACE}/{PLACE}/{id}")
}

fn no_upload(id: &str) -> BlaxelError {
    BlaxelError::new(404, format!("upload {id} not found"))
}

fn fresh_id() -> Result<String, BlaxelError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| BlaxelError::new(500, error.to_string()))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
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
    let (bytes, _share) = reading::bytes(request, app, app.settings.json_bytes_max).await?;
    let asked: Initiate = reading::parse(&bytes)?;
    let mode = permissions(asked.permissions.as_deref())?;
    let used = target.begin(UseKind::Files).await?;
    remove_expired(app, &used).await;
    let id = fresh_id()?;
    let began = app.engine.now().wall;
    let (sandbox, path) = (used.sandbox(), path.whole.clone());
    let (by, parts) = (target.caller, BTreeMap::new());
    let upload = Upload { by, sandbox, path: path.clone(), mode, began, parts };
    let is_there = |by: Caller, sandbox: SandboxId| {
        app.engine.sandbox(by, sandbox).map_or_else(|refusal| !is_unknown(&refusal), |_| true)
    };
    app.blaxel.uploads.begin(&id, upload, is_there)?;
    if let Err(refusal) = used.make_directory(&directory(&id), true).await {
        app.blaxel.uploads.all().remove(&id);
        return Err(unwritten(refusal));
    }
    answer::ok(&json!({"uploadId": id, "path": path}))
}

/// What is left of uploads that nobody completed, or that a server before this one began.
async fn remove_expired(app: &App, used: &Use) {
    let place = format!("{WORKSPACE}/{PLACE}");
    let Ok(page) = used.list_files(&place, None, LISTED_MAX).await else { return };
    let now = i64::try_from(app.engine.now().wall.0).unwrap_or(i64::MAX);
    for entry in &page.entries {
        let id = String::from_utf8_lossy(&entry.name);
        let is_old = now.saturating_sub(entry.modified_ms) > EXPIRES_MS.cast_signed();
        if is_old && app.blaxel.uploads.of(&id, used.sandbox()).is_none() {
            let _ = used.remove(&directory(&id), true).await;
        }
    }
}

pub(super) async fn part(
    target: &Target,
    id: &str,
    request: Request,
) -> Result<Response, BlaxelError> {
    let (mut query, request) = reading::query(request).await?;
    let number = query.text("partNumber")?.and_then(|text| text.parse::<u32>().ok());
    let number = number.filter(|number| (1..=PARTS_MAX).contains(number));
    // Both are an error of the server in Blaxel, and clients expect that.
    let Some(number) = number else {
        return Err(BlaxelError::new(500, format!("partNumber must be from 1 to {PARTS_MAX}")));
    };
    let uploads = &target.app.blaxel.uploads;
    let used = target.begin(UseKind::Files).await?;
    if uploads.of(id, used.sandbox()).is_none() {
        return Err(no_upload(id).with_status(500));
    }
    let (parts, body) = request.into_parts();
    let mut form = Form::new(&parts.headers, body, target.app.settings.body_stall)?;
    let mut arrived = None;
    while let Some(part) = form.next().await? {
        if part.name != "file" || arrived.is_some() {
            continue;
        }
        let path = format!("{}/part-{number}", directory(id));
        let mut writer = used.write_file(&path, None).await.map_err(unwritten)?;
        let (mut digest, mut size) = (Sha256::new(), 0);
        while let Some(chunk) = form.chunk().await? {
            digest.update(&chunk);
            size += chunk.len() as u64;
            if let Err(error) = writer.write_all(&chunk).await {
                return Err(unwritten(used.explain(error).await));
            }
        }
        used.finish_file(writer).await.map_err(unwritten)?;
        arrived = Some((etag(&digest.finalize()), size));
    }
    let Some((etag, size)) = arrived else {
        return Err(BlaxelError::bad("missing 'file' field in multipart form"));
    };
    let arrived = Arrived { etag, size, at: target.app.engine.now().wall };
    let told = json!({"partNumber": number, "etag": arrived.etag, "size": size});
    match uploads.all().get_mut(id) {
        Some(upload) => drop(upload.parts.insert(number, arrived)),
        None => return Err(no_upload(id).with_status(500)),
    }
    answer::ok(&told)
}

/// As many digits as clients know it with; what it is made from is nobody's affair.
fn etag(digest: &[u8]) -> String {
    digest.iter().take(16).fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(super) fn parts(target: &Target, id: &str) -> Result<Response, BlaxelError> {
    let upload = target.own_now()?.and_then(|sandbox| target.app.blaxel.uploads.of(id, sandbox));
    let Some(upload) = upload else { return Err(no_upload(id)) };
    let parts: Vec<_> = upload.parts.iter().map(|(number, part)| part.told(*number)).collect();
    answer::ok(&json!({"uploadId": id, "parts": parts}))
}

pub(super) fn list(target: &Target) -> Result<Response, BlaxelError> {
    let now = target.own_now()?;
    let all = target.app.blaxel.uploads.all();
    let mine = all.iter().filter(|(_, upload)| now == Some(upload.sandbox));
    let mine: Vec<_> = mine.map(|(id, upload)| (id.clone(), upload.clone())).collect();
    drop(all);
    let uploads: Vec<_> = mine
        .iter()
        .map(|(id, upload)| {
            let parts = upload.parts.iter();
            let parts: BTreeMap<_, _> =
                parts.map(|(number, part)| (number.to_string(), part.told(*number))).collect();
            json!({
                "uploadId": id, "path": upload.path, "permissions": upload.mode.unwrap_or(0o644),
                "initiatedAt": answer::moment(upload.began), "parts": parts,
            })
        })
        .collect();
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
    let (bytes, _share) = reading::bytes(request, app, app.settings.json_bytes_max).await?;
    let mut asked: Complete = reading::parse(&bytes)?;
    let used = target.begin(UseKind::Files).await?;
    let Some(upload) = app.blaxel.uploads.of(id, used.sandbox()) else { return Err(no_upload(id)) };
    if asked.parts.is_empty() {
        return Err(BlaxelError::bad("no parts given"));
    }
    asked.parts.sort_by_key(|part| part.part_number);
    for part in &asked.parts {
        let number = part.part_number;
        match upload.parts.get(&number) {
            None => return Err(BlaxelError::new(500, format!("part {number} is missing"))),
            Some(known) if known.etag != part.etag.trim_matches('"') => {
                return Err(BlaxelError::new(500, format!("part {number} has another etag")));
            }
            Some(_) => {}
        }
    }
    let numbers = asked.parts.iter().map(|part| part.part_number);
    put_together(&used, id, &upload, numbers).await?;
    app.blaxel.uploads.all().remove(id);
    clear(&used, id).await;
    answer::done(&upload.path, "Multipart upload completed successfully")
}

async fn put_together(
    used: &Use,
    id: &str,
    upload: &Upload,
    numbers: impl Iterator<Item = u32>,
) -> Result<(), BlaxelError> {
    let mut writer = used.write_file(&upload.path, upload.mode).await.map_err(unwritten)?;
    for number in numbers {
        let path = format!("{}/part-{number}", directory(id));
        let mut reader = used.read_file(&path, 0, None).await.map_err(unwritten)?;
        if let Err(error) = tokio::io::copy(&mut reader, &mut writer).await {
            return Err(unwritten(used.explain(error).await));
        }
    }
    used.finish_file(writer).await.map_err(unwritten)?;
    Ok(())
}

/// Removes the parts, and the place for them if it is empty.
async fn clear(used: &Use, id: &str) {
    if let Err(refusal) = used.remove(&directory(id), true).await {
        tracing::debug!(%refusal, "parts of an upload are left");
    }
    let _ = used.remove(&format!("{WORKSPACE}/{PLACE}"), false).await;
}

pub(super) async fn abort(target: &Target, id: &str) -> Result<Response, BlaxelError> {
    let used = target.begin(UseKind::Files).await?;
    let uploads = &target.app.blaxel.uploads;
    if uploads.of(id, used.sandbox()).is_none() {
        return Err(no_upload(id));
    }
    uploads.all().remove(id);
    clear(&used, id).await;
    answer::done("", "Multipart upload aborted successfully")
}

#[cfg(test)]
mod tests {
    use model::{KeyId, Role};

    use super::*;

    fn upload(sandbox: u128, began: u64) -> Upload {
        let key = KeyId::from_u128(sandbox / 1_000);
        Upload {
            by: Caller { key, role: Role::Use },
            sandbox: SandboxId::from_u128(sandbox),
            path: "/a".to_owned(),
            mode: None,
            began: Wall(began),
            parts: BTreeMap::new(),
        }
    }

    fn begin(uploads: &Uploads, id: &str, upload: Upload) -> bool {
        uploads.begin(id, upload, |_, _| true).is_ok()
    }

    #[test]
    fn uploads_are_bounded_expire_and_belong_to_their_sandbox() {
        let uploads = Uploads::default();
        for n in 0..UPLOADS_OF_ONE_MAX {
            assert!(begin(&uploads, &n.to_string(), upload(1, 0)));
        }
        assert!(!begin(&uploads, "more", upload(1, 1)));
        assert!(begin(&uploads, "other", upload(2, 1)));
        assert!(uploads.of("0", SandboxId::from_u128(1)).is_some());
        assert!(uploads.of("0", SandboxId::from_u128(2)).is_none());
        assert!(begin(&uploads, "later", upload(1, EXPIRES_MS)));
        assert!(uploads.of("0", SandboxId::from_u128(1)).is_none(), "expired");
    }

    #[test]
    fn one_key_takes_no_places_of_others_and_what_is_gone_takes_none() {
        let uploads = Uploads::default();
        for n in 0..UPLOADS_OF_KEY_MAX {
            assert!(begin(&uploads, &n.to_string(), upload(n as u128, 0)));
        }
        assert!(!begin(&uploads, "more", upload(999, 0)), "the key has too many");
        assert!(begin(&uploads, "other", upload(1_000, 0)));
        let gone = SandboxId::from_u128(0);
        uploads.begin("more", upload(999, 0), |_, sandbox| sandbox != gone).unwrap();
        assert!(uploads.of("0", gone).is_none());
    }

    #[test]
    fn an_etag_looks_like_one() {
        assert_eq!(etag(&Sha256::digest(b"")), "e3b0c44298fc1c149afbf4c8996fb924");
    }
}
