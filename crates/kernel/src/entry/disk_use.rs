//! What the workspace of a live sandbox takes on disk, as it was measured. A start forgets it: what
//! was measured of an earlier process must never end the next.

use crate::event::Measured;

/// What a workspace takes on disk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DiskUse {
    bytes: u64,
    /// How often in a row some of it could not be measured.
    hidden: u8,
}

impl DiskUse {
    pub(crate) const fn measured(&mut self, measured: &Measured) {
        self.bytes = measured.bytes;
        self.hidden = if measured.hidden { self.hidden.saturating_add(1) } else { 0 };
    }

    pub(crate) const fn bytes(self) -> u64 {
        self.bytes
    }

    /// How often in a row some of it could not be measured.
    pub(crate) const fn hidden(self) -> u8 {
        self.hidden
    }
}
