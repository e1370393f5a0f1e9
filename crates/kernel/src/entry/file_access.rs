//! Who can read the files of a live sandbox: the host, or only its guest, which must run for that.
//! What the traits of a runtime do not say, the kernel learns from an effect that failed. It must
//! remember that for as long as the instance lives, or each copy would fail once before it works.

use model::template::RuntimeTraits;

/// Who can read the files of a live sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileAccess {
    learned: Reach,
    /// It was frozen, and runs only because its files are read: it is frozen again as soon as
    /// possible.
    freezes_again: bool,
}

/// Who can reach the files of a live sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// The host reads and saves them.
    #[default]
    Host,
    /// They are a file system of their own: the host saves them, but only the guest reads them.
    GuestReads,
    /// They are in memory: only the guest reads and saves them.
    GuestOnly,
}

impl FileAccess {
    pub(crate) fn reach(self, traits: RuntimeTraits) -> Reach {
        if traits.workspace_survives { self.learned } else { Reach::GuestOnly }
    }

    /// An effect found that the host cannot reach them like this.
    pub(crate) fn learn(&mut self, reach: Reach) {
        self.learned = self.learned.max(reach);
    }

    /// It must be frozen again as soon as possible.
    pub(crate) const fn freeze_again(&mut self) {
        self.freezes_again = true;
    }

    /// It is frozen, or a caller uses it: it need not be frozen again.
    pub(crate) const fn freeze_again_settled(&mut self) {
        self.freezes_again = false;
    }

    pub(crate) const fn freezes_again(self) -> bool {
        self.freezes_again
    }
}

#[cfg(test)]
mod tests {
    use model::template::Recycle;

    use super::*;

    #[test]
    fn file_access_that_was_learned_counts_only_where_files_survive() {
        let traits = |workspace_survives| RuntimeTraits {
            recycle: Recycle::Wipe,
            can_freeze: true,
            workspace_survives,
            disk: None,
        };
        let mut access = FileAccess::default();
        assert_eq!(access.reach(traits(true)), Reach::Host);
        assert_eq!(access.reach(traits(false)), Reach::GuestOnly);
        access.learn(Reach::GuestReads);
        assert_eq!(access.reach(traits(true)), Reach::GuestReads);
        access.learn(Reach::Host);
        assert_eq!(access.reach(traits(true)), Reach::GuestReads, "nothing is unlearned");
    }
}
