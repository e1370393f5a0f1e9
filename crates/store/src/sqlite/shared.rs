//! What commits, readers and the checkpoint thread share: the connections, each behind its lock.
//! A lock is held for one write or read, and never while something is awaited.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use super::checkpoints::{Checkpoints, Cut};
use super::deferred_open::{DeferredOpen, Opened};
use super::prepared_batch::Prepared;
use super::writer::Writer;
use super::{Shared, WriteState, locked};
use crate::error::{StoreError, StoreErrorCode};

impl Shared {
    /// Commits on this thread, if that can be done at once.
    pub(super) fn commit_here(&self, prepared: &Prepared) -> Option<Result<(), StoreError>> {
        if !self.disk_speed.trusted() {
            return None;
        }
        let mut writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let writer = match &mut *writer {
            WriteState::Ready(writer) => writer,
            // Opening takes a while.
            WriteState::Waiting(_) => return None,
            WriteState::Closed => return Some(Err(StoreError::closed())),
        };
        match self.commit(writer, prepared, Duration::ZERO) {
            Err(error) if error.code == StoreErrorCode::Locked => None,
            done => Some(done),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "how long the disk takes decides nothing else")]
    pub(super) fn commit(
        &self,
        writer: &mut Writer,
        prepared: &Prepared,
        patience: Duration,
    ) -> Result<(), StoreError> {
        let began = Instant::now();
        let done = writer.commit(prepared, patience);
        self.disk_speed.took(began.elapsed());
        if done.is_ok() {
            self.sizes.are(writer.pages());
            self.bell.ring(prepared.bytes());
        }
        done
    }

    /// The writer, if there is one, or if there is space for one by now.
    pub(super) fn ready<'p>(
        self: &Arc<Self>,
        write_state: &'p mut WriteState,
    ) -> Result<&'p mut Writer, StoreError> {
        if let WriteState::Waiting(waiting) = write_state {
            let waiting = waiting.clone();
            *write_state = WriteState::Ready(Box::new(self.open_deferred(&waiting)?));
            self.sizes.waits.store(false, Ordering::Relaxed);
        }
        match write_state {
            WriteState::Ready(writer) => Ok(writer),
            WriteState::Waiting(_) | WriteState::Closed => Err(StoreError::closed()),
        }
    }

    /// Opens everything. The lone reader must close for that, and is reopened if it fails.
    pub(super) fn open_deferred(
        self: &Arc<Self>,
        waiting: &DeferredOpen,
    ) -> Result<Writer, StoreError> {
        let mut reader = locked(&self.reader);
        drop(reader.take());
        match waiting.open().and_then(|opened| {
            self.start_checkpoints(waiting)?;
            Ok(opened)
        }) {
            Ok(Opened { writer, reader: with_it, .. }) => {
                *reader = Some(with_it);
                Ok(writer)
            }
            Err(error) => {
                *reader = Some(waiting.read_alone()?.2);
                Err(error)
            }
        }
    }

    /// Tries to open a database that waits for space. Returns whether to try again.
    pub(super) fn try_deferred_open(self: &Arc<Self>) -> bool {
        let mut write_state = locked(&self.writer);
        // The result shows in the state.
        let _ = self.ready(&mut write_state);
        matches!(&*write_state, WriteState::Waiting(_))
    }

    pub(super) fn look_at_size(&self) {
        if let WriteState::Ready(writer) = &*locked(&self.writer) {
            self.sizes.are(writer.pages());
        }
    }

    pub(super) fn start_checkpoints(
        self: &Arc<Self>,
        waiting: &DeferredOpen,
    ) -> Result<(), StoreError> {
        let started = Checkpoints::start(&waiting.path(), self, waiting.due)?;
        *locked(&self.checkpoints) = Some(started);
        if self.bell.must_end() {
            // The store was dropped meanwhile.
            drop(locked(&self.checkpoints).take());
        }
        Ok(())
    }

    pub(super) fn restart_log(&self, cut: Cut) -> Result<(), StoreError> {
        match &mut *locked(&self.writer) {
            WriteState::Ready(writer) => writer.restart_log(cut),
            WriteState::Waiting(_) | WriteState::Closed => Ok(()),
        }
    }

    pub(super) fn close(&self) -> Result<(), StoreError> {
        // The thread first, since it may be about to use the writer.
        drop(locked(&self.checkpoints).take());
        drop(locked(&self.reader).take());
        match std::mem::replace(&mut *locked(&self.writer), WriteState::Closed) {
            WriteState::Ready(writer) => writer.close(),
            WriteState::Waiting(_) | WriteState::Closed => Ok(()),
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("disk_speed", &self.disk_speed).finish_non_exhaustive()
    }
}
