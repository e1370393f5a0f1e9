//! Lists, finds and searches files. The guest does the work, with the rights of the sandbox's own
//! programs; this module only sets the limits.

use axum::extract::State;
use axum::response::Response;
use engine::{EntryKind, FindQuery, Found, FoundEntry, SearchQuery, UseKind};
use wire::{FileTree, FoundFile, FoundList, SearchResult, TextMatch, Time};

use crate::exec::USING;
use crate::files::{PATH, path_of};
use crate::use_routes::{TARGETS, TargetSpec};
use crate::view;
use web::answer;
use web::app::App;
use web::front::{By, Needs};
use web::operation::{Kind, Operation, Param, Route, Verb, json};
use web::query::Query;
use web::refused::Refused;
use web::use_target::UseTarget;

const LIMIT: u64 = 1000;
const LIMIT_MAX: u64 = 10_000;
const DEPTH_MAX: u64 = 1000;
/// How far down a tree goes if nothing is said.
const TREE_DEPTH: u64 = 5;
const WORDS_MAX: usize = 32;
const WORD_BYTES_MAX: usize = 255;
const TEXT_BYTES_MAX: usize = 4096;

const MOST: Param =
    Param::new("limit", Kind::Number(1, LIMIT_MAX), "The most results; 1000 if not given");
const NAME: Param = Param::new(
    "name",
    Kind::Repeated("^[^/]{1,255}$"),
    "Only files whose name matches this pattern: `*`, `?` and `[...]` as in a shell",
);
const EXCLUDE: Param =
    Param::new("exclude", Kind::Repeated("^[^/]{1,255}$"), "Skip directories with this name");
const NO_HIDDEN: Param =
    Param::new("exclude_hidden", Kind::Flag, "Skip names that begin with a dot");

pub(super) fn routes() -> Vec<Route> {
    TARGETS.iter().flat_map(routes_of).collect()
}

fn routes_of(target: &TargetSpec) -> Vec<Route> {
    let at = target.routes;
    let tree = Operation::new(at.tree.id, "List a directory as a tree").answers(
        200,
        "The tree",
        [json("FileTree")],
    );
    let find = Operation::new(at.find.id, "Find files beneath a directory by name and kind")
        .answers(200, "The found files, a directory before its entries", [json("FoundList")]);
    let search = Operation::new(
        at.search.id,
        "Search for a text in a file, or in the files beneath a directory",
    )
    .answers(200, "The matching lines", [json("SearchResult")]);
    let depth = |about| Param::new("depth", Kind::Number(1, DEPTH_MAX), about);
    let using = |operation: Operation| operation.refuses(USING).refuses(target.refuses);
    vec![
        Route::new(
            Verb::Get,
            at.tree.path,
            Needs::Read,
            self::tree,
            using(tree.query([
                PATH,
                depth("How many levels; 1 is the directory itself, 5 if not given"),
                EXCLUDE,
                NO_HIDDEN,
                MOST,
            ])),
        ),
        Route::new(
            Verb::Get,
            at.find.path,
            Needs::Read,
            self::find,
            using(find.query([
                PATH,
                NAME,
                Param::new(
                    "kind",
                    Kind::Repeated("^(file|directory|link|other)$"),
                    "Only these kinds: `file`, `directory`, `link`, `other`",
                ),
                EXCLUDE,
                NO_HIDDEN,
                depth("How many levels; 1 is the directory itself, no limit if not given"),
                MOST,
            ])),
        ),
        Route::new(
            Verb::Get,
            at.search.path,
            Needs::Read,
            self::search,
            using(search.query([
                PATH,
                Param::new("text", Kind::Text, "The text, taken literally").required(),
                Param::new("ignore_case", Kind::Flag, "Ignore the case of ASCII letters"),
                NAME,
                EXCLUDE,
                NO_HIDDEN,
                MOST,
            ])),
        ),
    ]
}

/// Names, of which there are not too many and none is too long.
fn name_patterns(query: &mut Query, field: &'static str) -> Result<Vec<String>, Refused> {
    let words = query.all(field);
    if words.len() > WORDS_MAX {
        return Err(Refused::bad(field, format!("`{field}`: at most {WORDS_MAX} may be given")));
    }
    let fits =
        |word: &String| (1..=WORD_BYTES_MAX).contains(&word.len()) && !word.contains(['/', '\0']);
    match words.iter().find(|word| !fits(word)) {
        None => Ok(words),
        Some(word) => Err(Refused::bad(
            field,
            format!("`{field}`: {word:?} is not a valid file name pattern"),
        )),
    }
}

fn limit(query: &mut Query) -> Result<u32, Refused> {
    Ok(query.number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT) as u32)
}

fn kinds(query: &mut Query) -> Result<Vec<EntryKind>, Refused> {
    let known = |word: String| match word.as_str() {
        "file" => Ok(EntryKind::File),
        "directory" => Ok(EntryKind::Directory),
        "link" => Ok(EntryKind::Link),
        "other" => Ok(EntryKind::Other),
        _ => Err(Refused::bad("kind", format!("`kind`: {word:?} is not a kind of file"))),
    };
    query.all("kind").into_iter().map(known).collect()
}

fn found(entry: &FoundEntry) -> FoundFile {
    let FoundEntry { path, kind, size, mode, modified_ms } = entry;
    FoundFile::new(path, view::file_kind(*kind), *size, *mode, Time(*modified_ms))
}

async fn tree(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
) -> Result<Response, Refused> {
    let asked = FindQuery {
        path: path_of(&mut query)?,
        exclude_directories: name_patterns(&mut query, "exclude")?,
        exclude_hidden: query.flag("exclude_hidden")?,
        max_depth: Some(query.number("depth", 1..=DEPTH_MAX)?.unwrap_or(TREE_DEPTH) as u32),
        max_results: limit(&mut query)?,
        ..FindQuery::default()
    };
    query.done()?;
    let used = id.begin(&app, caller, UseKind::Read).await?;
    let Found { entries, truncated, unreadable } = used.find(&asked).await?;
    let tree = FileTree::new(entries.iter().map(|entry| (&*entry.path, found(entry))));
    answer::ok(&FileTree { truncated, unreadable, ..tree })
}

async fn find(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
) -> Result<Response, Refused> {
    let asked = FindQuery {
        path: path_of(&mut query)?,
        kinds: kinds(&mut query)?,
        names: name_patterns(&mut query, "name")?,
        exclude_directories: name_patterns(&mut query, "exclude")?,
        exclude_hidden: query.flag("exclude_hidden")?,
        max_depth: query.number("depth", 1..=DEPTH_MAX)?.map(|depth| depth as u32),
        max_results: limit(&mut query)?,
    };
    query.done()?;
    let used = id.begin(&app, caller, UseKind::Read).await?;
    let Found { entries, truncated, unreadable } = used.find(&asked).await?;
    answer::ok(&FoundList { files: entries.iter().map(found).collect(), truncated, unreadable })
}

async fn search(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    id: UseTarget,
) -> Result<Response, Refused> {
    let path = path_of(&mut query)?;
    let text = query.required("text")?;
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        let cause = format!("text: must have from 1 to {TEXT_BYTES_MAX} bytes");
        return Err(Refused::invalid("text", cause));
    }
    if text.contains(['\n', '\0']) {
        return Err(Refused::invalid("text", "text: must not contain a line break"));
    }
    let asked = SearchQuery {
        path,
        text,
        case_sensitive: !query.flag("ignore_case")?,
        names: name_patterns(&mut query, "name")?,
        exclude_directories: name_patterns(&mut query, "exclude")?,
        exclude_hidden: query.flag("exclude_hidden")?,
        max_results: limit(&mut query)?,
    };
    query.done()?;
    let used = id.begin(&app, caller, UseKind::Read).await?;
    let searched = used.search(&asked).await?;
    let place = |at: &engine::TextMatch| TextMatch::new(&at.path, at.line, at.column, &at.text);
    answer::ok(&SearchResult {
        matches: searched.matches.iter().map(place).collect(),
        truncated: searched.truncated,
        files: searched.files,
    })
}
