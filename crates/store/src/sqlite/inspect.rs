//! Inspects a database before it is opened, and decides whether a server may start on it. It may
//! not if commits are missing that a server acknowledged: SQLite ignores a damaged log silently,
//! and files that the records no longer name would then be removed.
//!
//! Changes nothing, whatever it finds, unless the operator accepted the loss.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use sealing::NodeKey;

use super::log_walk::{self, Walk};
use super::mark::{self, MARK_FILE, Mark, Stop};
use super::reader::Reader;
use super::schema::{MIGRATIONS, WITH_IDENTITY, WITH_PROGRESS};
use super::{FILE, migrate, open, sealed_rows};
use crate::error::{StoreError, StoreErrorCode};
use crate::event_shares::DeletedEvents;
use crate::retention::Retention;

/// What happens to a database that lacks commits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LossPolicy {
    /// It is not opened.
    #[default]
    Refuse,
    /// It is opened as it is: its operator accepted the loss.
    Accept,
}

/// Where a database is, and what is known of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatabaseLocation {
    /// The directory.
    pub directory: PathBuf,
    /// Something that an earlier run left there, besides the files of the store: then there must be
    /// a database.
    pub beside: Option<String>,
    /// What happens to a database that lacks commits.
    pub loss: LossPolicy,
}

/// A database that may be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    pub(super) directory: PathBuf,
    /// Whether there is a database of the present version.
    pub(super) present: bool,
    /// Commits that are missing.
    pub(super) lost: Option<LostCommits>,
}

/// Acknowledged commits that are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostCommits {
    /// How many; none if that is not known.
    pub commits: Option<u64>,
    /// Why, in words.
    pub cause: String,
}

impl Inspected {
    /// Commits that are missing, as after a power cut.
    pub const fn lost(&self) -> Option<&LostCommits> {
        self.lost.as_ref()
    }
}

/// What a database says about itself.
struct Content {
    version: u32,
    store: Option<u64>,
    sequence: u64,
}

/// What was found about missing commits.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Whole,
    /// A power cut took the last commits, which the disk never promised to have.
    Torn {
        commits: u64,
    },
    /// The last server stopped in order, with everything in this file: so an older copy was put in
    /// its place.
    Older {
        commits: u64,
    },
    /// Commits are missing that must be there.
    Incomplete {
        commits: Option<u64>,
        cause: String,
    },
}

/// Inspects the database in a directory. A directory without one is fine if it has nothing else.
pub(super) fn inspect(
    place: &DatabaseLocation,
    retention: Retention,
) -> Result<Inspected, StoreError> {
    let directory = place.directory.clone();
    let path = directory.join(FILE);
    let accepts = place.loss == LossPolicy::Accept;
    let mark = match mark::read(&directory) {
        Err(error) if error.code == StoreErrorCode::Incomplete && accepts => None,
        read => read?,
    };
    let log = open::log_of(&path);
    let walk = log_walk::walk(&log).map_err(|error| unreadable(&log, &error))?;
    let bytes = length(&path)?;
    let Some(bytes) = bytes.filter(|bytes| *bytes > 0) else {
        let beside =
            mark.as_ref().map(|mark| format!("{MARK_FILE} (of {} commits)", mark.sequence));
        let log_left = length(&log)?.filter(|bytes| *bytes > 0);
        let beside = beside
            .or_else(|| log_left.map(|bytes| format!("a log of {bytes} bytes")))
            .or_else(|| place.beside.clone());
        let Some(beside) = beside else {
            return Ok(Inspected { directory, present: false, lost: None });
        };
        let what = if bytes.is_some() { "is empty" } else { "is not there" };
        let cause = format!("{} {what}, beside {beside}", path.display());
        if !accepts {
            return Err(StoreError::new(StoreErrorCode::Missing, cause));
        }
        set_aside(&log)?;
        let lost = Some(LostCommits { commits: mark.map(|mark| mark.sequence), cause });
        return Ok(Inspected { directory, present: false, lost });
    };
    let content = read(&path, retention)?;
    let log = LogFound { walk, bytes };
    let verdict = judge(mark.as_ref(), log, &content, &mark::this_boot());
    let lost = match verdict {
        Verdict::Whole => None,
        Verdict::Torn { commits } => {
            let cause = "the end of its log is torn, as after a power cut".to_owned();
            Some(LostCommits { commits: Some(commits), cause })
        }
        Verdict::Older { commits } => {
            let cause = "an older copy of the database was put in place".to_owned();
            Some(LostCommits { commits: Some(commits), cause })
        }
        Verdict::Incomplete { commits, cause } if accepts => {
            set_aside_copy(&open::log_of(&path))?;
            Some(LostCommits { commits, cause })
        }
        Verdict::Incomplete { cause, .. } => {
            return Err(StoreError::new(StoreErrorCode::Incomplete, cause));
        }
    };
    Ok(Inspected { directory, present: content.version == migrate::latest(MIGRATIONS), lost })
}

/// What is known of the files.
#[derive(Clone, Copy)]
struct LogFound {
    /// None if there is no log.
    walk: Option<Walk>,
    /// Of the database.
    bytes: u64,
}

/// Decides whether commits are missing, and whether that may be.
fn judge(mark: Option<&Mark>, found: LogFound, content: &Content, boot: &str) -> Verdict {
    let mark = mark.filter(|mark| content.store.is_none_or(|store| store == mark.store));
    let Some(mark) = mark else {
        // Nothing says how far it got: a database of an earlier version, or restored.
        return match found.walk.filter(|walk| walk.is_damaged()) {
            Some(walk) => Verdict::Incomplete { commits: None, cause: damage(walk) },
            None => Verdict::Whole,
        };
    };
    let is = content.sequence;
    let missing = mark.sequence.checked_sub(is).filter(|missing| *missing > 0);
    let lacks = |missing: u64| {
        let why = match found.walk {
            Some(walk) if walk.is_damaged() => damage(walk),
            Some(walk) if walk.ends_early => {
                format!("its log cannot be used after frame {}", walk.usable)
            }
            None if mark.stop == Stop::None => "its log, shoal.db-wal, is not there".to_owned(),
            Some(_) | None => "the database may be an older copy".to_owned(),
        };
        let cause = format!(
            "the database of {} bytes has the commits up to {is}, and commits up to {} were made: \
             {missing} are missing; {why}",
            found.bytes, mark.sequence
        );
        Verdict::Incomplete { commits: Some(missing), cause }
    };
    let in_order = match mark.stop {
        Stop::None | Stop::Held => false,
        Stop::Orderly => true,
    };
    if let Some(commits) = missing.filter(|_| in_order && found.walk.is_none()) {
        return Verdict::Older { commits };
    }
    // A log that ends early may have been cut by a power cut, or by a machine that was copied while
    // it ran: commits that the disk never promised to have are reported. A log with whole commits
    // behind the damage was changed by something else, and one of which nothing is left is as good
    // as gone.
    let usable = found.walk.is_some_and(|walk| !walk.is_damaged() && walk.usable > 0);
    let torn = usable && is >= mark.durable;
    if mark.boot == boot {
        return match missing {
            Some(commits) if torn => Verdict::Torn { commits },
            Some(missing) => lacks(missing),
            None if found.walk.is_none() && mark.stop == Stop::None => {
                let cause = "the log of the database, shoal.db-wal, is not there, though the last \
                             server did not stop in order";
                Verdict::Incomplete { commits: Some(0), cause: cause.to_owned() }
            }
            None => Verdict::Whole,
        };
    }
    match missing {
        Some(missing) if is < mark.durable => lacks(missing),
        Some(commits) => Verdict::Torn { commits },
        None => Verdict::Whole,
    }
}

fn damage(walk: Walk) -> String {
    if walk.headless {
        return "the beginning of its log, shoal.db-wal, is damaged".to_owned();
    }
    format!(
        "its log, shoal.db-wal, is damaged after frame {}, with {} whole commits behind the damage",
        walk.usable, walk.commits_behind
    )
}

/// Reads what a start would read, so that an unreadable database is found before anything changes.
fn read(path: &Path, retention: Retention) -> Result<Content, StoreError> {
    let conn = open::to_read_alone(path)?;
    let version = migrate::check(&conn, path, MIGRATIONS)?;
    let store = (version >= WITH_IDENTITY).then(|| open::identity(&conn)).transpose()?;
    let sequence = if version >= WITH_PROGRESS { open::sequence(&conn)? } else { 0 };
    if version == migrate::latest(MIGRATIONS) {
        // A database of the latest version has its key already: none is made here.
        let key = sealed_rows::key_of(&conn, path.parent().unwrap_or(path))?;
        read_all(conn, retention, key)?;
    }
    Ok(Content { version, store, sequence })
}

fn read_all(conn: Connection, retention: Retention, key: NodeKey) -> Result<(), StoreError> {
    let mut reader = Reader::new(conn, retention, key, DeletedEvents::default());
    reader.load()?;
    reader.keys()?;
    super::writer::check(reader.conn(), retention)
}

/// Puts aside a log that SQLite would remove.
fn set_aside(log: &Path) -> Result<(), StoreError> {
    match fs::rename(log, aside(log)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(unreadable(log, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Copies aside a log of which SQLite uses only the beginning.
fn set_aside_copy(log: &Path) -> Result<(), StoreError> {
    match fs::copy(log, aside(log)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(unreadable(log, &error)),
        Ok(_) | Err(_) => Ok(()),
    }
}

pub(super) fn aside(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".damaged");
    name.into()
}

/// The size of a file; none if it does not exist.
fn length(path: &Path) -> Result<Option<u64>, StoreError> {
    match fs::metadata(path) {
        Ok(file) => Ok(Some(file.len())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> StoreError {
    StoreError::new(StoreErrorCode::Io, format!("inspect {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inspection_tells_missing_commits_from_a_power_cut() {
        let whole = Some(Walk { usable: 9, ..Walk::default() });
        let torn = Some(Walk { usable: 4, ends_early: true, ..Walk::default() });
        let damaged =
            Some(Walk { usable: 4, ends_early: true, commits_behind: 3, headless: false });
        let emptied = Some(Walk::default());
        let (ran, stopped) = (Stop::None, Stop::Orderly);
        // The mark says 10 commits, of which the disk has 6.
        for (what, sequence, walk, stop, boot, verdict) in [
            ("as it was left", 10, whole, ran, "now", "whole"),
            ("killed before the mark was written", 11, whole, ran, "now", "whole"),
            ("stopped in order", 10, None, stopped, "now", "whole"),
            ("a lost tail", 9, torn, ran, "now", "torn 1"),
            ("a log that was cut behind a commit", 9, whole, ran, "now", "torn 1"),
            ("a log without a beginning", 9, emptied, ran, "now", "1 are missing"),
            ("a tail that the disk had", 5, torn, ran, "now", "cannot be used after frame 4"),
            (
                "damage in the middle",
                7,
                damaged,
                ran,
                "now",
                "3 are missing; its log, shoal.db-wal, is damaged after",
            ),
            ("no log", 6, None, ran, "now", "4 are missing; its log, shoal.db-wal, is not there"),
            ("no log, and nothing lost", 10, None, ran, "now", "did not stop in order"),
            ("a reader took the log along", 10, None, Stop::Held, "now", "whole"),
            ("the log that a reader kept is gone", 7, None, Stop::Held, "now", "3 are missing"),
            ("an older copy", 3, None, stopped, "now", "older by 7"),
            (
                "an older copy with a log",
                3,
                whole,
                stopped,
                "now",
                "the database may be an older copy",
            ),
            ("what an interrupted commit left", 10, damaged, ran, "now", "whole"),
            ("a power cut", 7, torn, ran, "then", "torn 3"),
            ("a power cut out of order", 7, damaged, ran, "then", "torn 3"),
            ("a power cut that took nothing", 10, torn, ran, "then", "whole"),
            ("a power cut cannot take what the disk has", 5, torn, ran, "then", "5 are missing"),
            ("an older copy after another boot", 5, None, stopped, "then", "older by 5"),
        ] {
            let mark = Mark { store: 1, boot: boot.to_owned(), sequence: 10, durable: 6, stop };
            let content = Content { version: 7, store: Some(1), sequence };
            let found = LogFound { walk, bytes: 1 };
            let said = match judge(Some(&mark), found, &content, "now") {
                Verdict::Whole => "whole".to_owned(),
                Verdict::Torn { commits } => format!("torn {commits}"),
                Verdict::Older { commits } => format!("older by {commits}"),
                Verdict::Incomplete { cause, .. } => cause,
            };
            assert!(said.contains(verdict), "{what}: {said}");
        }
    }

    #[test]
    fn inspection_without_a_mark_judges_by_the_log_alone() {
        let mark =
            Mark { store: 2, boot: "now".to_owned(), sequence: 10, durable: 10, stop: Stop::None };
        let content = Content { version: 7, store: Some(1), sequence: 3 };
        let damaged = Walk { usable: 4, ends_early: true, commits_behind: 3, headless: false };
        for mark in [None, Some(&mark)] {
            for (walk, whole) in
                [(None, true), (Some(Walk::default()), true), (Some(damaged), false)]
            {
                let verdict = judge(mark, LogFound { walk, bytes: 1 }, &content, "now");
                assert_eq!(verdict == Verdict::Whole, whole, "{mark:?} {walk:?}: {verdict:?}");
            }
        }
    }
}
