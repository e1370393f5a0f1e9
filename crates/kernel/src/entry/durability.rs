//! Whether the files of a sandbox are saved. It must never call files saved that a caller was
//! answered for after the last save began.

/// Whether the files of a sandbox are saved.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Durability {
    /// Files may have changed since they were last made durable.
    dirty: bool,
    /// A use that may write began, or was in progress, since the last save began.
    wrote: bool,
    /// A use ended since the last save began: its caller has its answer, and that save may not
    /// hold what it wrote.
    acknowledged: bool,
    /// Its workspace was made, so there is something to restore.
    has_files: bool,
}

impl Durability {
    /// What was written down before a restart.
    pub(crate) const fn recorded(dirty: bool, has_files: bool) -> Self {
        Self { dirty, wrote: false, acknowledged: false, has_files }
    }

    /// A use that may write began. Tells whether the files were durable until now.
    pub(crate) const fn write_began(&mut self) -> bool {
        self.wrote = true;
        !std::mem::replace(&mut self.dirty, true)
    }

    /// A use that may have written ended, and its caller has its answer.
    pub(crate) const fn write_answered(&mut self) {
        self.acknowledged = true;
    }

    /// A save began, while something goes on in the sandbox or while it is quiet.
    pub(crate) const fn save_began(&mut self, quiet: bool) {
        self.wrote = !quiet;
        self.acknowledged = false;
    }

    /// A save worked, while something of its own keeps the sandbox awake or not.
    pub(crate) const fn save_ended(&mut self, awake: bool) {
        self.dirty = self.wrote || self.acknowledged || awake;
        self.has_files = true;
    }

    /// A save worked but for some files, which can never be saved.
    pub(crate) const fn saved_in_part(&mut self) {
        self.has_files = true;
    }

    /// Whether the last save may lack what a caller was answered for.
    pub(crate) const fn lacks_answered(self) -> bool {
        self.acknowledged
    }

    /// The files count as saved, or as nothing that is to be saved.
    pub(crate) const fn settled(&mut self) {
        self.dirty = false;
    }

    /// The workspace was made, or filled.
    pub(crate) const fn files_made(&mut self) {
        self.has_files = true;
    }

    /// The files are no longer this sandbox's. Tells whether there were any.
    pub(crate) const fn files_left(&mut self) -> bool {
        std::mem::replace(&mut self.has_files, false)
    }

    /// The process was removed for good, with the workspace or without: what was not taken along
    /// is to be deleted.
    pub(crate) const fn process_removed(&mut self, with_workspace: bool) {
        self.has_files = !with_workspace;
    }

    /// Files are lost or given up. Tells whether there were any: what was never saved counts like
    /// what was.
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

    /// There is something that its session may miss.
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
    fn files_are_lost_once() {
        let mut files = Durability::default();
        files.write_began();
        assert!(files.files_lost() && !files.files_lost());
    }
}
