//! Whether the files of a sandbox are saved. A write that was acknowledged after the last save
//! began must never count as saved.

/// Whether the files of a sandbox are saved.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Durability {
    /// Files may have changed since the last save.
    dirty: bool,
    /// A use that may write began, or was in progress, since the last save began.
    wrote: bool,
    /// A use was acknowledged since the last save began: that save may not contain what it wrote.
    acknowledged: bool,
    /// Its workspace exists, so there is something to restore.
    has_files: bool,
}

impl Durability {
    /// As recorded in the journal before a restart.
    pub(crate) const fn recorded(dirty: bool, has_files: bool) -> Self {
        Self { dirty, wrote: false, acknowledged: false, has_files }
    }

    /// A use that may write began. Returns whether the files were durable until now.
    pub(crate) const fn write_began(&mut self) -> bool {
        self.wrote = true;
        !std::mem::replace(&mut self.dirty, true)
    }

    /// A use that may have written was acknowledged to its caller.
    pub(crate) const fn write_answered(&mut self) {
        self.acknowledged = true;
    }

    /// A save began, with or without activity in the sandbox.
    pub(crate) const fn save_began(&mut self, quiet: bool) {
        self.wrote = !quiet;
        self.acknowledged = false;
    }

    /// A save worked, while something keeps the sandbox alive or not.
    pub(crate) const fn save_ended(&mut self, awake: bool) {
        self.dirty = self.wrote || self.acknowledged || awake;
        self.has_files = true;
    }

    /// A save worked except for some files that can never be saved.
    pub(crate) const fn saved_in_part(&mut self) {
        self.has_files = true;
    }

    /// Whether the last save may lack an acknowledged write.
    pub(crate) const fn lacks_answered(self) -> bool {
        self.acknowledged
    }

    /// The files count as saved, or need no save.
    pub(crate) const fn settled(&mut self) {
        self.dirty = false;
    }

    /// The workspace was made, or filled.
    pub(crate) const fn files_made(&mut self) {
        self.has_files = true;
    }

    /// The files no longer belong to this sandbox. Returns whether there were any.
    pub(crate) const fn files_left(&mut self) -> bool {
        std::mem::replace(&mut self.has_files, false)
    }

    /// The instance was removed for good, with or without its workspace: a workspace that is left
    /// must be deleted.
    pub(crate) const fn process_removed(&mut self, with_workspace: bool) {
        self.has_files = !with_workspace;
    }

    /// Files are lost or deleted. Returns whether there were any, saved or not.
    pub(crate) const fn files_lost(&mut self) -> bool {
        std::mem::replace(&mut self.dirty, false) || self.has_files
    }

    /// Files may have changed since they were last saved.
    pub(crate) const fn is_dirty(self) -> bool {
        self.dirty
    }

    /// There is a workspace to restore.
    pub(crate) const fn has_files(self) -> bool {
        self.has_files
    }

    /// There are files that its session could miss.
    pub(crate) const fn has_any(self) -> bool {
        self.dirty || self.has_files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_save_covers_what_was_answered_before_it_began() {
        let mut files = Durability::default();
        assert!(files.write_began(), "they were durable");
        files.write_answered();
        files.save_began(true);
        files.save_ended(false);
        assert!(!files.is_dirty() && files.has_files() && !files.lacks_answered());
    }

    #[test]
    fn a_save_does_not_cover_what_began_or_was_answered_after_it_began() {
        for later in [
            (|files| _ = files.write_began()) as fn(&mut Durability),
            Durability::write_answered,
            |files| files.save_began(false),
        ] {
            let mut files = Durability::default();
            files.write_began();
            files.save_began(true);
            later(&mut files);
            files.save_ended(false);
            assert!(files.is_dirty());
        }
    }

    #[test]
    fn lost_files_are_reported_once() {
        let mut files = Durability::default();
        files.write_began();
        assert!(files.files_lost() && !files.files_lost());
    }
}
