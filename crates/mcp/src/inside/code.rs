//! Tools for code in the sandbox: find files by name, find lines by text, and read ranges of lines.

use engine::{EntryKind, FindQuery, SearchQuery, UseKind};
use rmcp::schemars::{self, JsonSchema};
use serde::{Deserialize, Serialize};

use super::files::{Directory, listed};
use super::{UseTarget, WORKSPACE};
use crate::text_file;
use crate::tool::{About, Call, Effect, Tool};
use web::front::Needs;
use web::input_checks::checked_path;
use web::refused::Refused;

/// Files that are looked at for one name.
const FILES_MAX: u32 = 50_000;
/// The most names in an answer.
const MATCHES_MAX: usize = 10;
/// The most lines in an answer.
const LINES_MAX: u32 = 200;
/// Directories that hold what others made.
const SKIPPED: [&str; 10] = [
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

pub(super) fn tools() -> Vec<Tool<UseTarget>> {
    let reads = |name, text| About::new(name, text, Needs::Read, Effect::Reads);
    vec![
        Tool::new(
            reads(
                "codegenFileSearch",
                "Find files by name: the 10 best whose names contain the letters of the query in order. \
                 Directories such as node_modules and .git are skipped.",
            ),
            file_search,
        ),
        Tool::new(
            reads(
                "codegenGrepSearch",
                "Find lines that contain a text, taken literally and not as a pattern, beneath the working directory: at most 200.",
            ),
            grep_search,
        ),
        Tool::new(reads("codegenReadFileRange", "Read some lines of a file."), read_range),
        Tool::new(
            reads(
                "codegenListDir",
                "List the files and directories in a directory of the workspace.",
            ),
            list_dir,
        ),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FileSearch {
    /// Part of a name, or its letters in order.
    query: String,
    /// Where to look; the working directory if not given.
    #[serde(default)]
    directory: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct FilesFound {
    /// Whether the search was carried out.
    success: bool,
    /// The paths, the best first.
    matches: Vec<String>,
    /// The query.
    query: String,
}

async fn file_search(call: Call<UseTarget>, asked: FileSearch) -> Result<FilesFound, Refused> {
    if asked.query.trim().is_empty() {
        return Err(Refused::invalid("query", "query: is empty"));
    }
    let directory = asked.directory.unwrap_or_else(|| WORKSPACE.to_owned());
    let directory = absolute(&checked_path("directory", directory)?);
    let used = call.begin(UseKind::Read).await?;
    let query = FindQuery {
        path: directory.clone(),
        kinds: vec![EntryKind::File],
        exclude_directories: SKIPPED.map(str::to_owned).to_vec(),
        max_results: FILES_MAX,
        ..FindQuery::default()
    };
    let found = used.find(&query).await?;
    let paths = found.entries.iter().map(|entry| String::from_utf8_lossy(&entry.path));
    let mut ranked: Vec<_> =
        paths.filter_map(|path| Some((rank(last_of(&path), &asked.query)?, path))).collect();
    ranked.sort();
    let best = ranked.into_iter().take(MATCHES_MAX);
    let matches = best.map(|(_, path)| format!("{}/{path}", directory.trim_end_matches('/')));
    Ok(FilesFound { success: true, matches: matches.collect(), query: asked.query })
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    match path.trim_start_matches("./") {
        "" | "." => WORKSPACE.to_owned(),
        rest => format!("{WORKSPACE}/{rest}"),
    }
}

fn last_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// How well a name fits, less is better: the name itself, one that has the query in it, one that
/// has its letters in order; shorter ones first.
fn rank(name: &str, query: &str) -> Option<(u8, usize)> {
    let (name, query) = (name.to_lowercase(), query.trim().to_lowercase());
    let length = name.chars().count();
    if name == query {
        return Some((0, length));
    }
    if name.contains(&query) {
        return Some((1, length));
    }
    let mut letters = name.chars();
    let in_order = query.chars().all(|wanted| letters.any(|letter| letter == wanted));
    in_order.then_some((2, length))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GrepSearch {
    /// The text.
    query: String,
    /// Whether upper and lower case differ; false if not given.
    #[serde(default)]
    case_sensitive: Option<bool>,
    /// Only files whose names match this pattern, such as `*.rs`; several are separated by commas.
    #[serde(default)]
    include_pattern: Option<String>,
    /// Skip directories with this name; several are separated by commas.
    #[serde(default)]
    exclude_pattern: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct LinesFound {
    /// Whether the search was carried out.
    success: bool,
    /// The lines.
    results: Vec<Line>,
    /// Whether there are more lines.
    truncated: bool,
}

#[derive(Serialize, JsonSchema)]
struct Line {
    /// The file.
    path: String,
    /// The line, from 1.
    line: u64,
    /// Where in the line the text begins, in bytes from 1.
    column: u64,
    /// The line itself, cut where it is long.
    text: String,
}

async fn grep_search(call: Call<UseTarget>, asked: GrepSearch) -> Result<LinesFound, Refused> {
    if asked.query.is_empty() {
        return Err(Refused::invalid("query", "query: is empty"));
    }
    let used = call.begin(UseKind::Read).await?;
    let mut exclude_directories = SKIPPED.map(str::to_owned).to_vec();
    exclude_directories.extend(listed_names(asked.exclude_pattern.as_deref()));
    let query = SearchQuery {
        path: WORKSPACE.to_owned(),
        text: asked.query,
        case_sensitive: asked.case_sensitive.unwrap_or(false),
        names: listed_names(asked.include_pattern.as_deref()).collect(),
        exclude_directories,
        max_results: LINES_MAX,
        ..SearchQuery::default()
    };
    let found = used.search(&query).await?;
    let results = found.matches.into_iter().map(|one| Line {
        path: format!("{WORKSPACE}/{}", String::from_utf8_lossy(&one.path)),
        line: one.line,
        column: one.column,
        text: String::from_utf8_lossy(&one.text).into_owned(),
    });
    Ok(LinesFound { success: true, results: results.collect(), truncated: found.truncated })
}

/// Names that are separated by commas. What people write around a name to mean it anywhere is left
/// away, because it is looked for everywhere.
fn listed_names(text: Option<&str>) -> impl Iterator<Item = String> {
    let names = text.unwrap_or_default().split(',').map(|name| {
        let name = name.trim();
        let name = name.strip_prefix("**/").unwrap_or(name);
        name.strip_suffix("/**").unwrap_or(name).trim_end_matches('/').to_owned()
    });
    names.filter(|name| !name.is_empty())
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReadRange {
    /// The file.
    target_file: String,
    /// The first line, from 1.
    start_line_one_indexed: u64,
    /// The last line. One past the end of the file means the end.
    end_line_one_indexed_inclusive: u64,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Range {
    /// It was read.
    success: bool,
    /// The lines.
    content: String,
    /// The file.
    file: String,
    /// How many lines the file has.
    total_lines: u64,
}

async fn read_range(call: Call<UseTarget>, asked: ReadRange) -> Result<Range, Refused> {
    let file = checked_path("targetFile", asked.target_file)?;
    let used = call.begin(UseKind::Read).await?;
    let (_, text) = text_file::read_text(&used, &file).await?;
    let (first, last) = (asked.start_line_one_indexed, asked.end_line_one_indexed_inclusive);
    let (content, total_lines) = lines(&text, first, last)?;
    Ok(Range { success: true, content, file, total_lines })
}

/// Lines of a text as they are, and how many there are.
fn lines(text: &str, first: u64, last: u64) -> Result<(String, u64), Refused> {
    let total = text.split_inclusive('\n').count() as u64;
    if first == 0 || last < first {
        let cause = "startLineOneIndexed: must be at least 1 and not after the last requested line";
        return Err(Refused::invalid("startLineOneIndexed", cause));
    }
    if first > total.max(1) {
        let cause = format!("startLineOneIndexed: the file has {total} lines");
        return Err(Refused::invalid("startLineOneIndexed", cause));
    }
    let (skipped, count) =
        ((first - 1) as usize, last.min(total).saturating_sub(first - 1) as usize);
    Ok((text.split_inclusive('\n').skip(skipped).take(count).collect(), total))
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ListDir {
    /// The directory, from the working directory.
    relative_workspace_path: String,
}

#[derive(Serialize, JsonSchema)]
struct Listed {
    /// It was read.
    success: bool,
    /// Its entries.
    directory: Directory,
}

async fn list_dir(call: Call<UseTarget>, asked: ListDir) -> Result<Listed, Refused> {
    let given = match asked.relative_workspace_path.as_str() {
        "" => ".".to_owned(),
        _ => asked.relative_workspace_path,
    };
    let path = absolute(&checked_path("relativeWorkspacePath", given)?);
    Ok(Listed { success: true, directory: listed(&call, path).await? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_search_ranks_better_matches_first() {
        let mut names = ["domain.rs", "main.rs", "m_a_i_n.txt", "other.rs", "mainframe.rs"];
        names.sort_by_key(|name| rank(name, "main.rs").unwrap_or((9, 0)));
        assert_eq!(names[0], "main.rs");
        assert_eq!(rank("other.rs", "main"), None);
        assert!(rank("m_a_i_n.txt", "main").unwrap() > rank("mainframe.rs", "main").unwrap());
    }

    #[test]
    fn read_range_returns_lines_unchanged() {
        let text = "one\ntwo\r\n\nfour";
        for (first, last, content) in [
            (1, 1, Some("one\n")),
            (2, 3, Some("two\r\n\n")),
            (4, 4, Some("four")),
            (3, 99, Some("\nfour")),
            (5, 6, None),
            (0, 1, None),
            (3, 2, None),
        ] {
            let taken = lines(text, first, last).ok();
            assert_eq!(taken.as_ref().map(|(text, _)| text.as_str()), content, "{first} to {last}");
            assert!(taken.is_none_or(|(_, total)| total == 4));
        }
        assert_eq!(lines("", 1, 1).unwrap(), (String::new(), 0));
    }

    #[test]
    fn search_patterns_are_file_names() {
        let names = |text| listed_names(Some(text)).collect::<Vec<_>>();
        assert_eq!(names("*.rs, **/*.py,,target/**,x/"), ["*.rs", "*.py", "target", "x"]);
        assert_eq!(listed_names(None).count(), 0);
    }

    #[test]
    fn relative_paths_begin_in_the_workspace() {
        for (given, path) in [
            (".", "/workspace"),
            ("./", "/workspace"),
            ("src", "/workspace/src"),
            ("./src/a", "/workspace/src/a"),
            ("/etc", "/etc"),
        ] {
            assert_eq!(absolute(given), path, "{given}");
        }
    }
}
