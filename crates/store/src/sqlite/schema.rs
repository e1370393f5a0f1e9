//! The tables, version by version. A released version never changes: anything new is a migration at
//! the end of the list.
//!
//! Records are JSON text in rows by slot, a number that only the writer knows: a sandbox that
//! replaces another overwrites one row, and no index is touched.
//!
//! The history is in blocks: a row has all events of a commit, or all tombstones (table `ends`), as
//! lines of JSON. Blocks of events are found by the number of their last event. Events and
//! tombstones have a table each since each has its own retention.
//!
//! A turn is a row by number, with the key it belongs to, and its pieces are in blocks again, found
//! by turn and by the number of their last piece. A fork does not copy the blocks of a turn: the
//! copy names the turn that has them. When no turn shows them any more they are listed in
//! `forgotten_pieces`, and deleted some at a time.
//!
//! A process is a row by sandbox and number, and its output, where that is small, a row beside it,
//! so that listing the processes of a sandbox reads no output.

use super::migrate::{Migration, Then};

/// All versions, from an empty file to the present one.
pub(super) const MIGRATIONS: &[Migration] = &[
    RECORDS_AND_EVENTS,
    TURNS,
    DOCUMENTS,
    TURNS_BY_KEY,
    IDENTITY,
    PROCESSES,
    SEALED,
    PROGRESS,
    USAGE,
    SECRETS,
];

/// The version since which a database has an identity.
pub(super) const WITH_IDENTITY: u32 = IDENTITY.version;

/// The version since which a database counts its commits.
pub(super) const WITH_PROGRESS: u32 = PROGRESS.version;

const RECORDS_AND_EVENTS: Migration = Migration {
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
    then: Then::Nothing,
};

const TURNS: Migration = Migration {
    version: 2,
    sql: "
        CREATE TABLE turns (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id BLOB NOT NULL UNIQUE,
            session BLOB NOT NULL,
            shows INTEGER,
            ended_at INTEGER,
            bytes INTEGER NOT NULL,
            started TEXT,
            over TEXT,
            record TEXT NOT NULL
        ) STRICT;
        CREATE INDEX turns_by_session ON turns (session);
        CREATE INDEX turns_by_end ON turns (ended_at, number, bytes);
        CREATE INDEX turns_by_what_they_show ON turns (shows) WHERE shows IS NOT NULL;

        CREATE TABLE pieces (
            turn INTEGER NOT NULL,
            last INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            lines TEXT NOT NULL,
            PRIMARY KEY (turn, last)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE forgotten_pieces (turn INTEGER PRIMARY KEY) STRICT;
    ",
    then: Then::Nothing,
};

const DOCUMENTS: Migration = Migration {
    version: 3,
    sql: "
        CREATE TABLE documents (
            kind TEXT NOT NULL,
            tenant BLOB NOT NULL,
            name TEXT NOT NULL,
            seed BLOB,
            body TEXT NOT NULL,
            PRIMARY KEY (kind, tenant, name)
        ) STRICT;
    ",
    then: Then::Nothing,
};

/// Until this version the size of a turn was counted too low.
const TURNS_BY_KEY: Migration = Migration {
    version: 4,
    sql: "
        ALTER TABLE turns ADD COLUMN tenant BLOB NOT NULL
            DEFAULT x'00000000000000000000000000000000';
        UPDATE turns SET tenant = unhex(record ->> '$.tenant', '-');
        UPDATE pieces SET bytes = octet_length(lines);
        UPDATE turns SET bytes = octet_length(record) + octet_length(over)
            + (SELECT coalesce(sum(bytes), 0) FROM pieces WHERE turn = coalesce(shows, number))
            WHERE ended_at IS NOT NULL;
        CREATE INDEX turns_by_key ON turns (tenant, ended_at, number, bytes)
            WHERE ended_at IS NOT NULL;
    ",
    then: Then::Nothing,
};

/// Distinguishes one store from another, for files beside it that only it names.
const IDENTITY: Migration = Migration {
    version: 5,
    sql: "
        CREATE TABLE identity (id INTEGER NOT NULL) STRICT;
        INSERT INTO identity (id) VALUES (random());
    ",
    then: Then::Nothing,
};

const PROCESSES: Migration = Migration {
    version: 6,
    sql: "
        CREATE TABLE processes (
            sandbox BLOB NOT NULL,
            number INTEGER NOT NULL,
            id BLOB NOT NULL,
            pid INTEGER NOT NULL,
            name TEXT NOT NULL,
            tenant BLOB NOT NULL,
            ended_at INTEGER,
            bytes INTEGER NOT NULL,
            record TEXT NOT NULL,
            PRIMARY KEY (sandbox, number)
        ) STRICT, WITHOUT ROWID;
        CREATE INDEX processes_by_end ON processes (ended_at, sandbox, number, tenant, bytes)
            WHERE ended_at IS NOT NULL;
        CREATE INDEX processes_by_key ON processes (tenant, ended_at, sandbox, number, bytes)
            WHERE ended_at IS NOT NULL;
        CREATE INDEX processes_unfinished ON processes (sandbox, number) WHERE ended_at IS NULL;

        CREATE TABLE process_logs (
            sandbox BLOB NOT NULL,
            number INTEGER NOT NULL,
            log BLOB NOT NULL,
            PRIMARY KEY (sandbox, number)
        ) STRICT, WITHOUT ROWID;
    ",
    then: Then::Nothing,
};

/// Fields that may be secret are in an envelope beside the record, sealed with the key of the node.
/// The database stores only a check of that key, and whether clear text of older versions may be
/// left in the file.
const SEALED: Migration = Migration {
    version: 7,
    sql: "
        CREATE TABLE node_key (key_check BLOB NOT NULL, scrubbed INTEGER NOT NULL) STRICT;
        ALTER TABLE sessions ADD COLUMN sealed BLOB;
        ALTER TABLE turns ADD COLUMN sealed BLOB;
        ALTER TABLE processes ADD COLUMN sealed BLOB;
        ALTER TABLE documents ADD COLUMN sealed BLOB;
    ",
    then: Then::SealAll,
};

/// Every commit raises the sequence. The mark beside the database has it too, so that missing
/// commits are detected.
const PROGRESS: Migration = Migration {
    version: 8,
    sql: "
        CREATE TABLE progress (sequence INTEGER NOT NULL) STRICT;
        INSERT INTO progress (sequence) VALUES (0);
    ",
    then: Then::Nothing,
};

/// What each key has used, as totals.
const USAGE: Migration = Migration {
    version: 9,
    sql: "
        CREATE TABLE usage (key BLOB PRIMARY KEY, record TEXT NOT NULL) STRICT, WITHOUT ROWID;
    ",
    then: Then::Nothing,
};

/// Secrets: the node's with an empty owner, those of keys with the id of the key. The value is only
/// in the envelope.
const SECRETS: Migration = Migration {
    version: 10,
    sql: "
        CREATE TABLE secrets (
            owner BLOB NOT NULL,
            name TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            updated_at INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            sealed BLOB NOT NULL,
            PRIMARY KEY (owner, name)
        ) STRICT;
    ",
    then: Then::Nothing,
};
