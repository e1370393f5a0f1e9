//! A store in one SQLite file, `shoal.db`. What was committed is in the write-ahead log when the
//! commit returns: it survives `kill -9` of ours, and a power cut may take the last moments but
//! never half of a batch.
//!
//! One store at a time may have the file: it remembers what is in there. Whoever opens it sees to
//! that, by a lock on the data directory.

mod backup;
mod checkpoints;
mod documents;
mod fault;
mod hidden;
mod history;
mod lines;
mod migrate;
mod open;
mod pace;
mod prepared;
mod processes;
mod reader;
mod schema;
mod sealed_rows;
mod slots;
mod tables;
mod trim;
mod turn_pages;
mod turns;
mod writer;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use model::process::ProcessRecord;
use model::record::Journal;
use model::turn::{TurnPiece, TurnRecord};
use model::why::Ended;
use model::{Document, KeyRecord, SandboxId, SeedId, SessionId, TurnId};
use tokio::runtime::Handle;

use self::checkpoints::{Bell, Checkpoints, Cut};
use self::open::PATIENCE;
use self::pace::Pace;
use self::prepared::Prepared;
use self::reader::Reader;
use self::schema::MIGRATIONS;
use self::writer::Writer;
use crate::contract::{
    Batch, DocumentQuery, DocumentsSize, EventPage, EventQuery, Loaded, ProcessKey, ProcessesQuery,
    Store, TurnQuery,
};
use crate::error::{StoreError, StoreErrorCode};
use crate::retention::Retention;
use sealing::NodeKey;

/// The name of the file in its directory.
pub const FILE: &str = "shoal.db";

/// A store in a file.
#[derive(Debug)]
pub struct SqliteStore {
    id: u64,
    path: PathBuf,
    retention: Retention,
    clear_text_left: Option<StoreError>,
    shared: Arc<Shared>,
    checkpoints: Arc<Mutex<Option<Checkpoints>>>,
}

/// What commits, readers and the thread for checkpoints have in common. A connection that is not
/// there was closed.
struct Shared {
    writer: Mutex<Option<Writer>>,
    reader: Mutex<Option<Reader>>,
    pace: Pace,
    bell: Bell,
    key: NodeKey,
}

impl SqliteStore {
    /// Opens the file in a directory, or makes it; brings it to the present version, after a
    /// backup. Waits for the disk.
    pub fn open(directory: &Path, retention: Retention) -> Result<Self, StoreError> {
        Self::open_as(directory, retention, checkpoints::LARGE)
    }

    fn open_as(
        directory: &Path,
        retention: Retention,
        large_log_bytes: u64,
    ) -> Result<Self, StoreError> {
        let path = directory.join(FILE);
        open::make_file(&path)?;
        let mut conn = open::to_write(&path)?;
        let found = migrate::found(&conn, &path, MIGRATIONS)?;
        let key = sealed_rows::key_of(&conn, directory)?;
        migrate::migrate(&mut conn, &path, MIGRATIONS, &key)?;
        let scrubbed = match found {
            0 => sealed_rows::never_had_clear_text(&conn),
            _ => sealed_rows::scrub(&conn, &path),
        };
        let id = open::identity(&conn)?;
        let shared = Arc::new(Shared {
            writer: Mutex::new(Some(Writer::new(conn, retention, key.clone())?)),
            reader: Mutex::new(Some(Reader::new(open::to_read(&path)?, retention, key.clone()))),
            pace: Pace::default(),
            bell: Bell::default(),
            key,
        });
        let checkpoints = Checkpoints::start(&path, &shared, large_log_bytes)?;
        let checkpoints = Arc::new(Mutex::new(Some(checkpoints)));
        let clear_text_left = scrubbed.err();
        Ok(Self { id, path, retention, clear_text_left, shared, checkpoints })
    }

    /// A number that no other store has, for as long as the file exists.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Why what an older version wrote in clear text is still in the file, if it is: what is to
    /// remove it failed, and is tried again at the next start.
    pub const fn clear_text_left(&self) -> Option<&StoreError> {
        self.clear_text_left.as_ref()
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        elsewhere(move || read(locked(&shared.reader).as_mut().ok_or_else(StoreError::closed)?))
            .await
    }

    /// Writes on another thread. If this future is dropped before that has begun, nothing is
    /// written: otherwise it might come after what the caller writes next.
    async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Shared, &mut Writer) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let wanted = Wanted(Arc::new(AtomicBool::new(true)));
        let (shared, asked) = (Arc::clone(&self.shared), Arc::clone(&wanted.0));
        let written = elsewhere(move || {
            let mut writer = locked(&shared.writer);
            if !asked.load(Ordering::Acquire) {
                return Err(StoreError::new(StoreErrorCode::Closed, "nobody waits for it"));
            }
            write(&shared, writer.as_mut().ok_or_else(StoreError::closed)?)
        })
        .await;
        drop(wanted);
        written
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn load(&self) -> Result<Loaded, StoreError> {
        let shared = Arc::clone(&self.shared);
        elsewhere(move || {
            // A commit that nobody waits for may be in the middle of it; it is not to come later.
            let _no_commit = locked(&shared.writer);
            locked(&shared.reader).as_mut().ok_or_else(StoreError::closed)?.load()
        })
        .await
    }

    async fn commit(&self, batch: &Batch) -> Result<(), StoreError> {
        let prepared = Prepared::new(batch, &self.shared.key)?;
        if let Some(done) = self.shared.commit_here(&prepared) {
            return done;
        }
        self.write(move |shared, writer| shared.commit(writer, &prepared, PATIENCE)).await
    }

    async fn events(&self, query: &EventQuery) -> Result<EventPage, StoreError> {
        let query = *query;
        self.read(move |reader| reader.events(&query)).await
    }

    async fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        self.read(|reader| reader.keys()).await
    }

    async fn put_key(&self, key: &KeyRecord) -> Result<(), StoreError> {
        let key = key.clone();
        self.write(move |shared, writer| {
            writer.put_key(&key, PATIENCE)?;
            shared.bell.ring(0);
            Ok(())
        })
        .await
    }

    async fn documents(&self, query: &DocumentQuery) -> Result<Vec<Document>, StoreError> {
        let query = query.clone();
        self.read(move |reader| documents::all(reader.conn(), reader.key(), &query)).await
    }

    async fn documents_size(&self, query: &DocumentQuery) -> Result<DocumentsSize, StoreError> {
        let query = query.clone();
        self.read(move |reader| documents::size(reader.conn(), &query)).await
    }

    async fn document_seeds(&self) -> Result<BTreeSet<SeedId>, StoreError> {
        self.read(|reader| documents::seeds(reader.conn())).await
    }

    async fn put_document(&self, document: &Document) -> Result<(), StoreError> {
        let document = document.clone();
        let place = hidden::of_document(&document.kind, document.tenant, &document.name);
        let sealed = self.shared.key.seal(&place, document.body.as_bytes());
        let sealed = sealed.map_err(hidden::unsealed)?;
        self.write(move |shared, writer| {
            let put = |writer: &Writer| documents::put(writer.conn(), &document, &sealed);
            writer.patiently(PATIENCE, put)?;
            shared.bell.ring(sealed.len());
            Ok(())
        })
        .await
    }

    async fn remove_documents(&self, query: &DocumentQuery) -> Result<u64, StoreError> {
        let query = query.clone();
        self.write(move |shared, writer| {
            let removed =
                writer.patiently(PATIENCE, |writer| documents::remove(writer.conn(), &query))?;
            shared.bell.ring(0);
            Ok(removed as u64)
        })
        .await
    }

    async fn ended(&self, sandbox: SandboxId) -> Result<Option<Ended>, StoreError> {
        self.read(move |reader| reader.ended(sandbox)).await
    }

    async fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>, StoreError> {
        self.read(move |reader| reader.turn(turn)).await
    }

    async fn turns(&self, query: &TurnQuery) -> Result<Vec<TurnRecord>, StoreError> {
        let query = *query;
        self.read(move |reader| reader.turns(&query)).await
    }

    async fn pieces(
        &self,
        turn: TurnId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TurnPiece>, StoreError> {
        self.read(move |reader| reader.pieces(turn, after, limit)).await
    }

    async fn process(&self, key: &ProcessKey) -> Result<Option<ProcessRecord>, StoreError> {
        let key = key.clone();
        self.read(move |reader| processes::one(reader.conn(), reader.key(), &key)).await
    }

    async fn processes(&self, query: &ProcessesQuery) -> Result<Vec<ProcessRecord>, StoreError> {
        let query = *query;
        self.read(move |reader| processes::page(reader.conn(), reader.key(), &query)).await
    }

    async fn process_log(
        &self,
        sandbox: SandboxId,
        number: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(move |reader| processes::log(reader.conn(), sandbox, number)).await
    }

    async fn unfinished_processes(&self, limit: u32) -> Result<Vec<ProcessRecord>, StoreError> {
        self.read(move |reader| processes::unfinished(reader.conn(), reader.key(), limit)).await
    }

    async fn backup(&self, to: &Path) -> Result<Journal, StoreError> {
        let (from, to, key) = (self.path.clone(), to.to_owned(), self.shared.key.clone());
        let retention = self.retention;
        elsewhere(move || backup::copy(&from, &to, retention, key)).await
    }

    async fn forget_in_backup(
        &self,
        copy: &Path,
        sessions: &BTreeSet<SessionId>,
    ) -> Result<(), StoreError> {
        let (copy, sessions) = (copy.to_owned(), sessions.clone());
        elsewhere(move || backup::forget(&copy, &sessions)).await
    }

    async fn close(&self) -> Result<(), StoreError> {
        let (shared, checkpoints) = (Arc::clone(&self.shared), Arc::clone(&self.checkpoints));
        elsewhere(move || {
            // The thread first, since it may be about to use the writer.
            drop(locked(&checkpoints).take());
            drop(locked(&shared.reader).take());
            let writer = locked(&shared.writer).take();
            writer.map_or(Ok(()), Writer::close)
        })
        .await
    }
}

impl Shared {
    /// Commits on this thread, if that can be done at once.
    fn commit_here(&self, prepared: &Prepared) -> Option<Result<(), StoreError>> {
        if !self.pace.trusted() {
            return None;
        }
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let Some(writer) = writer.as_mut() else { return Some(Err(StoreError::closed())) };
        match self.commit(writer, prepared, Duration::ZERO) {
            Err(error) if error.code == StoreErrorCode::Locked => None,
            done => Some(done),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "how long the disk takes decides nothing else")]
    fn commit(
        &self,
        writer: &mut Writer,
        prepared: &Prepared,
        patience: Duration,
    ) -> Result<(), StoreError> {
        let began = Instant::now();
        let done = writer.commit(prepared, patience);
        self.pace.took(began.elapsed());
        if done.is_ok() {
            self.bell.ring(prepared.bytes());
        }
        done
    }

    fn restart_log(&self, cut: Cut) -> Result<(), StoreError> {
        locked(&self.writer).as_ref().map_or(Ok(()), |writer| writer.restart_log(cut))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("pace", &self.pace).finish_non_exhaustive()
    }
}

/// Says when nobody waits any more.
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Whatever was being written when a thread panicked was taken back.
fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs on a thread that may wait. It runs to its end also if nobody waits for it.
async fn elsewhere<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let Ok(runtime) = Handle::try_current() else { return run() };
    match runtime.spawn_blocking(run).await {
        Ok(done) => done,
        Err(error) => {
            Err(StoreError::new(StoreErrorCode::Io, format!("on another thread: {error}")))
        }
    }
}

#[cfg(test)]
mod clear_text_tests;
#[cfg(test)]
mod tests;
