//! Finding, searching and watching files of a sandbox. Paths are text; a path that is not UTF-8 is
//! shown with replacement characters and its bytes beside it.

use serde::{Deserialize, Serialize};

use crate::file::{FileKind, shown};
use crate::problem::Problem;
use crate::time::Time;

/// A found file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FoundFile {
    /// Its path, relative to the searched directory.
    pub path: String,
    /// The same path as base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// Its kind.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permissions, such as `0644`.
    pub mode: String,
    /// When it was last written.
    pub modified_at: Time,
}

impl FoundFile {
    /// A file from what its sandbox says of it.
    pub fn new(path: &[u8], kind: FileKind, size: u64, mode: u32, modified_at: Time) -> Self {
        let (path, path_base64) = shown(path);
        Self { path, path_base64, kind, size, mode: format!("{mode:04o}"), modified_at }
    }
}

/// Files that were found, in the order of their names, a directory before what is in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FoundList {
    /// Which.
    pub files: Vec<FoundFile>,
    /// Whether there are more.
    pub truncated: bool,
    /// Directories that could not be read.
    pub unreadable: u64,
}

/// The files beneath a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FileTree {
    /// In the order of the names.
    pub entries: Vec<TreeEntry>,
    /// Whether there is more.
    pub truncated: bool,
    /// Directories that could not be read.
    pub unreadable: u64,
}

/// A file and, if it is a directory, what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TreeEntry {
    /// Its file name; with replacement characters where it is not UTF-8.
    pub name: String,
    /// Its file name as base64, if that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name_base64: Option<String>,
    /// Its kind.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permissions, such as `0644`.
    pub mode: String,
    /// When it was last written.
    pub modified_at: Time,
    /// Its entries, as far as it was read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(no_recursion))]
    pub entries: Vec<Self>,
}

impl FileTree {
    /// A tree from what was found, each with its path from the top, a directory before what is in
    /// it.
    pub fn new<'a>(found: impl IntoIterator<Item = (&'a [u8], FoundFile)>) -> Self {
        let mut tree = Self::default();
        for (path, file) in found {
            let mut names = path.split(|byte| *byte == b'/');
            let last = names.next_back().unwrap_or_default();
            let mut into = Some(&mut tree.entries);
            for name in names {
                let (name, name_base64) = shown(name);
                // The entries of a directory come right after it.
                into = into.and_then(|entries| entries.last_mut()).and_then(|entry| {
                    let is_it = entry.name == name && entry.name_base64 == name_base64;
                    is_it.then_some(&mut entry.entries)
                });
            }
            let (name, name_base64) = shown(last);
            let FoundFile { kind, size, mode, modified_at, .. } = file;
            if let Some(entries) = into {
                let beneath = Vec::new();
                entries.push(TreeEntry {
                    name,
                    name_base64,
                    kind,
                    size,
                    mode,
                    modified_at,
                    entries: beneath,
                });
            }
        }
        tree
    }
}

/// Matches of a search, in the order of names and lines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SearchResult {
    /// Where.
    pub matches: Vec<TextMatch>,
    /// Whether there are more.
    pub truncated: bool,
    /// How many files were searched.
    pub files: u64,
}

/// One matching line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TextMatch {
    /// The file, relative to the searched directory.
    pub path: String,
    /// The same path as base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// The number of the line, from 1.
    pub line: u64,
    /// The column in bytes, from 1.
    pub column: u64,
    /// The line, cut where it is long; with replacement characters where it is not UTF-8.
    pub text: String,
}

impl TextMatch {
    /// A place from what the sandbox says of it.
    pub fn new(path: &[u8], line: u64, column: u64, text: &[u8]) -> Self {
        let (path, path_base64) = shown(path);
        Self { path, path_base64, line, column, text: String::from_utf8_lossy(text).into_owned() }
    }
}

/// One event of a watch, in an event stream, as a JSON line or as a WebSocket text. The first one
/// is `armed`, the last one is `gone` or `error`; a stream that ends without either was cut off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum FileEvent {
    /// The watch is active: every change from now on is reported.
    Armed,
    /// The file was created.
    Created(ChangedFile),
    /// The contents of the file changed.
    Written(ChangedFile),
    /// The file was removed.
    Removed(ChangedFile),
    /// The file was renamed or moved.
    Renamed(ChangedFile),
    /// The permissions or times of the file changed.
    About(ChangedFile),
    /// Changes came faster than the client read them: some are missing.
    Lost,
    /// The watched path was removed.
    Gone,
    /// The watch failed.
    Error {
        /// Why.
        problem: Box<Problem>,
    },
}

impl FileEvent {
    /// The name of the event in a stream: its `type`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Armed => "armed",
            Self::Created(_) => "created",
            Self::Written(_) => "written",
            Self::Removed(_) => "removed",
            Self::Renamed(_) => "renamed",
            Self::About(_) => "about",
            Self::Lost => "lost",
            Self::Gone => "gone",
            Self::Error { .. } => "error",
        }
    }
}

/// A file about which something changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ChangedFile {
    /// The whole path.
    pub path: String,
    /// The same path as base64, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// Whether it is a directory.
    pub directory: bool,
}

impl ChangedFile {
    /// A file from what its sandbox says of it.
    pub fn new(path: &[u8], directory: bool) -> Self {
        let (path, path_base64) = shown(path);
        Self { path, path_base64, directory }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &[u8], kind: FileKind) -> FoundFile {
        FoundFile::new(path, kind, 0, 0o644, Time(0))
    }

    #[test]
    fn file_tree_has_the_entries_of_each_directory() {
        let (dir, file) = (FileKind::Directory, FileKind::File);
        let paths: [(&[u8], _); 6] = [
            (b"a", dir),
            (b"a/b", dir),
            (b"a/b/c", file),
            (b"a/d\xff", dir),
            (b"a/d\xff/e", file),
            (b"f", file),
        ];
        let tree = FileTree::new(paths.map(|(path, kind)| (path, found(path, kind))));
        let [a, f] = &tree.entries[..] else { panic!("{tree:?}") };
        assert_eq!((a.name.as_str(), f.name.as_str(), f.entries.len()), ("a", "f", 0));
        assert_eq!(a.entries[0].entries[0].name, "c");
        assert_eq!(a.entries[1].name_base64.as_deref(), Some("ZP8="));
        assert_eq!(a.entries[1].entries[0].name, "e");
    }

    #[test]
    fn file_tree_leaves_out_files_without_their_directory() {
        let tree = FileTree::new([(&b"a/b"[..], found(b"a/b", FileKind::File))]);
        assert_eq!(tree, FileTree::default());
    }

    #[test]
    fn watch_events_are_tagged_by_their_name() {
        let file = || ChangedFile::new(b"/a\xff", true);
        let refusal = model::Refusal::new(model::ErrorCode::Oom, "no memory");
        for event in [
            FileEvent::Armed,
            FileEvent::Created(file()),
            FileEvent::Written(file()),
            FileEvent::Removed(file()),
            FileEvent::Renamed(file()),
            FileEvent::About(file()),
            FileEvent::Lost,
            FileEvent::Gone,
            FileEvent::Error { problem: Box::new(Problem::new(&refusal, None, "r")) },
        ] {
            let value = serde_json::to_value(&event).unwrap();
            assert_eq!(value["type"], event.name());
            assert_eq!(serde_json::from_value::<FileEvent>(value).unwrap(), event);
        }
    }
}
