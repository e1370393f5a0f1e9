//! The manifest of a backup: its last file, with the length and the digest of every other file.

use serde::{Deserialize, Serialize};

/// The file name of the manifest.
pub(crate) const MANIFEST: &str = "manifest.json";
/// The version of the format.
pub(crate) const FORMAT: u32 = 1;
/// The file with the key of the node.
pub(crate) const NODE_KEY: &str = store::NODE_KEY_FILE;
/// Files beside the database that are backed up if they exist.
pub(crate) const KEY_FILES: &[&str] =
    &[NODE_KEY, "admin.key", "initial-api-key", "node.id", "store.id", "docker.used"];

/// The manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The version of the format.
    pub(crate) format: u32,
    /// The version of the program that made it.
    pub(crate) version: String,
    /// Whether the key of the node is in it.
    pub(crate) node_key: bool,
    /// How many sessions there are.
    pub(crate) sessions: u64,
    /// Every file except the manifest.
    pub(crate) files: Vec<Listed>,
}

/// A file of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listed {
    /// Its path in the data directory.
    pub(crate) path: String,
    /// Its length.
    pub(crate) bytes: u64,
    /// Its SHA-256, in hexadecimal digits.
    pub(crate) sha256: String,
}

/// Whether a backup may contain this path. A restore writes no other.
pub(crate) fn is_expected(path: &str) -> bool {
    let is_name = |name: &str| {
        name.strip_suffix(".tar.zst").is_some_and(|id| {
            !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        })
    };
    match path.split_once('/') {
        Some(("archives" | "seeds", name)) => is_name(name),
        Some(_) => false,
        None => path == store::sqlite::FILE || KEY_FILES.contains(&path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_manifest_accepts_only_known_paths() {
        for (path, expected) in [
            ("shoal.db", true),
            ("node.key", true),
            ("archives/00010203-0405-0607-0809-0a0b0c0d0e0f.tar.zst", true),
            ("seeds/aa00.tar.zst", true),
            ("archives/../../etc/passwd", false),
            ("archives/a/b.tar.zst", false),
            ("archives/.tar.zst", false),
            ("../shoal.db", false),
            ("/etc/passwd", false),
            ("shoal.toml", false),
            ("workspaces/a", false),
            ("", false),
        ] {
            assert_eq!(is_expected(path), expected, "{path}");
        }
    }
}
