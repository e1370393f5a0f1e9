//! Finds files by name, and texts in files. The guest searches, within limits, and does not wait
//! for the client to read the results.

use axum::extract::Request;
use axum::response::Response;
use engine::{EntryKind, FindQuery, SearchQuery, UseKind};
use serde::Serialize;
use serde_json::json;

use super::errors::BlaxelError;
use super::paths::FilePath;
use super::target::Target;
use super::{answer, request_body};
use web::query::Query;

/// Directories that are skipped unless the client names others.
const EXCLUDED: [&str; 10] = [
    "node_modules",
    "vendor",
    ".git",
    "dist",
    "build",
    "target",
    "__pycache__",
    ".venv",
    ".next",
    "coverage",
];
const FOUND: u32 = 20;
const FOUND_MAX: u32 = 1_000;
/// Where all of them are asked for.
const ALL_MAX: u32 = 100_000;
const MATCHES: u32 = 100;
/// How many names are looked at to find those that are like a word.
const LIKE_MAX: u32 = 20_000;

#[derive(Debug, Serialize)]
struct FoundFile {
    path: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<u32>,
}

fn excluded(query: &mut Query) -> Result<Vec<String>, BlaxelError> {
    let given = request_body::list(query, "excludeDirs")?;
    Ok(if given.is_empty() { EXCLUDED.map(str::to_owned).to_vec() } else { given })
}

fn kind(entry: EntryKind) -> &'static str {
    match entry {
        EntryKind::Directory => "directory",
        EntryKind::File | EntryKind::Link | EntryKind::Other => "file",
    }
}

pub(super) async fn find(
    target: &Target,
    path: &FilePath,
    request: Request,
) -> Result<Response, BlaxelError> {
    let (mut query, _) = request_body::query(request).await?;
    let directories = match query.text("type")?.as_deref() {
        None | Some("" | "file") => false,
        Some("directory") => true,
        Some(other) => {
            let cause = format!("type: {other:?} is neither file nor directory");
            return Err(BlaxelError::bad(cause));
        }
    };
    let names = request_body::list(&mut query, "patterns")?;
    let max_results = match request_body::number(&mut query, "maxResults", FOUND)? {
        0 => ALL_MAX,
        some => some.min(FOUND_MAX),
    };
    let wanted = FindQuery {
        path: path.whole.clone(),
        kinds: if directories {
            vec![EntryKind::Directory]
        } else {
            vec![EntryKind::File, EntryKind::Link, EntryKind::Other]
        },
        names: if directories { Vec::new() } else { names },
        exclude_directories: excluded(&mut query)?,
        exclude_hidden: request_body::flag(&mut query, "excludeHidden", true)?,
        max_depth: None,
        max_results,
    };
    let used = target.begin(UseKind::Read).await?;
    let found = used.find(&wanted).await?;
    let of = |path: &[u8], kind| FoundFile {
        path: String::from_utf8_lossy(path).into_owned(),
        r#type: kind,
        score: None,
    };
    // Among directories, that in which they are searched comes first.
    let root = directories.then(|| of(b".", "directory"));
    let beneath = found.entries.iter().map(|entry| of(&entry.path, kind(entry.kind)));
    let matches: Vec<_> = root.into_iter().chain(beneath).take(max_results as usize).collect();
    answer::ok(&json!({"matches": matches, "total": matches.len()}))
}

/// How well a path fits a word: its letters in their order, the closer together the better.
fn score(path: &str, word: &str) -> Option<u32> {
    let mut letters = word.chars().flat_map(char::to_lowercase).peekable();
    let (mut score, mut run) = (0_u32, 0_u32);
    for letter in path.chars().flat_map(char::to_lowercase) {
        if letters.peek() == Some(&letter) {
            letters.next();
            run += 1;
            score = score.saturating_add(16 * run);
        } else {
            run = 0;
        }
    }
    letters.peek().is_none().then_some(score)
}

/// Names that are like a word. Clients of Blaxel do not send the word: then all are as good.
pub(super) async fn fuzzy(
    target: &Target,
    path: &FilePath,
    request: Request,
) -> Result<Response, BlaxelError> {
    let (mut query, _) = request_body::query(request).await?;
    let most = request_body::number(&mut query, "maxResults", FOUND)?.clamp(1, FOUND_MAX) as usize;
    let names = request_body::list(&mut query, "patterns")?;
    let word = query.text("query")?;
    let wanted = FindQuery {
        path: path.whole.clone(),
        kinds: Vec::new(),
        names,
        exclude_directories: excluded(&mut query)?,
        exclude_hidden: request_body::flag(&mut query, "excludeHidden", true)?,
        max_depth: None,
        max_results: LIKE_MAX,
    };
    let used = target.begin(UseKind::Read).await?;
    let found = used.find(&wanted).await?;
    let word = word.unwrap_or_default();
    let mut matches: Vec<_> = found
        .entries
        .iter()
        .filter_map(|entry| {
            let path = String::from_utf8_lossy(&entry.path).into_owned();
            let score = Some(score(&path, &word)?);
            Some(FoundFile { path, r#type: kind(entry.kind), score })
        })
        .collect();
    matches.sort_by(|one, other| {
        other.score.cmp(&one.score).then_with(|| one.path.len().cmp(&other.path.len()))
    });
    matches.truncate(most);
    answer::ok(&json!({"matches": matches, "total": matches.len()}))
}

pub(super) async fn content(
    target: &Target,
    path: &FilePath,
    request: Request,
) -> Result<Response, BlaxelError> {
    let (mut query, _) = request_body::query(request).await?;
    let text = query.text("query")?.filter(|text| !text.is_empty());
    let Some(text) = text else { return Err(BlaxelError::bad("query parameter is required")) };
    let max_results = match request_body::number(&mut query, "maxResults", MATCHES)? {
        0 => MATCHES,
        some => some.min(FOUND_MAX),
    };
    let wanted = SearchQuery {
        path: path.whole.clone(),
        text: text.clone(),
        case_sensitive: request_body::flag(&mut query, "caseSensitive", false)?,
        names: request_body::list(&mut query, "filePattern")?,
        exclude_directories: excluded(&mut query)?,
        exclude_hidden: false,
        max_results,
    };
    let used = target.begin(UseKind::Read).await?;
    let searched = used.search(&wanted).await?;
    let matches: Vec<_> = searched
        .matches
        .iter()
        .map(|found| {
            json!({
                "path": String::from_utf8_lossy(&found.path),
                "line": found.line,
                "column": found.column,
                "text": String::from_utf8_lossy(&found.text),
            })
        })
        .collect();
    answer::ok(&json!({"query": text, "matches": matches, "total": matches.len()}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzzy_score_needs_letters_in_order_and_prefers_them_together() {
        assert_eq!(score("src/main.rs", "xyz"), None);
        assert_eq!(score("src/main.rs", ""), Some(0));
        assert!(score("src/Main.rs", "main") > score("src/m/a/i/n.rs", "main"));
        assert_eq!(score("niam", "main"), None);
    }
}
