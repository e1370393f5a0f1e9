//! The thread that checkpoints the write-ahead log into the file: when the log is large or old, and
//! once commits have paused for a moment, so that everything survives a power cut too. The file is
//! never far behind. Commits wait only for the restart of the log, when almost all of it is
//! checkpointed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::{Shared, open};
use crate::error::{StoreError, StoreErrorCode};

/// How often the thread looks.
const LOOK: Duration = Duration::from_millis(200);

/// After so many looks without a commit, commits have paused.
const QUIET_LOOKS: u32 = 5;

/// When a log is checkpointed while commits go on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    /// It is large: so many bytes.
    pub(super) large_bytes: u64,
    /// It is old: so many looks after it began.
    pub(super) old_looks: u32,
}

/// How far the file may be behind: 8 MB, or five seconds of commits.
pub(super) const DUE: Due = Due { large_bytes: 8 << 20, old_looks: 25 };

/// The second pass checkpoints what was written during the first, so that commits wait for little.
const PASSES: u32 = 2;

/// What happens to a checkpointed log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// It is overwritten from its beginning, which holds up no commit.
    WriteOver,
    /// Its space is freed, which takes a moment.
    GiveBack,
}

/// Rung by commits, and when the thread must end.
#[derive(Debug, Default)]
pub(super) struct Bell {
    state: Mutex<BellState>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct BellState {
    written: Written,
    over: bool,
    resting: bool,
}

/// What was committed so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Written {
    commits: u64,
    /// The text alone: the log is larger.
    bytes: u64,
}

impl Bell {
    /// A commit was made, of so much text.
    pub(super) fn ring(&self, bytes: usize) {
        let mut state = self.state();
        state.written.commits += 1;
        state.written.bytes += bytes as u64;
        if std::mem::take(&mut state.resting) {
            self.rung.notify_one();
        }
    }

    /// The thread must end, and none must begin.
    pub(super) fn end(&self) {
        self.state().over = true;
        self.rung.notify_one();
    }

    /// Whether the thread must end.
    pub(super) fn must_end(&self) -> bool {
        self.state().over
    }

    /// What was written, once that is more than `seen`; none when the thread must end.
    fn wait(&self, seen: Written) -> Option<Written> {
        let mut state = self.state();
        while state.written == seen && !state.over {
            state.resting = true;
            state = self.rung.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (!state.over).then_some(state.written)
    }

    /// What was written after a while; none when the thread must end.
    fn pause(&self, time: Duration) -> Option<Written> {
        let waited = self.rung.wait_timeout_while(self.state(), time, |state| !state.over);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!state.over).then_some(state.written)
    }

    fn state(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Checkpoints {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    pub(super) fn start(path: &Path, shared: &Arc<Shared>, due: Due) -> Result<Self, StoreError> {
        let conn = open::to_checkpoint(path)?;
        let work =
            CheckpointTask { conn, log: open::log_of(path), shared: Arc::clone(shared), due };
        let thread = std::thread::Builder::new()
            .name("store-checkpoints".to_owned())
            .spawn(move || work.run())
            .map_err(|error| {
                StoreError::new(StoreErrorCode::Io, format!("start a thread: {error}"))
            })?;
        Ok(Self { bell: Arc::clone(&shared.bell), thread: Some(thread) })
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.bell.end();
        if let Some(thread) = self.thread.take() {
            // A panic in the thread is no reason for another one here.
            let _ = thread.join();
        }
    }
}

struct CheckpointTask {
    conn: Connection,
    log: PathBuf,
    shared: Arc<Shared>,
    due: Due,
}

impl CheckpointTask {
    fn run(&self) {
        let mut seen = Written::default();
        let mut brought_over = 0;
        while let Some(written) = self.shared.bell.wait(seen) {
            seen = written;
            let (mut quiet, mut looks) = (0, 0);
            while quiet < QUIET_LOOKS {
                let Some(written) = self.shared.bell.pause(LOOK) else { return };
                quiet = if written == seen { quiet + 1 } else { 0 };
                seen = written;
                looks += 1;
                // An overwritten log file keeps its size: after some text more of it is in use
                // again. The log has up to twenty times as much as the text.
                let worth = seen.bytes - brought_over >= self.due.large_bytes / 16;
                let cut = if quiet == QUIET_LOOKS {
                    Cut::GiveBack
                } else if looks >= self.due.old_looks || (self.is_large() && worth) {
                    Cut::WriteOver
                } else {
                    continue;
                };
                (brought_over, looks) = (seen.bytes, 0);
                self.checkpoint(cut);
            }
        }
    }

    fn is_large(&self) -> bool {
        self.log_bytes() >= self.due.large_bytes
    }

    fn log_bytes(&self) -> u64 {
        let bytes = fs::metadata(&self.log).map_or(0, |log| log.len());
        self.shared.sizes.log_bytes.store(bytes, Ordering::Relaxed);
        bytes
    }

    /// A failure, for want of space for example, leaves everything in the log, and the next look
    /// tries again.
    fn checkpoint(&self, cut: Cut) {
        if (0..PASSES).try_for_each(|_| self.pass()).is_ok() {
            let _ = self.shared.restart_log(cut);
        }
        self.log_bytes();
    }

    /// Checkpoints what is in the log now, while commits go on.
    fn pass(&self) -> rusqlite::Result<()> {
        self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
    }
}
