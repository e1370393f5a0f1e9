//! Workspaces on their way into archives, of cold sandboxes and of sessions without one, and those
//! that wait because enough are on their way. Which are due is decided in `cold_workspaces` and `shelved_sessions`.

use std::collections::VecDeque;

use crate::entry::EntryIx;
use crate::shelved_sessions::ShelvedArchives;

/// How many workspaces are put into archives at once: each takes a processor and the disk.
const AT_ONCE: u32 = 2;

/// Workspaces on their way into archives.
#[derive(Debug, Default)]
pub(crate) struct ArchiveQueue {
    /// How many workspaces of cold sandboxes are being put into archives.
    running: u32,
    /// Cold sandboxes that wait for that. They may have been wanted meanwhile, or be gone.
    line: VecDeque<EntryIx>,
    /// The same for sessions without a sandbox.
    pub(crate) shelved: ShelvedArchives,
}

impl ArchiveQueue {
    /// Whether one more may be put into an archive.
    pub(crate) fn has_room(&self) -> bool {
        self.in_progress() < AT_ONCE
    }

    /// How many are being put into archives now.
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

    /// How many of them are of cold sandboxes, for audits.
    pub(crate) const fn running(&self) -> u32 {
        self.running
    }
}
