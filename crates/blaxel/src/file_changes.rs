//! Creates, writes and removes files and directories. A file appears under its name once it has
//! arrived completely; missing parents are created.

use std::collections::BTreeMap;

use axum::extract::Request;
use axum::response::Response;
use engine::{EntryKind, Use, UseKind};
use model::{ErrorCode, Refusal};
use serde::Deserialize;
use tokio::io::AsyncWriteExt as _;

use super::errors::BlaxelError;
use super::files::{kind_of, listing};
use super::form::Form;
use super::paths::FilePath;
use super::target::Target;
use super::{answer, request_body};
use web::octal::octal;

/// The largest body that carries files as JSON.
const JSON_BYTES_MAX: u64 = 64 << 20;
const FILES_MAX: usize = 10_000;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FileRequest {
    content: Option<String>,
    is_directory: Option<bool>,
    permissions: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Tree {
    files: BTreeMap<String, String>,
}

pub(super) fn permissions(text: Option<&str>) -> Result<Option<u32>, BlaxelError> {
    let Some(text) = text.filter(|text| !text.is_empty()) else { return Ok(None) };
    let mode = octal(text).ok_or_else(|| BlaxelError::bad("invalid permissions"))?;
    Ok(Some(mode))
}

/// A failed write is not an error of the request's form.
pub(super) fn unwritten(refusal: Refusal) -> BlaxelError {
    let is_of_path = [ErrorCode::PathNotFound, ErrorCode::InvalidArgument].contains(&refusal.code);
    let error = BlaxelError::from(refusal);
    if is_of_path { error.with_status(422) } else { error }
}

pub(super) async fn put(
    target: &Target,
    path: &FilePath,
    request: Request,
) -> Result<Response, BlaxelError> {
    if Form::is_one(request.headers()) {
        return upload(target, path, request).await;
    }
    let (bytes, share) = request_body::bytes(request, &target.app, JSON_BYTES_MAX).await?;
    let asked: FileRequest = request_body::parse(&bytes)?;
    let mode = permissions(asked.permissions.as_deref())?;
    drop(bytes);
    let used = target.begin(UseKind::Files).await?;
    if asked.is_directory.unwrap_or(false) {
        make_directory(&used, path, mode).await?;
        return answer::done(&path.shown, "Directory created successfully");
    }
    write(&used, &path.whole, asked.content.unwrap_or_default().as_bytes(), mode).await?;
    drop(share);
    answer::done(&path.shown, "File created/updated successfully")
}

async fn make_directory(used: &Use, path: &FilePath, mode: Option<u32>) -> Result<(), BlaxelError> {
    used.make_directory(&path.whole, true).await.map_err(unwritten)?;
    if let Some(mode) = mode {
        used.set_metadata(&path.whole, Some(mode), None).await.map_err(unwritten)?;
    }
    Ok(())
}

async fn write(used: &Use, path: &str, bytes: &[u8], mode: Option<u32>) -> Result<(), BlaxelError> {
    let mut writer = used.write_file(path, mode).await.map_err(unwritten)?;
    if let Err(error) = writer.write_all(bytes).await {
        return Err(unwritten(used.explain(error).await));
    }
    used.finish_file(writer).await.map_err(unwritten)?;
    Ok(())
}

/// A form with the file in it, whose permissions may stand before or after it.
async fn upload(
    target: &Target,
    path: &FilePath,
    request: Request,
) -> Result<Response, BlaxelError> {
    let (parts, body) = request.into_parts();
    let mut form = Form::new(&parts.headers, body, target.app.settings.body_stall)?;
    let used = target.begin(UseKind::Files).await?;
    let (mut mode, mut written) = (None, false);
    while let Some(part) = form.next().await? {
        match part.name.as_str() {
            "permissions" => mode = permissions(Some(form.text().await?.trim()))?,
            "file" if part.is_file && !written => {
                let mut writer = used.write_file(&path.whole, mode).await.map_err(unwritten)?;
                while let Some(chunk) = form.chunk().await? {
                    if let Err(error) = writer.write_all(&chunk).await {
                        return Err(unwritten(used.explain(error).await));
                    }
                }
                used.finish_file(writer).await.map_err(unwritten)?;
                written = true;
            }
            _ => {}
        }
    }
    if !written {
        return Err(BlaxelError::bad("missing 'file' field in multipart form"));
    }
    if mode.is_some() {
        used.set_metadata(&path.whole, mode, None).await.map_err(unwritten)?;
    }
    answer::done(&path.shown, "Binary file uploaded successfully")
}

pub(super) async fn remove(
    target: &Target,
    path: &FilePath,
    request: Request,
) -> Result<Response, BlaxelError> {
    let (mut query, _) = request_body::query(request).await?;
    let recursive = request_body::flag(&mut query, "recursive", false)?;
    let used = target.begin(UseKind::Files).await?;
    let entry = used.stat(&path.whole).await.map_err(|refusal| gone(path, refusal))?;
    let is_directory = entry.kind == EntryKind::Directory;
    used.remove(&path.whole, recursive).await.map_err(|refusal| gone(path, refusal))?;
    let what = if is_directory { "Directory" } else { "File" };
    answer::done(&path.shown, &format!("{what} deleted successfully"))
}

fn gone(path: &FilePath, refusal: Refusal) -> BlaxelError {
    if refusal.code == ErrorCode::PathNotFound {
        let text = format!("file or directory not found: {}", path.shown);
        return BlaxelError::from(refusal).with_text(text);
    }
    unwritten(refusal)
}

pub(super) async fn list_tree(target: &Target, path: &FilePath) -> Result<Response, BlaxelError> {
    let used = target.begin(UseKind::Read).await?;
    let kind = kind_of(&used, path).await.map_err(|refusal| gone(path, refusal))?;
    if kind != EntryKind::Directory {
        return Err(BlaxelError::bad(format!("{} is not a directory", path.shown)));
    }
    listing(&used, path).await
}

pub(super) async fn put_tree(
    target: &Target,
    path: &FilePath,
    request: Request,
) -> Result<Response, BlaxelError> {
    let (bytes, share) = request_body::bytes(request, &target.app, JSON_BYTES_MAX).await?;
    let tree: Tree = request_body::parse(&bytes)?;
    drop(bytes);
    if tree.files.len() > FILES_MAX {
        let text = format!("invalid request body: at most {FILES_MAX} files");
        return Err(BlaxelError::bad(text));
    }
    let used = target.begin(UseKind::Files).await?;
    used.make_directory(&path.whole, true).await.map_err(unwritten)?;
    for (name, content) in &tree.files {
        // Each is beneath the directory, whatever its name says.
        let inner = FilePath::from_root(name).whole;
        let whole = format!("{}{inner}", path.whole.trim_end_matches('/'));
        write(&used, &whole, content.as_bytes(), None).await?;
    }
    drop(share);
    listing(&used, path).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_octal_or_missing() {
        assert_eq!(permissions(None).unwrap(), None);
        assert_eq!(permissions(Some("")).unwrap(), None);
        assert_eq!(permissions(Some("0600")).unwrap(), Some(0o600));
        assert_eq!(permissions(Some("rw")).unwrap_err().status, 400);
    }
}
