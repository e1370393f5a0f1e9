//! How the files of a cold sandbox are kept: in their workspace or in an archive, and how much
//! they take. What is due when is decided in `cold_workspaces` and `retention`; nothing here
//! deletes files.

use model::Mono;

/// How the files of a cold sandbox are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ColdFiles {
    /// They are in an archive.
    archived: bool,
    /// What they took when they were measured.
    bytes: Option<u64>,
    /// They are not put into an archive before this.
    not_before: Mono,
    /// They stand in line to be put into one.
    in_line: bool,
}

impl ColdFiles {
    /// Files of which nothing is measured.
    pub(crate) const fn new(archived: bool) -> Self {
        Self { archived, bytes: None, not_before: Mono(0), in_line: false }
    }

    /// They were put into an archive, where they take less room.
    pub(crate) const fn archived(&mut self) {
        self.archived = true;
        self.bytes = None;
    }

    /// They could not be put into an archive. They stay where they are, until the next attempt.
    pub(crate) const fn archive_failed(&mut self, not_before: Mono) {
        self.not_before = not_before;
    }

    /// A process has them now: they are in their workspace, and grow.
    pub(crate) const fn in_use(&mut self) {
        self.archived = false;
        self.bytes = None;
    }

    /// They came from the shelf of a session, as they were kept there.
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

    /// Tells whether they stood in line.
    pub(crate) const fn left_line(&mut self) -> bool {
        std::mem::replace(&mut self.in_line, false)
    }

    pub(crate) const fn is_archived(&self) -> bool {
        self.archived
    }

    /// Whether they could be put into an archive: they are in none, and stand in no line for it.
    pub(crate) const fn may_be_archived(&self) -> bool {
        !self.archived && !self.in_line
    }

    pub(crate) const fn not_before(&self) -> Mono {
        self.not_before
    }

    /// What they took when they were measured; nothing if that is not known.
    pub(crate) const fn bytes(&self) -> Option<u64> {
        self.bytes
    }
}
