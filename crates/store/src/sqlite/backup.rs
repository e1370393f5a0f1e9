//! A copy of the whole database, made by SQLite as of one moment while others read and write. It is
//! complete and on the disk when it has its name. Sealed data stays sealed: the copy is useless
//! without the key of the node.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use model::record::Journal;
use model::{SessionId, Wall, WorkspaceId};
use rusqlite::{Connection, params};
use sealing::NodeKey;

use super::error::at;
use super::open;
use super::reader::Reader;
use crate::error::{StoreError, StoreErrorCode};
use crate::event_shares::DeletedEvents;
use crate::retention::Retention;

const STEP: &str = "copy the database";

/// Copies everything into a new file, and returns the records in it.
pub(super) fn copy(
    from: &Path,
    to: &Path,
    retention: Retention,
    key: NodeKey,
) -> Result<Journal, StoreError> {
    let refused = |error: std::io::Error| {
        StoreError::new(StoreErrorCode::Io, format!("{STEP} to {}: {error}", to.display()))
    };
    // Created here and not by SQLite, which would let every user read it.
    drop(
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(to)
            .map_err(refused)?,
    );
    // A connection of its own: neither commits nor readers wait for it.
    let conn = open::to_copy(from)?;
    conn.execute("VACUUM INTO ?1", [to.to_string_lossy()]).map_err(at(STEP))?;
    fs::File::open(to).and_then(|file| file.sync_all()).map_err(refused)?;
    let copied = Connection::open(to).map_err(at(STEP))?;
    Ok(Reader::new(copied, retention, key, DeletedEvents::default()).load()?.journal)
}

/// Removes sessions from a copy, with their sandboxes and turns.
pub(super) fn remove_sessions(
    copy: &Path,
    sessions: &BTreeSet<SessionId>,
) -> Result<(), StoreError> {
    let step = at("remove sessions that were deleted while the database was copied");
    let mut conn = Connection::open(copy).map_err(&step)?;
    let change = conn.transaction().map_err(&step)?;
    for session in sessions {
        let (id, text) = (session.as_u128().to_be_bytes(), session.to_string());
        for sql in [
            "DELETE FROM sandboxes WHERE record ->> '$.owner.session' = ?1",
            "DELETE FROM sessions WHERE record ->> '$.id' = ?1",
        ] {
            change.execute(sql, params![text]).map_err(&step)?;
        }
        // Blocks that another session shows stay, and nothing reads the rest.
        change.execute("DELETE FROM turns WHERE session = ?1", params![id]).map_err(&step)?;
    }
    change.commit().map_err(&step)
}

/// Notes that the files of workspaces are saved: they were packed for the backup itself.
pub(super) fn note_saved(
    copy: &Path,
    workspaces: &BTreeSet<WorkspaceId>,
) -> Result<(), StoreError> {
    let step = at("note which files are in the backup");
    let mut conn = Connection::open(copy).map_err(&step)?;
    let change = conn.transaction().map_err(&step)?;
    for workspace in workspaces {
        let sql = "UPDATE sandboxes SET record = json_set(record, '$.has_files', json('true'), \
                   '$.dirty', json('false')) WHERE record ->> '$.workspace' = ?1";
        change.execute(sql, params![workspace.to_string()]).map_err(&step)?;
    }
    change.commit().map_err(&step)
}

/// Lets the idle time of all sessions in a restored copy count from now: without the server, no
/// session could be used. Needs no key, because these times are not sealed.
pub fn restart_idle_time(copy: &Path, now: Wall) -> Result<(), StoreError> {
    let step = at("let the idle time of sessions begin again");
    let conn = Connection::open(copy).map_err(&step)?;
    let sql = "UPDATE sessions SET record = json_set(record, '$.idle_from', ?1)";
    conn.execute(sql, [i64::try_from(now.0).unwrap_or(i64::MAX)]).map_err(&step)?;
    // Closed here, so that an error of its last write is seen.
    conn.close().map_err(|(_, error)| step(error))
}
