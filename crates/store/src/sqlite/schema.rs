//! The tables, version by version. A version that was released is never changed: what is new is a
//! migration at the end of the list.
//!
//! Records are JSON text in rows by slot, a number that only the writer knows: a sandbox that
//! takes the place of another is one row written over, and no index is touched.
//!
//! The history is in blocks: a row has all events of a commit, or all ends, as lines of JSON.
//! Blocks of events are found by the number of their last event. Events and ends have a table each
//! since each is kept for a time of its own.

use super::migrate::Migration;

/// All versions, from an empty file to the present one.
pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    sql: "
        CREATE TABLE pools (slot INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
        CREATE TABLE sandboxes (slot INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
        CREATE TABLE sessions (slot INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
        CREATE TABLE doomed_workspaces (slot INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;

        CREATE TABLE events (
            last INTEGER PRIMARY KEY,
            first INTEGER NOT NULL,
            count INTEGER NOT NULL,
            lines TEXT NOT NULL
        ) STRICT;
        CREATE TABLE ends (
            block INTEGER PRIMARY KEY,
            count INTEGER NOT NULL,
            lines TEXT NOT NULL
        ) STRICT;

        CREATE TABLE keys (id BLOB PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
    ",
}];
