//! The checkout as tests read it: where it is, and which text files it holds.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A text file, named by its path from the root with `/` between the parts.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Directories that hold what was made, not what was written.
const MADE: &[&str] = &["target", "node_modules", "mutants.out", "mutants.out.old", "dist"];

/// Hidden directories that are part of the project; all others belong to tools.
const HIDDEN: &[&str] = &[".cargo", ".ci", ".config"];

/// The root of the checkout.
pub(crate) fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Every file below `under` whose name ends with one of `endings`, in the order of their paths.
/// What does not exist yet holds no files.
pub(crate) fn files(under: &[&str], endings: &[&str]) -> Result<Vec<File>> {
    let mut found = Vec::new();
    for start in under {
        collect(&root().join(start), endings, &mut found)?;
    }
    found.sort();
    found.iter().map(|path| read(path)).collect()
}

fn collect(path: &Path, endings: &[&str], found: &mut Vec<PathBuf>) -> Result<()> {
    if path.is_file() {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if endings.iter().any(|ending| name.ends_with(ending)) {
            found.push(path.to_owned());
        }
        return Ok(());
    }
    if !path.is_dir() {
        return Ok(());
    }
    for entry in path.read_dir().with_context(|| format!("list {}", path.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let foreign = name.starts_with('.') && !HIDDEN.contains(&name) && entry.path().is_dir();
        if !foreign && !MADE.contains(&name) && !entry.file_type()?.is_symlink() {
            collect(&entry.path(), endings, found)?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<File> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let relative = path.strip_prefix(root())?;
    let parts: Vec<_> = relative.iter().map(OsStr::to_string_lossy).collect();
    // Starting at the root itself leaves a `.` in front.
    let path = parts.join("/").trim_start_matches("./").to_owned();
    Ok(File { path, text })
}

/// Fails with every finding at once, so that one run shows all there is to repair.
#[track_caller]
pub(crate) fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "{} to repair:\n{}", findings.len(), findings.join("\n"));
}
