//! Files of a sandbox.

use serde::{Deserialize, Serialize};

use crate::bytes::{Base64Error, from_base64, to_base64};
use crate::time::Time;

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FileEntry {
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
    /// The target of a link; with replacement characters where that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The target of a link as base64, if that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_base64: Option<String>,
}

impl FileEntry {
    /// A file from what its sandbox says of it.
    pub fn new(
        name: &[u8],
        kind: FileKind,
        size: u64,
        mode: u32,
        modified_at: Time,
        target: Option<&[u8]>,
    ) -> Self {
        let (name, name_base64) = shown(name);
        let (target, target_base64) = target.map(shown).unzip();
        Self {
            name,
            name_base64,
            kind,
            size,
            mode: format!("{mode:04o}"),
            modified_at,
            target,
            target_base64: target_base64.flatten(),
        }
    }

    /// Its name, exactly.
    pub fn name_bytes(&self) -> Result<Vec<u8>, Base64Error> {
        self.name_base64.as_deref().map_or_else(|| Ok(self.name.clone().into_bytes()), from_base64)
    }
}

/// A name for people, and exactly if that is something else.
pub(crate) fn shown(name: &[u8]) -> (String, Option<String>) {
    let text = String::from_utf8_lossy(name);
    let exact = matches!(text, std::borrow::Cow::Owned(_)).then(|| to_base64(name));
    (text.into_owned(), exact)
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// Anything else.
    Other,
}

/// Part of a directory, in the order of the names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FileList {
    /// One page of it.
    pub entries: Vec<FileEntry>,
    /// The value of `after` for the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A request to rename a file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MoveRequest {
    /// Its path.
    pub from: String,
    /// Its new path.
    pub to: String,
    /// Whether it replaces what exists at the new path.
    #[serde(default)]
    pub overwrite: bool,
}

/// A request to change the metadata of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AboutRequest {
    /// Its permissions in octal, such as `0644`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^0*[0-7]{1,4}$"))]
    pub mode: Option<String>,
    /// When it was last written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<Time>,
}

/// A request to create a symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LinkRequest {
    /// The path of the link.
    pub path: String,
    /// Its target. A link never leads out of the sandbox.
    pub target: String,
}

/// Files that were uploaded together.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Uploaded {
    /// In the order in which they came, with their paths from the directory that was named.
    pub files: Vec<crate::file_search::FoundFile>,
}

/// A request to create a directory, with its parents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DirectoryRequest {
    /// Where.
    pub path: String,
}

/// What was unpacked from an archive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Unpacked {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_shown_and_kept_exactly() {
        for name in [&b"a.txt"[..], "grün".as_bytes(), b"\xff.bin", "\u{fffd}".as_bytes()] {
            let entry = FileEntry::new(name, FileKind::Link, 3, 0o644, Time(0), Some(name));
            assert_eq!(entry.name_bytes().unwrap(), name);
            let is_text = std::str::from_utf8(name).is_ok();
            assert_eq!(entry.name_base64.is_none(), is_text, "{name:?}");
            assert_eq!(entry.target_base64.is_none(), is_text, "{name:?}");
            assert_eq!(entry.mode, "0644");
        }
        let entry = FileEntry::new(b"a", FileKind::File, 0, 0o4755, Time(0), None);
        assert_eq!((entry.mode.as_str(), entry.target), ("4755", None));
    }
}
