//! Reads files and directories. Everything goes through the guest, so no link leads
//! to a file of the host.

use axum::extract::Request;
use axum::response::Response;
use engine::{Entry, EntryKind, FileReader, Use, UseKind};
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    IF_MODIFIED_SINCE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use model::{ErrorCode, Refusal, Wall};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use tokio::io::AsyncReadExt as _;

use super::errors::BlaxelError;
use super::paths::{FilePath, WORKSPACE};
use super::target::Target;
use super::{answer, request_body};
use web::body_memory::Share;
use web::contents::contents;
use web::range::{Part, part};

/// The largest file that is sent as JSON.
const JSON_BYTES_MAX: u64 = 16 << 20;
const READ_BYTES: usize = 64 << 10;
const PAGE: u32 = 1_000;
const LISTED_MAX: usize = 100_000;
const X_FILE_TYPE: HeaderName = HeaderName::from_static("x-file-type");
const X_FILE_PERMISSIONS: HeaderName = HeaderName::from_static("x-file-permissions");
const BYTES: &str = "application/octet-stream";

/// A file as clients see it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FileView {
    path: String,
    name: String,
    permissions: String,
    size: u64,
    last_modified: String,
    owner: &'static str,
    group: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
}

#[derive(Debug, Serialize)]
struct EntryView {
    path: String,
    name: String,
}

/// A directory with what is in it, one level deep.
#[derive(Debug, Serialize)]
struct Directory {
    path: String,
    name: String,
    files: Vec<FileView>,
    subdirectories: Vec<EntryView>,
}

fn shown(entry: &Entry, path: String, whole: &str) -> FileView {
    // The guest does not tell whose a file is; programs own what is in the workspace.
    let owner = if whole.starts_with(WORKSPACE) { "agent" } else { "root" };
    FileView {
        path,
        name: String::from_utf8_lossy(&entry.name).into_owned(),
        permissions: permissions(entry),
        size: entry.size,
        last_modified: wire::Time(entry.modified_ms).to_string(),
        owner,
        group: owner,
        content: None,
    }
}

/// Permissions in octal, with the bits above them that Go would have for what is no plain file.
fn permissions(entry: &Entry) -> String {
    let kind: u32 = match entry.kind {
        EntryKind::File => 0,
        EntryKind::Directory => 1 << 31,
        EntryKind::Link => 1 << 27,
        EntryKind::Other => 1 << 19,
    };
    let special = [(0o4000, 1 << 23), (0o2000, 1 << 22), (0o1000, 1 << 20)];
    let special = special.iter().filter(|(bit, _)| entry.mode & bit != 0);
    let special = special.fold(0_u32, |all, (_, bit)| all | bit);
    format!("{:o}", kind | special | entry.mode & 0o777)
}

/// The kind of file at a path; a link is followed.
pub(super) async fn kind_of(used: &Use, path: &FilePath) -> Result<EntryKind, Refusal> {
    let kind = used.stat(&path.whole).await?.kind;
    match kind {
        EntryKind::Link => match used.list_files(&path.whole, None, 1).await {
            Ok(_) => Ok(EntryKind::Directory),
            Err(refusal) if refusal.code == ErrorCode::PathWrongKind => Ok(EntryKind::File),
            Err(refusal) => Err(refusal),
        },
        EntryKind::File | EntryKind::Directory | EntryKind::Other => Ok(kind),
    }
}

/// A directory, one level deep.
pub(super) async fn listing(used: &Use, path: &FilePath) -> Result<Response, BlaxelError> {
    let (mut files, mut subdirectories) = (Vec::new(), Vec::new());
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = used.list_files(&path.whole, after.as_deref(), PAGE).await?;
        for entry in &page.entries {
            let name = String::from_utf8_lossy(&entry.name);
            let at = path.shown_beneath(&name);
            if entry.kind == EntryKind::Directory {
                subdirectories.push(EntryView { path: at, name: name.into_owned() });
            } else {
                files.push(shown(entry, at, &path.whole));
            }
        }
        after = page.entries.last().filter(|_| page.more).map(|entry| entry.name.clone());
        if after.is_none() {
            break;
        }
        if files.len() + subdirectories.len() >= LISTED_MAX {
            let text = format!("the directory has more than {LISTED_MAX} entries");
            return Err(BlaxelError::new(422, text).with_code(ErrorCode::TooLarge));
        }
    }
    let (path, name) = (path.shown.clone(), path.name().to_owned());
    answer::ok(&Directory { path, name, files, subdirectories })
}

fn not_found(path: &FilePath, refusal: Refusal) -> BlaxelError {
    if refusal.code == ErrorCode::PathNotFound {
        let text = format!("file or directory not found: {}", path.shown);
        return BlaxelError::from(refusal).with_text(text);
    }
    refusal.into()
}

pub(super) async fn get(
    target: &Target,
    path: &FilePath,
    request: Request,
) -> Result<Response, BlaxelError> {
    let accept = request_body::accept(request.headers());
    let (mut query, request) = request_body::query(request).await?;
    let is_download = request_body::flag(&mut query, "download", false)? || takes_bytes(&accept);
    let used = target.begin(UseKind::Read).await?;
    let kind = kind_of(&used, path).await.map_err(|refusal| not_found(path, refusal))?;
    if kind == EntryKind::Directory {
        return listing(&used, path).await;
    }
    if is_download {
        return download(used, path, request.headers()).await;
    }
    let mut reader = used.read_file(&path.whole, 0, None).await?;
    if reader.entry.size > JSON_BYTES_MAX {
        return Err(too_large());
    }
    let (mut share, mut bytes) = (Share::default(), Vec::new());
    // Files that are made while they are read, or grow, have more than they say.
    loop {
        bytes.reserve(READ_BYTES);
        match reader.read_buf(&mut bytes).await {
            Ok(0) => break,
            Ok(_) => share.grow_to(&target.app.body_memory, bytes.len() as u64)?,
            Err(error) => return Err(used.explain(error).await.into()),
        }
        if bytes.len() as u64 > JSON_BYTES_MAX {
            return Err(too_large());
        }
    }
    let content = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
    };
    let file = shown(&reader.entry, path.shown.clone(), &path.whole);
    answer::counted(&target.app, share, &FileView { content: Some(content), ..file })
}

fn too_large() -> BlaxelError {
    let text = format!("the file has more than {JSON_BYTES_MAX} bytes; download it instead");
    BlaxelError::new(422, text).with_code(ErrorCode::TooLarge)
}

/// Whether a client wants the bytes of a file, and no JSON.
fn takes_bytes(accept: &str) -> bool {
    let names = |kind: &str| accept.contains(kind);
    !accept.is_empty() && (names(BYTES) || !(names("application/json") || names("*/*")))
}

async fn download(
    used: Use,
    path: &FilePath,
    headers: &HeaderMap,
) -> Result<Response, BlaxelError> {
    let wanted = headers.get(RANGE).and_then(|value| value.to_str().ok()).and_then(part);
    let (offset, length) = match wanted {
        None => (0, None),
        Some(Part::From { first, last }) => (first, last.map(|last| last - first + 1)),
        Some(Part::Last(count)) => {
            let reader = used.read_file(&path.whole, 0, Some(0)).await?;
            (reader.entry.size.saturating_sub(count), None)
        }
    };
    let reader = used.read_file(&path.whole, offset, length).await?;
    let entry = reader.entry.clone();
    if is_unchanged(headers, &entry) {
        return Ok(answer::empty(StatusCode::NOT_MODIFIED));
    }
    if wanted.is_some() && (offset >= entry.size || wanted == Some(Part::Last(0))) {
        let cause = format!("the file has {} bytes", entry.size);
        return Err(Refusal::new(ErrorCode::RangeNotSatisfiable, cause).into());
    }
    Ok(sent(used, reader, path, wanted.map(|_| (offset, length))))
}

fn is_unchanged(headers: &HeaderMap, entry: &Entry) -> bool {
    let since = headers.get(IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok());
    since.is_some_and(|since| since == answer::http_date(written_at(entry)))
}

fn written_at(entry: &Entry) -> Wall {
    Wall(u64::try_from(entry.modified_ms).unwrap_or(0))
}

fn sent(
    used: Use,
    reader: FileReader,
    path: &FilePath,
    range: Option<(u64, Option<u64>)>,
) -> Response {
    let entry = reader.entry.clone();
    let (offset, length) = range.unwrap_or((0, None));
    let count = (entry.size - offset.min(entry.size)).min(length.unwrap_or(u64::MAX));
    // Files that are made while they are read say that they have no size.
    let exact = (entry.size > 0 && entry.kind == EntryKind::File).then_some(count);
    let mut response = Response::new(contents(used, reader, exact));
    let headers = response.headers_mut();
    about(headers, path, &entry);
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let name = utf8_percent_encode(path.name(), NON_ALPHANUMERIC).to_string();
    let plain: String = path.name().chars().filter(|c| c.is_ascii_graphic() && *c != '"').collect();
    let disposition = format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{name}");
    if let Ok(disposition) = HeaderValue::try_from(disposition) {
        headers.insert(CONTENT_DISPOSITION, disposition);
    }
    if let Some(count) = exact {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(count));
    }
    if range.is_some() {
        let content_range = format!("bytes {offset}-{}/{}", offset + count.max(1) - 1, entry.size);
        if let Ok(content_range) = HeaderValue::try_from(content_range) {
            headers.insert(CONTENT_RANGE, content_range);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

fn about(headers: &mut HeaderMap, path: &FilePath, entry: &Entry) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type(path.name())));
    if let Ok(date) = HeaderValue::try_from(answer::http_date(written_at(entry))) {
        headers.insert(LAST_MODIFIED, date);
    }
}

/// The few that Blaxel knows.
fn media_type(name: &str) -> &'static str {
    let end = name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase());
    match end.as_deref() {
        Some("txt" | "log") => "text/plain",
        Some("html") => "text/html",
        Some("css") => "text/css",
        Some("js") => "application/javascript",
        Some("json") => "application/json",
        Some("xml") => "application/xml",
        Some("pdf") => "application/pdf",
        Some("zip") => "application/zip",
        Some("tar") => "application/x-tar",
        Some("gz") => "application/gzip",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("png") => "image/png",
        Some("gif") => "image/gif",
        Some("svg") => "image/svg+xml",
        Some(_) | None => BYTES,
    }
}

/// The file at a path, as headers; a missing one is answered with 404.
pub(super) async fn head(target: &Target, path: &FilePath) -> Result<Response, BlaxelError> {
    let used = target.begin(UseKind::Read).await?;
    let kind = kind_of(&used, path).await.map_err(|refusal| not_found(path, refusal))?;
    let entry = match kind {
        EntryKind::File => used.read_file(&path.whole, 0, Some(0)).await?.entry.clone(),
        EntryKind::Directory | EntryKind::Link | EntryKind::Other => used.stat(&path.whole).await?,
    };
    let mut response = answer::empty(StatusCode::OK);
    let headers = response.headers_mut();
    about(headers, path, &entry);
    let word = match kind {
        EntryKind::Directory => "directory",
        EntryKind::File | EntryKind::Link | EntryKind::Other => "file",
    };
    headers.insert(X_FILE_TYPE, HeaderValue::from_static(word));
    if let Ok(mode) = HeaderValue::try_from(format!("{:o}", entry.mode & 0o7777)) {
        headers.insert(X_FILE_PERMISSIONS, mode);
    }
    if kind == EntryKind::File {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(entry.size));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_sent_as_bytes_unless_json_is_accepted() {
        for (accept, bytes) in [
            ("", false),
            ("*/*", false),
            ("application/json", false),
            ("application/json, text/plain, */*", false),
            ("application/octet-stream", true),
            ("application/octet-stream, */*", true),
            ("text/plain", true),
        ] {
            assert_eq!(takes_bytes(accept), bytes, "{accept}");
        }
    }

    #[test]
    fn file_permissions_have_the_format_of_go() {
        let entry = |kind, mode| Entry {
            name: b"x".to_vec(),
            kind,
            size: 0,
            mode,
            modified_ms: 0,
            target: None,
            shared: None,
        };
        for (kind, mode, content_range) in [
            (EntryKind::File, 0o644, "644"),
            (EntryKind::Link, 0o777, "1000000777"),
            (EntryKind::File, 0o4755, "40000755"),
            (EntryKind::Directory, 0o755, "20000000755"),
        ] {
            assert_eq!(permissions(&entry(kind, mode)), content_range);
        }
    }
}
