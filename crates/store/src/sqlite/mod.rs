//! A store in one SQLite file, `shoal.db`. What was committed is in the write-ahead log when the
//! commit returns: it survives `kill -9` of the server, and a power cut may take the last moments
//! but never half of a batch.
//!
//! One store at a time may have the file: it remembers what is in there. The server ensures that
//! with a lock on the data directory.

mod backup;
mod block_retention;
mod blocking;
mod checkpoints;
mod commit_thread;
mod deferred_open;
mod documents;
mod error;
mod event_blocks;
mod history;
mod inspect;
mod json_lines;
mod log_walk;
mod mark;
mod migrate;
mod open;
mod prepared_batch;
mod processes;
mod reader;
mod rotation;
mod schema;
mod sealed_fields;
mod sealed_rows;
mod secrets;
mod shared;
mod size_limit;
mod slots;
mod tables;
mod turn_pages;
mod turns;
mod usage;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use model::process::ProcessRecord;
use model::record::Journal;
use model::turn::{TurnPiece, TurnRecord};
use model::why::Ended;
use model::{
    Document, KeyId, KeyRecord, SandboxId, SecretCounts, SecretInfo, SecretName, SecretOwner,
    SecretRecord, SeedId, SessionId, TurnId, UsageRecord, WorkspaceId,
};
use tokio::sync::Semaphore;

pub use self::backup::restart_idle_time;
use self::blocking::{on_blocking_thread, turn};
use self::checkpoints::{Bell, Checkpoints, DUE, Due};
use self::commit_thread::DiskSpeed;
use self::deferred_open::DeferredOpen;
pub use self::inspect::{DatabaseLocation, Inspected, LossPolicy, LostCommits};
pub use self::mark::MARK_FILE;
use self::open::PATIENCE;
use self::prepared_batch::Prepared;
use self::reader::Reader;
pub use self::rotation::{Rotated, rotate_node_key};
use self::size_limit::Pages;
use self::writer::Writer;
use crate::contract::{
    Batch, Condition, DocumentQuery, DocumentsSize, EventPage, EventQuery, Loaded, ProcessKey,
    ProcessesQuery, Store, TurnQuery,
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
    lost: Option<LostCommits>,
    bound_bytes: u64,
    /// Reads and writes that have a thread. The rest wait without one: there is one connection for
    /// each kind, so more threads would only wait for it.
    reads: Arc<Semaphore>,
    writes: Arc<Semaphore>,
    shared: Arc<Shared>,
}

/// One works, and the next one is ready.
const THREADS_EACH: usize = 2;

/// What commits, readers and the checkpoint thread share. A missing connection was closed.
struct Shared {
    writer: Mutex<WriteState>,
    reader: Mutex<Option<Reader>>,
    checkpoints: Mutex<Option<Checkpoints>>,
    disk_speed: DiskSpeed,
    key: NodeKey,
    bell: Arc<Bell>,
    sizes: Sizes,
}

/// The sizes of the files, as far as known.
#[derive(Default)]
struct Sizes {
    database_bytes: AtomicU64,
    used_bytes: AtomicU64,
    log_bytes: AtomicU64,
    waits: AtomicBool,
}

impl Sizes {
    fn are(&self, pages: Pages) {
        self.database_bytes.store(pages.all * pages.bytes_each, Ordering::Relaxed);
        self.used_bytes.store(pages.used * pages.bytes_each, Ordering::Relaxed);
    }
}

/// Whether the store can be written.
enum WriteState {
    Ready(Box<Writer>),
    /// The disk had no space when it was opened. The next write tries again.
    Waiting(DeferredOpen),
    Closed,
}

impl SqliteStore {
    /// Opens the database in a directory, or makes it; migrates it to the present version, after a
    /// backup. Refuses one that lacks commits. Blocks on the disk.
    pub fn open(directory: &Path, retention: Retention) -> Result<Self, StoreError> {
        Self::open_as(directory, retention, DUE)
    }

    fn open_as(directory: &Path, retention: Retention, due: Due) -> Result<Self, StoreError> {
        let place =
            DatabaseLocation { directory: directory.to_owned(), ..DatabaseLocation::default() };
        let inspected = Self::inspect(&place, retention)?;
        Self::open_inspected_as(inspected, retention, due)
    }

    /// Inspects whether the database in a directory may be opened. Changes nothing there, unless a
    /// loss is accepted: then a damaged log is put aside.
    pub fn inspect(
        place: &DatabaseLocation,
        retention: Retention,
    ) -> Result<Inspected, StoreError> {
        inspect::inspect(place, retention)
    }

    /// Opens an inspected database, or makes it. Without space on the disk it can be read, and it
    /// can be written as soon as there is some.
    pub fn open_inspected(inspected: Inspected, retention: Retention) -> Result<Self, StoreError> {
        Self::open_inspected_as(inspected, retention, DUE)
    }

    fn open_inspected_as(
        inspected: Inspected,
        retention: Retention,
        due: Due,
    ) -> Result<Self, StoreError> {
        let Inspected { directory, present, lost } = inspected;
        let waiting = DeferredOpen { directory, retention, due };
        let mut clear_text_left = None;
        let (id, key, write_state, reader) = match waiting.open() {
            Ok(opened) => {
                clear_text_left = opened.clear_text_left;
                (opened.id, opened.key, WriteState::Ready(Box::new(opened.writer)), opened.reader)
            }
            Err(error) if error.code == StoreErrorCode::DiskFull && present => {
                let (id, key, reader) = waiting.read_alone()?;
                (id, key, WriteState::Waiting(waiting.clone()), reader)
            }
            Err(error) => return Err(error),
        };
        let ready = matches!(write_state, WriteState::Ready(_));
        let shared = Arc::new(Shared {
            writer: Mutex::new(write_state),
            reader: Mutex::new(Some(reader)),
            checkpoints: Mutex::default(),
            disk_speed: DiskSpeed::default(),
            key,
            bell: Arc::default(),
            sizes: Sizes::default(),
        });
        if ready {
            shared.start_checkpoints(&waiting)?;
            shared.look_at_size();
        } else {
            shared.sizes.waits.store(true, Ordering::Relaxed);
            deferred_open::keep_trying(&shared)?;
        }
        let (path, bound_bytes) = (waiting.path(), retention.database_bytes);
        let turns = || Arc::new(Semaphore::new(THREADS_EACH));
        let (reads, writes) = (turns(), turns());
        Ok(Self { id, path, retention, clear_text_left, lost, bound_bytes, reads, writes, shared })
    }

    /// Commits that were missing when it was opened.
    pub const fn lost(&self) -> Option<&LostCommits> {
        self.lost.as_ref()
    }

    /// A number that no other store has, for as long as the file exists.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Why clear text of an older version, or what was sealed with an earlier key, is still in the
    /// file, if it is: its removal failed, and is tried again at the next start.
    pub const fn clear_text_left(&self) -> Option<&StoreError> {
        self.clear_text_left.as_ref()
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut Reader) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = turn(&self.reads).await?;
        let shared = Arc::clone(&self.shared);
        on_blocking_thread(move || {
            let _turn = turn;
            read(locked(&shared.reader).as_mut().ok_or_else(StoreError::closed)?)
        })
        .await
    }

    /// Writes on another thread. If this future is dropped before the write has begun, nothing is
    /// written: otherwise it might come after the caller's next write.
    async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Shared, &mut Writer) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn = turn(&self.writes).await?;
        let wanted = CancelOnDrop(Arc::new(AtomicBool::new(true)));
        let (shared, asked) = (Arc::clone(&self.shared), Arc::clone(&wanted.0));
        let written = on_blocking_thread(move || {
            let _turn = turn;
            let mut writer = locked(&shared.writer);
            if !asked.load(Ordering::Acquire) {
                return Err(StoreError::new(StoreErrorCode::Closed, "the caller no longer waits"));
            }
            write(&shared, shared.ready(&mut writer)?)
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
        on_blocking_thread(move || {
            // A commit whose caller is gone may be in progress; it must not come later.
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

    async fn limit_events(&self, key: KeyId, most: Option<u64>) -> Result<(), StoreError> {
        self.write(move |_, writer| {
            writer.event_shares().limit(key, most);
            Ok(())
        })
        .await
    }

    async fn event_counts(&self) -> Result<BTreeMap<KeyId, u64>, StoreError> {
        self.write(|_, writer| Ok(writer.event_shares().counts())).await
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

    async fn usage(&self) -> Result<Vec<UsageRecord>, StoreError> {
        self.read(|reader| usage::all(reader.conn())).await
    }

    async fn put_usage(&self, totals: &[UsageRecord]) -> Result<(), StoreError> {
        let rows = usage::prepared(totals)?;
        self.write(move |shared, writer| {
            writer.transact(PATIENCE, |writer| usage::put(writer.conn(), &rows))?;
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
        let place = sealed_fields::of_document(&document.kind, document.tenant, &document.name);
        let sealed = self.shared.key.seal(&place, document.body.as_bytes());
        let sealed = sealed.map_err(sealed_fields::unsealed)?;
        self.write(move |shared, writer| {
            let put = |writer: &Writer| documents::put(writer.conn(), &document, &sealed);
            writer.transact(PATIENCE, put)?;
            shared.bell.ring(sealed.len());
            Ok(())
        })
        .await
    }

    async fn remove_documents(&self, query: &DocumentQuery) -> Result<u64, StoreError> {
        let query = query.clone();
        self.write(move |shared, writer| {
            let removed =
                writer.transact(PATIENCE, |writer| documents::remove(writer.conn(), &query))?;
            shared.bell.ring(0);
            Ok(removed as u64)
        })
        .await
    }

    async fn secrets(&self, owner: SecretOwner) -> Result<Vec<SecretInfo>, StoreError> {
        self.read(move |reader| secrets::all(reader.conn(), owner)).await
    }

    async fn secret(
        &self,
        owner: SecretOwner,
        name: &SecretName,
    ) -> Result<Option<SecretRecord>, StoreError> {
        let name = name.clone();
        self.read(move |reader| secrets::one(reader.conn(), reader.key(), owner, &name)).await
    }

    async fn put_secret(&self, secret: &SecretRecord) -> Result<(), StoreError> {
        let sealed = secrets::sealed(&self.shared.key, secret)?;
        let info = secret.info.clone();
        self.write(move |shared, writer| {
            let put = |writer: &Writer| secrets::put(writer.conn(), &info, &sealed);
            writer.transact(PATIENCE, put)?;
            shared.bell.ring(sealed.len());
            Ok(())
        })
        .await
    }

    async fn remove_secret(
        &self,
        owner: SecretOwner,
        name: &SecretName,
    ) -> Result<bool, StoreError> {
        let name = name.clone();
        self.write(move |shared, writer| {
            let remove = |writer: &Writer| secrets::remove(writer.conn(), owner, &name);
            let removed = writer.transact(PATIENCE, remove)?;
            shared.bell.ring(0);
            Ok(removed)
        })
        .await
    }

    async fn secret_counts(&self) -> Result<SecretCounts, StoreError> {
        self.read(|reader| secrets::counts(reader.conn())).await
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
        on_blocking_thread(move || backup::copy(&from, &to, retention, key)).await
    }

    async fn remove_from_backup(
        &self,
        copy: &Path,
        sessions: &BTreeSet<SessionId>,
    ) -> Result<(), StoreError> {
        let (copy, sessions) = (copy.to_owned(), sessions.clone());
        on_blocking_thread(move || backup::remove_sessions(&copy, &sessions)).await
    }

    async fn mark_saved_in_backup(
        &self,
        copy: &Path,
        workspaces: &BTreeSet<WorkspaceId>,
    ) -> Result<(), StoreError> {
        let (copy, workspaces) = (copy.to_owned(), workspaces.clone());
        on_blocking_thread(move || backup::note_saved(&copy, &workspaces)).await
    }

    fn condition(&self) -> Condition {
        let sizes = &self.shared.sizes;
        Condition {
            database_bytes: sizes.database_bytes.load(Ordering::Relaxed),
            used_bytes: sizes.used_bytes.load(Ordering::Relaxed),
            log_bytes: sizes.log_bytes.load(Ordering::Relaxed),
            bound_bytes: self.bound_bytes,
            lost_commits: self.lost.as_ref().map_or(0, |lost| lost.commits.unwrap_or(0)),
            waits_for_space: sizes.waits.load(Ordering::Relaxed),
        }
    }

    async fn close(&self) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        on_blocking_thread(move || shared.close()).await
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.shared.bell.end();
        // A write in progress keeps the rest until it is done.
        drop(locked(&self.shared.checkpoints).take());
    }
}

/// Signals that the caller no longer waits.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What a panicking thread was writing was rolled back.
fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod clear_text_tests;
#[cfg(test)]
mod tests;
