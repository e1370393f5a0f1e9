//! The files that a fork's sandbox is to start from, while they are being copied into it. They must
//! never be deleted meanwhile.

use model::{InstanceId, WorkspaceId};

/// A copy in progress, or one that a restart found unfinished.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkspaceCopy {
    pub(crate) from: WorkspaceId,
    /// The instance that gives those files out, if it takes one.
    through: Option<InstanceId>,
    /// The sandbox whose files they are may not be given up meanwhile.
    holds_source: bool,
}

impl WorkspaceCopy {
    pub(crate) const fn of(from: WorkspaceId) -> Self {
        Self { from, through: None, holds_source: false }
    }

    /// The source is kept until this is over.
    pub(crate) const fn hold_source(&mut self) {
        self.holds_source = true;
    }

    /// Tells whether the source was kept.
    pub(crate) const fn release_source(&mut self) -> bool {
        std::mem::replace(&mut self.holds_source, false)
    }

    pub(crate) const fn began(&mut self, through: Option<InstanceId>) {
        self.through = through;
    }

    /// Whether the files are still given out by what gave them out when it began.
    pub(crate) fn is_through(&self, instance: InstanceId) -> bool {
        self.through.is_none_or(|through| through == instance)
    }
}
