//! Large files that arrive in parts, in any order and concurrently. Parts are files in the sandbox
//! until they are joined, so they count against its disk. This module decides how many uploads may
//! be open and when an incomplete one expires.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::{ErrorCode, Refusal, SandboxId, Wall};
use runtime::{EntryKind, FileWriter, Page};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use crate::boxed;
use crate::{Caller, Engine, Use};

/// Where parts are until they are joined.
const PLACE: &str = "/workspace/.shoal-uploads";
/// The name of that directory. It is ours: lists, searches, watches and archives leave it out.
pub(crate) const PLACE_NAME: &str = ".shoal-uploads";
/// The highest number that a part may have.
pub const UPLOAD_PARTS_MAX: u32 = 10_000;
/// Of all keys; one key alone cannot take them all.
const UPLOADS_MAX: usize = 4_096;
const UPLOADS_OF_KEY_MAX: usize = 256;
const UPLOADS_OF_SANDBOX_MAX: usize = 64;
/// How many leftover uploads are listed each time.
const LISTED_MAX: u32 = 1_000;
const EXPIRES_MS: u64 = 24 * 3600 * 1000;

/// An incomplete upload.
#[derive(Debug, Clone)]
pub struct Upload {
    by: Caller,
    sandbox: SandboxId,
    /// Where the file will be.
    pub path: String,
    /// The permissions of the file.
    pub mode: Option<u32>,
    /// When it began.
    pub began: Wall,
    /// The parts that have arrived, by number.
    pub parts: BTreeMap<u32, UploadPart>,
}

/// A part that has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadPart {
    /// Identifies its contents.
    pub etag: String,
    /// Its bytes.
    pub size: u64,
    /// When it arrived.
    pub at: Wall,
}

/// Why an upload cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UploadError {
    /// The sandbox has no upload of this id.
    Unknown,
    /// An upload without parts cannot be completed.
    NoParts,
    /// A part has not arrived.
    Missing(u32),
    /// A part has another etag than the client says.
    OtherEtag(u32),
    /// Anything else.
    Refused(Refusal),
}

impl From<Refusal> for UploadError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Incomplete uploads, by id.
#[derive(Default)]
pub(crate) struct Uploads(Mutex<BTreeMap<String, Upload>>);

impl Uploads {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Upload>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, id: &str, sandbox: SandboxId) -> Option<Upload> {
        self.all().get(id).filter(|upload| upload.sandbox == sandbox).cloned()
    }

    /// Begins one, unless there are too many. Uploads of ended sandboxes do not count.
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
        if all.len() >= UPLOADS_MAX
            || of_one >= UPLOADS_OF_SANDBOX_MAX
            || of_key >= UPLOADS_OF_KEY_MAX
        {
            let cause = "too many uploads are incomplete: complete or abort some";
            return Err(Refusal::new(ErrorCode::LimitReached, cause));
        }
        all.insert(id.to_owned(), upload);
        Ok(())
    }
}

/// An upload whose directory does not exist yet. The upload is removed when this is dropped.
struct Placeless<'a> {
    uploads: &'a Uploads,
    id: &'a str,
}

impl Placeless<'_> {
    fn has_a_place(self) {
        std::mem::forget(self);
    }
}

impl Drop for Placeless<'_> {
    fn drop(&mut self) {
        self.uploads.all().remove(self.id);
    }
}

/// A part that is being written.
pub struct UploadPartWriter<'u> {
    engine: Engine,
    used: &'u Use,
    id: String,
    number: u32,
    writer: FileWriter,
    digest: Sha256,
    size: u64,
}

fn directory(id: &str) -> String {
    format!("{PLACE}/{id}")
}

fn part(id: &str, number: u32) -> String {
    format!("{PLACE}/{id}/part-{number}")
}

fn fresh_id() -> Result<String, Refusal> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
}

impl Engine {
    /// Begins an upload of a file to a sandbox in use; returns its id.
    #[boxed]
    pub async fn begin_upload(
        &self,
        caller: Caller,
        used: &Use,
        path: &str,
        mode: Option<u32>,
    ) -> Result<String, Refusal> {
        self.remove_expired_uploads(used).await;
        let (id, began) = (fresh_id()?, self.now().wall);
        let (sandbox, path, parts) = (used.sandbox(), path.to_owned(), BTreeMap::new());
        let upload = Upload { by: caller, sandbox, path, mode, began, parts };
        let is_there = |by: Caller, sandbox: SandboxId| {
            self.sandbox(by, sandbox).map_or_else(|refusal| !is_gone(&refusal), |_| true)
        };
        self.core.uploads.begin(&id, upload, is_there)?;
        let placeless = Placeless { uploads: &self.core.uploads, id: &id };
        used.make_directory(&directory(&id), true).await?;
        placeless.has_a_place();
        Ok(id)
    }

    /// Removes the parts of uploads that expired, or that an earlier server began.
    async fn remove_expired_uploads(&self, used: &Use) {
        let Ok(page) = used.list_files(PLACE, None, LISTED_MAX).await else { return };
        let now = i64::try_from(self.now().wall.0).unwrap_or(i64::MAX);
        for entry in &page.entries {
            let id = String::from_utf8_lossy(&entry.name);
            let is_old = now.saturating_sub(entry.modified_ms) > EXPIRES_MS.cast_signed();
            if is_old && self.core.uploads.of(&id, used.sandbox()).is_none() {
                // Tried again when another upload begins.
                let _ = used.remove(&directory(&id), true).await;
            }
        }
    }

    /// An incomplete upload of a sandbox. The caller must own the sandbox.
    pub fn upload(&self, sandbox: SandboxId, id: &str) -> Option<Upload> {
        self.core.uploads.of(id, sandbox)
    }

    /// All of them, by id.
    pub fn uploads(&self, sandbox: SandboxId) -> Vec<(String, Upload)> {
        let all = self.core.uploads.all();
        let of_it = all.iter().filter(|(_, upload)| upload.sandbox == sandbox);
        of_it.map(|(id, upload)| (id.clone(), upload.clone())).collect()
    }

    /// Begins to write a part.
    #[boxed]
    pub async fn write_upload_part<'u>(
        &self,
        used: &'u Use,
        id: &str,
        number: u32,
    ) -> Result<UploadPartWriter<'u>, UploadError> {
        if self.upload(used.sandbox(), id).is_none() {
            return Err(UploadError::Unknown);
        }
        if !(1..=UPLOAD_PARTS_MAX).contains(&number) {
            let cause = format!("a part has a number from 1 to {UPLOAD_PARTS_MAX}");
            return Err(Refusal::new(ErrorCode::InvalidArgument, cause).into());
        }
        let writer = used.write_file(&part(id, number), None).await?;
        let (engine, id, digest) = (self.clone(), id.to_owned(), Sha256::new());
        Ok(UploadPartWriter { engine, used, id, number, writer, digest, size: 0 })
    }

    /// Joins parts in the order of their numbers, each checked by its etag.
    #[boxed]
    pub async fn complete_upload(
        &self,
        used: &Use,
        id: &str,
        mut parts: Vec<(u32, String)>,
    ) -> Result<Upload, UploadError> {
        let upload = self.upload(used.sandbox(), id).ok_or(UploadError::Unknown)?;
        if parts.is_empty() {
            return Err(UploadError::NoParts);
        }
        parts.sort_by_key(|(number, _)| *number);
        for (number, etag) in &parts {
            match upload.parts.get(number) {
                None => return Err(UploadError::Missing(*number)),
                Some(known) if known.etag != *etag => return Err(UploadError::OtherEtag(*number)),
                Some(_) => {}
            }
        }
        let mut writer = used.write_file(&upload.path, upload.mode).await?;
        for (number, _) in &parts {
            let mut reader = used.read_file(&part(id, *number), 0, None).await?;
            if let Err(error) = tokio::io::copy(&mut reader, &mut writer).await {
                return Err(used.explain(error).await.into());
            }
        }
        used.finish_file(writer).await?;
        self.forget_upload(used, id).await;
        Ok(upload)
    }

    /// Aborts an upload.
    #[boxed]
    pub async fn abort_upload(&self, used: &Use, id: &str) -> Result<(), UploadError> {
        if self.upload(used.sandbox(), id).is_none() {
            return Err(UploadError::Unknown);
        }
        self.forget_upload(used, id).await;
        Ok(())
    }

    /// Removes the parts, and the directory of all parts if it is empty.
    async fn forget_upload(&self, used: &Use, id: &str) {
        self.core.uploads.all().remove(id);
        if let Err(refusal) = used.remove(&directory(id), true).await {
            tracing::debug!(
                sandbox = %used.sandbox(),
                cause = %refusal,
                "the parts of an upload could not be removed"
            );
        }
        // Other uploads may have parts there.
        let _ = used.remove(PLACE, false).await;
    }
}

/// Removes our directory from a page. Says after which name the next page begins, if nothing is
/// left of this one and there is a next.
pub(crate) fn hide_place(page: &mut Page) -> Option<Vec<u8>> {
    let last = page.entries.last().map(|entry| entry.name.clone());
    page.entries
        .retain(|entry| entry.kind != EntryKind::Directory || entry.name != PLACE_NAME.as_bytes());
    last.filter(|_| page.more && page.entries.is_empty())
}

/// Whether a path is our directory, or beneath it.
pub(crate) fn is_in_place(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == PLACE_NAME.as_bytes())
}

/// Whether a refusal only says that the sandbox is gone.
fn is_gone(refusal: &Refusal) -> bool {
    [ErrorCode::SandboxUnknown, ErrorCode::SandboxGone].contains(&refusal.code)
}

impl UploadPartWriter<'_> {
    /// Writes some of the part.
    #[boxed]
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.digest.update(bytes);
        self.size += bytes.len() as u64;
        match self.writer.write_all(bytes).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.used.explain(error).await),
        }
    }

    /// The part is complete.
    pub async fn finish(self) -> Result<UploadPart, UploadError> {
        self.used.finish_file(self.writer).await?;
        let (etag, at) = (etag(&self.digest.finalize()), self.engine.now().wall);
        let part = UploadPart { etag, size: self.size, at };
        match self.engine.core.uploads.all().get_mut(&self.id) {
            Some(upload) => drop(upload.parts.insert(self.number, part.clone())),
            None => return Err(UploadError::Unknown),
        }
        Ok(part)
    }
}

/// As many digits as clients of other systems expect.
fn etag(digest: &[u8]) -> String {
    digest.iter().take(16).fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
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
        for n in 0..UPLOADS_OF_SANDBOX_MAX {
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
    fn upload_limit_is_per_key_and_ignores_ended_sandboxes() {
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
    fn upload_limit_of_all_keys_together() {
        let uploads = Uploads::default();
        for n in 0..UPLOADS_MAX {
            let sandbox = (n / UPLOADS_OF_SANDBOX_MAX) as u128 * 1_000;
            assert!(begin(&uploads, &n.to_string(), upload(sandbox, 0)));
        }
        assert!(!begin(&uploads, "more", upload(1_000_000, 0)));
    }

    #[test]
    fn upload_etag_has_the_expected_form() {
        assert_eq!(etag(&Sha256::digest(b"")), "e3b0c44298fc1c149afbf4c8996fb924");
    }
}
