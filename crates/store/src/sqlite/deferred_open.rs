//! A database that is open, or waits for disk space to be opened: without space SQLite can make
//! neither its log nor the shared memory of connections. Then one connection that needs neither
//! reads it, and everything is opened with the first write for which there is space.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::checkpoints::{Cut, Due};
use super::error::at;
use super::event_blocks;
use super::mark::{self, Mark, MarkFile, Stop};
use super::reader::Reader;
use super::schema::MIGRATIONS;
use super::writer::{Writer, checkpoint_and_restart};
use super::{FILE, Shared, migrate, open, rotation, sealed_rows};
use crate::error::{StoreError, StoreErrorCode};
use crate::retention::Retention;
use sealing::NodeKey;

/// What opening needs.
#[derive(Debug, Clone)]
pub(super) struct DeferredOpen {
    pub(super) directory: PathBuf,
    pub(super) retention: Retention,
    pub(super) due: Due,
}

/// A database that can be written.
pub(super) struct Opened {
    pub(super) id: u64,
    pub(super) key: NodeKey,
    pub(super) writer: Writer,
    pub(super) reader: Reader,
    /// Why clear text of an older version, or envelopes of an earlier key, are still in the file.
    pub(super) clear_text_left: Option<StoreError>,
}

/// The free space that opening needs: the log, and the shared memory of connections.
const SPACE_BYTES_MIN: u64 = 1 << 20;

/// How often to try to open a database that waits for space.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Opens a database as soon as there is space, even if nothing is written.
pub(super) fn keep_trying(shared: &Arc<Shared>) -> Result<(), StoreError> {
    let shared = Arc::downgrade(shared);
    let trying = move || loop {
        std::thread::sleep(TRY_EVERY);
        let Some(shared) = shared.upgrade() else { return };
        if !shared.try_deferred_open() {
            return;
        }
    };
    let thread = std::thread::Builder::new().name("store-waiting".to_owned()).spawn(trying);
    thread
        .map(drop)
        .map_err(|error| StoreError::new(StoreErrorCode::Io, format!("start a thread: {error}")))
}

impl DeferredOpen {
    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(FILE)
    }

    /// Opens it for reading and writing. It was inspected before.
    pub(super) fn open(&self) -> Result<Opened, StoreError> {
        let path = self.path();
        self.refuse_without_space()?;
        open::make_file(&path)?;
        let mut conn = open::to_write(&path)?;
        let found = migrate::check(&conn, &path, MIGRATIONS)?;
        let (key, key_file) = sealed_rows::found_key(&conn, &self.directory)?;
        rotation::settle(&self.directory, key_file)?;
        migrate::migrate(&mut conn, &path, MIGRATIONS, &key)?;
        let scrubbed = match found {
            0 => sealed_rows::never_had_clear_text(&conn),
            _ => sealed_rows::scrub(&conn, &path),
        };
        let id = open::identity(&conn)?;
        let sequence = open::sequence(&conn)?;
        // What an earlier run left in the log is checkpointed, so that none of it is taken for this
        // run's. From here on there is a log.
        let durable =
            checkpoint_and_restart(&conn, Cut::GiveBack).map_err(at("checkpoint the log"))?;
        let mark = Mark {
            store: id,
            boot: mark::this_boot(),
            sequence,
            durable: if durable { sequence } else { 0 },
            stop: Stop::None,
        };
        let mark = MarkFile::take(&self.directory, mark)?;
        let writer = Writer::new(conn, mark, self.retention, key.clone())?;
        let deleted = writer.deleted_events();
        let reader = Reader::new(open::to_read(&path)?, self.retention, key.clone(), deleted);
        Ok(Opened { id, key, writer, reader, clear_text_left: scrubbed.err() })
    }

    /// SQLite maps a shared file. Where the disk has no page for it, touching that memory kills the
    /// process instead of failing.
    fn refuse_without_space(&self) -> Result<(), StoreError> {
        use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
        // A file without a name, so that nothing is left of it. Not all that a file system reports
        // as free can be had.
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let tried = open(&self.directory, flags, Mode::RUSR | Mode::WUSR)
            .and_then(|probe| fallocate(&probe, FallocateFlags::empty(), 0, SPACE_BYTES_MIN));
        match tried {
            Err(rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT) => {
                let path = self.path();
                let cause = format!("open {}: no space is left on the disk", path.display());
                Err(StoreError::new(StoreErrorCode::DiskFull, cause))
            }
            // A file system that cannot tell is tried.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Opens it for reading alone.
    pub(super) fn read_alone(&self) -> Result<(u64, NodeKey, Reader), StoreError> {
        let conn = open::to_read_alone(&self.path())?;
        let id = open::identity(&conn)?;
        let (key, key_file) = sealed_rows::found_key(&conn, &self.directory)?;
        // A backup of the server must get the right file. If it cannot be put in place without
        // space, the next open does that.
        let _ = rotation::settle(&self.directory, key_file);
        let events = event_blocks::found(&conn).map_err(at("read the events"))?;
        let reader = Reader::new(conn, self.retention, key.clone(), events.deleted_events());
        Ok((id, key, reader))
    }
}
