//! The queue of workspaces that are being archived, of cold sandboxes and of shelved sessions, with
//! a limit on how many are archived at once. `cold_workspaces` and `shelved_sessions` decide which
//! are due.

use std::collections::VecDeque;

use crate::entry::EntryIx;
use crate::shelved_sessions::ShelvedArchives;

/// How many workspaces are archived at once: each takes a processor and the disk.
const AT_ONCE: u32 = 2;

/// Workspaces that are being archived or wait for that.
#[derive(Debug, Default)]
pub(crate) struct ArchiveQueue {
    /// How many workspaces of cold sandboxes are being archived.
    running: u32,
    /// Cold sandboxes in the queue. A session may want one meanwhile, or it may be gone.
    line: VecDeque<EntryIx>,
    /// The same for shelved sessions.
    pub(crate) shelved: ShelvedArchives,
}

impl ArchiveQueue {
    /// Whether one more may be archived now.
    pub(crate) fn has_room(&self) -> bool {
        self.in_progress() < AT_ONCE
    }

    /// How many are being archived now.
    pub(crate) fn in_progress(&self) -> u32 {
        self.running + self.shelved.in_progress()
    }

    pub(crate) const fn began(&mut self) {
        self.running += 1;
    }

    pub(crate) const fn ended(&mut self) {
        self.running -= 1;
    }

    pub(crate) fn wait(&mut self, entry: EntryIx) {
        self.line.push_back(entry);
    }

    pub(crate) fn next(&mut self) -> Option<EntryIx> {
        self.line.pop_front()
    }

    /// How many of those belong to cold sandboxes, for audits.
    pub(crate) const fn running(&self) -> u32 {
        self.running
    }
}
