//! How the files of a cold sandbox are stored: in their workspace or in an archive, and how many
//! bytes they take. `cold_workspaces` and `retention` decide when files are archived or deleted;
//! nothing here deletes files.

use model::Mono;

/// How the files of a cold sandbox are stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColdFiles {
    /// They are in an archive.
    archived: bool,
    /// Their size when last measured.
    bytes: Option<u64>,
    /// They are not archived before this.
    not_before: Mono,
    /// They are queued for archiving.
    in_line: bool,
}

impl ColdFiles {
    /// Files that were not measured yet.
    pub(crate) const fn new(archived: bool) -> Self {
        Self { archived, bytes: None, not_before: Mono(0), in_line: false }
    }

    /// They were archived and take less space now.
    pub(crate) const fn archived(&mut self) {
        self.archived = true;
        self.bytes = None;
    }

    /// Archiving failed. They stay in their workspace until the next attempt.
    pub(crate) const fn archive_failed(&mut self, not_before: Mono) {
        self.not_before = not_before;
    }

    /// A launched sandbox uses them: they are in their workspace and may grow.
    pub(crate) const fn in_use(&mut self) {
        self.archived = false;
        self.bytes = None;
    }

    /// They came from a shelved session, archived or not as they were there.
    pub(crate) const fn unshelved(&mut self, archived: bool, bytes: Option<u64>) {
        self.archived = archived;
        self.bytes = bytes;
    }

    pub(crate) const fn measured(&mut self, bytes: u64) {
        self.bytes = Some(bytes);
    }

    pub(crate) const fn joined_line(&mut self) {
        self.in_line = true;
    }

    /// Returns whether they were queued.
    pub(crate) const fn left_line(&mut self) -> bool {
        std::mem::replace(&mut self.in_line, false)
    }

    pub(crate) const fn is_archived(&self) -> bool {
        self.archived
    }

    /// Whether they can be archived: they are not archived and not queued.
    pub(crate) const fn may_be_archived(&self) -> bool {
        !self.archived && !self.in_line
    }

    pub(crate) const fn not_before(&self) -> Mono {
        self.not_before
    }

    /// Their size when last measured; none if not known.
    pub(crate) const fn bytes(&self) -> Option<u64> {
        self.bytes
    }
}
