//! The thread that brings the log into the file. It does so when the log has grown large, and once
//! commits have stopped for a moment: then everything is safe from a power cut too. It holds up
//! commits only to begin the log anew, when almost all of it is brought over.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use super::{Shared, fault::at, open};
use crate::error::{StoreError, StoreErrorCode};

/// How often it looks.
const LOOK: Duration = Duration::from_millis(200);

/// So many looks without a commit in between, and commits have stopped.
const QUIET_LOOKS: u32 = 5;

/// A log of this many bytes is large.
const LARGE: u64 = 32 << 20;

/// Each pass brings over what was written during the one before.
const PASSES: u32 = 3;

/// Rung by commits, and when it is over.
#[derive(Debug, Default)]
pub(super) struct Bell {
    state: Mutex<BellState>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct BellState {
    commits: u64,
    over: bool,
    resting: bool,
}

impl Bell {
    pub(super) fn ring(&self) {
        let mut state = self.state();
        state.commits += 1;
        if std::mem::take(&mut state.resting) {
            self.rung.notify_one();
        }
    }

    fn end(&self) {
        self.state().over = true;
        self.rung.notify_one();
    }

    /// The number of commits, once there are more than `seen`; nothing when it is over.
    fn rest(&self, seen: u64) -> Option<u64> {
        let mut state = self.state();
        while state.commits == seen && !state.over {
            state.resting = true;
            state = self.rung.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (!state.over).then_some(state.commits)
    }

    /// The number of commits after a while; nothing when it is over.
    fn pause(&self, time: Duration) -> Option<u64> {
        let waited = self.rung.wait_timeout_while(self.state(), time, |state| !state.over);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!state.over).then_some(state.commits)
    }

    fn state(&self) -> MutexGuard<'_, BellState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Checkpoints {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpoints {
    pub(super) fn start(path: &Path, shared: &Arc<Shared>) -> Result<Self, StoreError> {
        let conn = open::to_checkpoint(path)?;
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let work = Work { conn, log: log.into(), shared: Arc::clone(shared) };
        let thread = std::thread::Builder::new()
            .name("store-checkpoints".to_owned())
            .spawn(move || work.run())
            .map_err(|error| {
                StoreError::new(StoreErrorCode::Io, format!("start a thread: {error}"))
            })?;
        Ok(Self { shared: Arc::clone(shared), thread: Some(thread) })
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.shared.bell.end();
        if let Some(thread) = self.thread.take() {
            // A panic in there is no reason for another one here.
            let _ = thread.join();
        }
    }
}

struct Work {
    conn: Connection,
    log: PathBuf,
    shared: Arc<Shared>,
}

impl Work {
    fn run(&self) {
        // A large log may have been left by a crash.
        let mut seen = 0;
        if self.is_large() {
            self.checkpoint();
        }
        while let Some(commits) = self.shared.bell.rest(seen) {
            seen = commits;
            let mut quiet = 0;
            while quiet < QUIET_LOOKS {
                let Some(commits) = self.shared.bell.pause(LOOK) else { return };
                quiet = if commits == seen { quiet + 1 } else { 0 };
                seen = commits;
                if self.is_large() || quiet == QUIET_LOOKS {
                    self.checkpoint();
                }
            }
        }
    }

    fn is_large(&self) -> bool {
        fs::metadata(&self.log).is_ok_and(|log| log.len() >= LARGE)
    }

    /// A failure, for want of space say, leaves everything in the log, and it is tried again.
    fn checkpoint(&self) {
        for _ in 0..PASSES {
            match self.pass() {
                Ok(true) => break,
                Ok(false) => {}
                Err(_) => return,
            }
        }
        let _ = self.shared.restart_log();
    }

    /// Brings over what is in the log now, and says whether that was all of it.
    fn pass(&self) -> Result<bool, StoreError> {
        let counts = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
        let (all, done) = self
            .conn
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], counts)
            .map_err(at("make a checkpoint"))?;
        Ok(all == done)
    }
}
