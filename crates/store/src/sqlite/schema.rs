//! The tables, version by version. A version that was released is never changed: what is new is a
//! migration at the end of the list.
//!
//! Records are JSON text in rows by slot, a number that only the writer knows: a sandbox that
//! takes the place of another is one row written over, and no index is touched.

use super::migrate::Migration;

/// All versions, from an empty file to the present one.
pub(super) const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    sql: "
        CREATE TABLE pools (slot INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
        CREATE TABLE sandboxes (slot INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
        CREATE TABLE sessions (slot INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;
        CREATE TABLE doomed_workspaces (slot INTEGER PRIMARY KEY, record TEXT NOT NULL) STRICT;

        CREATE TABLE ends (
            number INTEGER PRIMARY KEY,
            sandbox BLOB NOT NULL,
            record TEXT NOT NULL
        ) STRICT;
        CREATE INDEX ends_by_sandbox ON ends (sandbox);

        CREATE TABLE events (
            number INTEGER PRIMARY KEY,
            at_ms INTEGER NOT NULL,
            tenant BLOB,
            sandbox BLOB,
            session BLOB,
            event TEXT NOT NULL
        ) STRICT;
        CREATE INDEX events_by_tenant ON events (tenant);
        CREATE INDEX events_by_sandbox ON events (sandbox) WHERE sandbox IS NOT NULL;
        CREATE INDEX events_by_session ON events (session) WHERE session IS NOT NULL;

        CREATE TABLE keys (id BLOB PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
    ",
}];
