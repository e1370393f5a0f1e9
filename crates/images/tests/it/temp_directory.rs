//! A temporary directory of a test, which is removed with it.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct TempDirectory(PathBuf);

impl TempDirectory {
    pub(crate) fn new() -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("shoal-images-{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Makes a directory in it.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Everything beneath a directory, one line each: kind, permissions, size, contents.
pub(crate) fn tree(path: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    walk(path, path, &mut lines);
    lines.sort();
    lines
}

fn walk(root: &Path, at: &Path, lines: &mut Vec<String>) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_encoded_bytes().escape_ascii();
        let mode = found.permissions().mode() & 0o7777;
        let kind = found.file_type();
        if kind.is_dir() {
            lines.push(format!("{name} directory {mode:o}"));
            walk(root, &path, lines);
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).unwrap();
            lines.push(format!(
                "{name} -> {}",
                target.as_os_str().as_encoded_bytes().escape_ascii()
            ));
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap();
            let begin = &bytes[..bytes.len().min(40)];
            let sum: u64 = bytes.iter().zip(1..).map(|(byte, n)| u64::from(*byte) * n).sum();
            let (links, begin) = (found.nlink(), begin.escape_ascii());
            lines.push(format!("{name} file {mode:o} links {links} {} {sum} {begin}", bytes.len()));
        } else {
            lines.push(format!("{name} special {}", found.rdev()));
        }
    }
}
