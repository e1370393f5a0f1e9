//! The workspace that is copied into the sandbox of a fork. It must not be deleted before the copy
//! has ended.

use model::{InstanceId, WorkspaceId};

/// A copy in progress, or one that a restart must repeat.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkspaceCopy {
    pub(crate) from: WorkspaceId,
    /// The instance whose guest sends the files, if one is needed.
    through: Option<InstanceId>,
    /// The sandbox that has the files must not be removed meanwhile.
    holds_source: bool,
}

impl WorkspaceCopy {
    pub(crate) const fn of(from: WorkspaceId) -> Self {
        Self { from, through: None, holds_source: false }
    }

    /// The source is held until the copy has ended.
    pub(crate) const fn hold_source(&mut self) {
        self.holds_source = true;
    }

    /// Returns whether the source was held.
    pub(crate) const fn release_source(&mut self) -> bool {
        std::mem::replace(&mut self.holds_source, false)
    }

    pub(crate) const fn began(&mut self, through: Option<InstanceId>) {
        self.through = through;
    }

    /// Whether this instance is still the one that the copy began with.
    pub(crate) fn is_through(&self, instance: InstanceId) -> bool {
        self.through.is_none_or(|through| through == instance)
    }
}
