//! Files of a sandbox as texts.

use engine::{Use, UseKind};
use model::SandboxId;
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use super::Node;
use crate::edit::{self, Names};
use crate::text_file::{self, READ_BYTES_MAX};
use crate::tool::Effect::{Changes, Reads};
use crate::tool::{About, Call, Tool};
use web::front::Needs;
use web::input_checks::checked_path;
use web::octal::octal;
use web::path::Name as _;
use web::refused::Refused;
use web::use_target::UseTarget;

pub(super) fn tools() -> Vec<Tool<Node>> {
    vec![
        Tool::new(
            About::new(
                "read_file",
                "Read a file of a sandbox, or part of it: at most 1 MiB in one call. `content` is null and `content_base64` \
                 is set if the file is not UTF-8.",
                Needs::Read,
                Reads,
            ),
            read_file,
        ),
        Tool::new(
            About::new(
                "write_file",
                "Write a whole file in a sandbox, with missing parent directories. An existing file is replaced.",
                Needs::Use,
                Changes,
            ),
            write_file,
        ),
        Tool::new(
            About::new(
                "edit_file",
                "Replace a text in a file of a sandbox. It must occur exactly once, unless `replace_all` is set.",
                Needs::Use,
                Changes,
            ),
            edit_file,
        ),
    ]
}

async fn begin(call: &Call<Node>, sandbox: &str, kind: UseKind) -> Result<Use, Refused> {
    UseTarget::from(SandboxId::read(sandbox)?).begin(&call.app, call.caller, kind).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadFile {
    /// The id of the sandbox.
    sandbox_id: String,
    /// The path of the file.
    path: String,
    /// The first byte; the beginning if not given.
    #[serde(default)]
    offset: Option<u64>,
    /// The most bytes to read; never more than 1 MiB.
    #[serde(default)]
    length: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
struct FileText {
    /// Its contents; null if they are not UTF-8.
    content: Option<String>,
    /// Its contents as base64, if they are not UTF-8.
    content_base64: Option<String>,
    /// The size of the whole file.
    size: u64,
    /// Its permissions, such as `0644`.
    mode: String,
    /// The offset to continue reading at, if there is more.
    next_offset: Option<u64>,
}

async fn read_file(call: Call<Node>, asked: ReadFile) -> Result<FileText, Refused> {
    let path = checked_path("path", asked.path)?;
    let used = begin(&call, &asked.sandbox_id, UseKind::Read).await?;
    let offset = asked.offset.unwrap_or(0);
    let length = asked.length.unwrap_or(READ_BYTES_MAX).min(READ_BYTES_MAX);
    let read = text_file::read(&used, &path, offset, length).await?;
    let next_offset = read.more.then_some(offset + read.bytes.len() as u64);
    let (content, content_base64) = match String::from_utf8(read.bytes) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(wire::to_base64(error.as_bytes()))),
    };
    let (size, mode) = (read.entry.size, format!("{:04o}", read.entry.mode));
    Ok(FileText { content, content_base64, size, mode, next_offset })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WriteFile {
    /// The id of the sandbox.
    sandbox_id: String,
    /// The path of the file.
    path: String,
    /// Its contents, as text. Exactly one of `content` and `content_base64` must be given.
    #[serde(default)]
    content: Option<String>,
    /// Its contents, as base64.
    #[serde(default)]
    content_base64: Option<String>,
    /// Its permissions in octal, such as `0755`; those of the file it replaces, or 0644, if not
    /// given.
    #[serde(default)]
    mode: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Written {
    /// Its path.
    path: String,
    /// Its size.
    size: u64,
}

async fn write_file(call: Call<Node>, asked: WriteFile) -> Result<Written, Refused> {
    let path = checked_path("path", asked.path)?;
    let bytes = match (asked.content, asked.content_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => wire::from_base64(&text).map_err(|error| {
            Refused::invalid("content_base64", format!("content_base64: {error}"))
        })?,
        (Some(_), Some(_)) | (None, None) => {
            let cause = "content: exactly one of content and content_base64 must be given";
            return Err(Refused::invalid("content", cause));
        }
    };
    let mode = asked.mode.as_deref().map(permissions).transpose()?;
    let used = begin(&call, &asked.sandbox_id, UseKind::Files).await?;
    let entry = text_file::write(&used, &path, &bytes, mode).await?;
    Ok(Written { path, size: entry.size })
}

fn permissions(text: &str) -> Result<u32, Refused> {
    octal(text).ok_or_else(|| {
        Refused::invalid("mode", format!("mode: {text:?} is not an octal number up to 7777"))
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EditFile {
    /// The id of the sandbox.
    sandbox_id: String,
    /// The path of the file.
    path: String,
    /// The text to replace, exactly as it is in the file.
    old_text: String,
    /// The new text.
    new_text: String,
    /// Replace every occurrence.
    #[serde(default)]
    replace_all: bool,
}

#[derive(Serialize, JsonSchema)]
struct Edited {
    /// Its path.
    path: String,
    /// How many occurrences were replaced.
    replaced: u64,
}

async fn edit_file(call: Call<Node>, asked: EditFile) -> Result<Edited, Refused> {
    let path = checked_path("path", asked.path)?;
    let used = begin(&call, &asked.sandbox_id, UseKind::Files).await?;
    let (_, text) = text_file::read_text(&used, &path).await?;
    let names = Names { old: "old_text", new: "new_text", all: "replace_all" };
    let (text, replaced) =
        edit::replaced(&path, &text, &asked.old_text, &asked.new_text, asked.replace_all, names)?;
    text_file::write(&used, &path, text.as_bytes(), None).await?;
    Ok(Edited { path, replaced })
}
