//! Files of the sandbox: read, written, edited, listed and removed.

use engine::{Entry, EntryKind, UseKind};
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};
use wire::Time;

use super::{Nothing, UseTarget, WORKSPACE};
use crate::edit::{self, Names};
use crate::text_file::{self, READ_BYTES_MAX};
use crate::tool::{About, Call, Effect, Tool};
use web::front::Needs;
use web::input_checks::checked_path;
use web::octal::octal;
use web::refused::Refused;

/// Entries that one listing tells of.
const ENTRIES_MAX: usize = 10_000;
const PAGE: u32 = 1000;

pub(super) fn tools() -> Vec<Tool<UseTarget>> {
    let reads = |name, text| About::new(name, text, Needs::Read, Effect::Reads);
    let changes = |name, text| About::new(name, text, Needs::Use, Effect::Changes);
    vec![
        Tool::new(
            reads(
                "fsGetWorkingDirectory",
                "Get the working directory: programs start and relative paths begin there.",
            ),
            working_directory,
        ),
        Tool::new(
            reads(
                "fsListDirectory",
                "List the files and directories in a directory, one level deep.",
            ),
            list_directory,
        ),
        Tool::new(
            reads(
                "fsReadFile",
                "Read a file: at most its first MiB. Use codegenReadFileRange for lines further down.",
            ),
            read_file,
        ),
        Tool::new(
            changes(
                "fsWriteFile",
                "Write a whole file, or create a directory with isDirectory. Missing parents are created; an existing file is \
                 replaced.",
            ),
            write_file,
        ),
        Tool::new(
            changes(
                "fsEditFile",
                "Replace a text in a file that exists; prefer it to fsWriteFile for changes. oldString must occur exactly once, \
                 unless replaceAll is set: include enough of the surrounding text. The file keeps its permissions.",
            ),
            edit_file,
        ),
        Tool::new(
            changes(
                "fsDeleteFileOrDirectory",
                "Remove a file, or a directory if it is empty or recursive is set.",
            ),
            delete,
        ),
    ]
}

#[derive(Serialize, JsonSchema)]
struct WorkingDirectory {
    /// The directory.
    path: String,
}

async fn working_directory(
    _: Call<UseTarget>,
    Nothing {}: Nothing,
) -> Result<WorkingDirectory, Refused> {
    Ok(WorkingDirectory { path: WORKSPACE.to_owned() })
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PathArgument {
    /// Its path.
    path: String,
}

#[derive(Serialize, JsonSchema)]
struct Listed {
    /// What was listed.
    directory: Directory,
}

/// A directory.
#[derive(Serialize, JsonSchema)]
pub(super) struct Directory {
    /// Its path.
    path: String,
    /// Its file name.
    name: String,
    /// Files in it, and links.
    files: Vec<File>,
    /// Directories in it.
    subdirectories: Vec<Subdirectory>,
    /// Whether the directory has more entries.
    truncated: bool,
}

#[derive(Serialize, JsonSchema)]
struct Subdirectory {
    /// Its path.
    path: String,
    /// Its file name.
    name: String,
}

/// A file.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct File {
    /// Its path.
    path: String,
    /// Its file name.
    name: String,
    /// Its permissions in octal.
    permissions: String,
    /// Its size in bytes.
    size: u64,
    /// When it was last written, in UTC.
    last_modified: String,
}

impl File {
    fn new(path: String, name: String, entry: &Entry) -> Self {
        Self {
            path,
            name,
            permissions: format!("{:o}", entry.mode),
            size: entry.size,
            last_modified: Time(entry.modified_ms).to_string(),
        }
    }
}

/// A directory and what is in it.
pub(super) async fn listed(call: &Call<UseTarget>, path: String) -> Result<Directory, Refused> {
    let used = call.begin(UseKind::Read).await?;
    let (mut files, mut subdirectories) = (Vec::new(), Vec::new());
    let (mut after, mut truncated): (Option<Vec<u8>>, _) = (None, false);
    loop {
        let page = used.list_files(&path, after.as_deref(), PAGE).await?;
        for entry in &page.entries {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let at = format!("{}/{name}", path.trim_end_matches('/'));
            match entry.kind {
                EntryKind::Directory => subdirectories.push(Subdirectory { path: at, name }),
                EntryKind::File | EntryKind::Link | EntryKind::Other => {
                    files.push(File::new(at, name, entry));
                }
            }
        }
        if !page.more {
            break;
        }
        if files.len() + subdirectories.len() >= ENTRIES_MAX {
            truncated = true;
            break;
        }
        after = page.entries.last().map(|entry| entry.name.clone());
    }
    let name = last_name(&path);
    Ok(Directory { path, name, files, subdirectories, truncated })
}

fn last_name(path: &str) -> String {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
}

async fn list_directory(call: Call<UseTarget>, asked: PathArgument) -> Result<Listed, Refused> {
    let path = checked_path("path", asked.path)?;
    Ok(Listed { directory: listed(&call, path).await? })
}

#[derive(Serialize, JsonSchema)]
struct FileContent {
    #[serde(flatten)]
    file: File,
    /// Its contents.
    content: String,
    /// `utf-8`, or `base64` where it is not text.
    encoding: &'static str,
    /// Whether there is more after it.
    truncated: bool,
}

async fn read_file(call: Call<UseTarget>, asked: PathArgument) -> Result<FileContent, Refused> {
    let path = checked_path("path", asked.path)?;
    let used = call.begin(UseKind::Read).await?;
    let read = text_file::read(&used, &path, 0, READ_BYTES_MAX).await?;
    let file = File::new(path.clone(), last_name(&path), &read.entry);
    let (content, encoding) = match String::from_utf8(read.bytes) {
        Ok(text) => (text, "utf-8"),
        // A cut in the middle of a character is no reason to call it something else than text.
        Err(error) if read.more && error.utf8_error().error_len().is_none() => {
            let end = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(&error.as_bytes()[..end]).into_owned();
            (text, "utf-8")
        }
        Err(error) => (wire::to_base64(error.as_bytes()), "base64"),
    };
    Ok(FileContent { file, content, encoding, truncated: read.more })
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WriteFile {
    /// Its path.
    path: String,
    /// Its contents.
    #[serde(default)]
    content: Option<String>,
    /// Its permissions in octal, such as 0755.
    #[serde(default)]
    permissions: Option<String>,
    /// Create a directory instead of a file.
    #[serde(default)]
    is_directory: Option<bool>,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    /// Its path.
    path: String,
    /// What was done.
    message: &'static str,
}

async fn write_file(call: Call<UseTarget>, asked: WriteFile) -> Result<Done, Refused> {
    let path = checked_path("path", asked.path)?;
    let mode = asked.permissions.as_deref().map(permissions).transpose()?;
    let used = call.begin(UseKind::Files).await?;
    if asked.is_directory.unwrap_or(false) {
        used.make_directory(&path, true).await?;
        if mode.is_some() {
            used.set_metadata(&path, mode, None).await?;
        }
        return Ok(Done { path, message: "Directory created successfully" });
    }
    let content = asked.content.unwrap_or_default();
    text_file::write(&used, &path, content.as_bytes(), mode).await?;
    Ok(Done { path, message: "File created/updated successfully" })
}

fn permissions(text: &str) -> Result<u32, Refused> {
    octal(text).ok_or_else(|| {
        let cause = format!("permissions: {text:?} is not an octal number up to 7777");
        Refused::invalid("permissions", cause)
    })
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EditFile {
    /// Its path.
    path: String,
    /// The text to replace, exactly as it is in the file. Not empty.
    old_string: String,
    /// The new text, which must differ; an empty one deletes the old text.
    new_string: String,
    /// Replace every occurrence; false by default.
    #[serde(default)]
    replace_all: Option<bool>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Edited {
    /// Its path.
    path: String,
    /// How many occurrences were replaced.
    occurrences_replaced: u64,
}

async fn edit_file(call: Call<UseTarget>, asked: EditFile) -> Result<Edited, Refused> {
    let path = checked_path("path", asked.path)?;
    let used = call.begin(UseKind::Files).await?;
    let (_, text) = text_file::read_text(&used, &path).await?;
    let names = Names { old: "oldString", new: "newString", all: "replaceAll" };
    let all = asked.replace_all.unwrap_or(false);
    let (text, occurrences_replaced) =
        edit::replaced(&path, &text, &asked.old_string, &asked.new_string, all, names)?;
    text_file::write(&used, &path, text.as_bytes(), None).await?;
    Ok(Edited { path, occurrences_replaced })
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Delete {
    /// Its path.
    path: String,
    /// Whether the path must be a directory; either is accepted if not given.
    #[serde(default)]
    is_directory: Option<bool>,
    /// Remove a directory with all its contents.
    #[serde(default)]
    recursive: Option<bool>,
}

async fn delete(call: Call<UseTarget>, asked: Delete) -> Result<Done, Refused> {
    let path = checked_path("path", asked.path)?;
    let used = call.begin(UseKind::Files).await?;
    let is_directory = used.stat(&path).await?.kind == EntryKind::Directory;
    match (asked.is_directory, is_directory) {
        (Some(true), false) => {
            return Err(Refused::invalid(
                "isDirectory",
                "isDirectory: the path is not a directory",
            ));
        }
        (Some(false), true) => {
            return Err(Refused::invalid("isDirectory", "isDirectory: the path is a directory"));
        }
        (Some(_) | None, _) => {}
    }
    used.remove(&path, asked.recursive.unwrap_or(false)).await?;
    let message =
        if is_directory { "Directory deleted successfully" } else { "File deleted successfully" };
    Ok(Done { path, message })
}
