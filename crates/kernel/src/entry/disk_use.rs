//! The last measured disk use of a live sandbox's workspace. A launch resets it: a measurement of
//! an earlier instance must never end the next one.

use crate::event::Measured;

/// The disk use of a workspace.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DiskUse {
    bytes: u64,
    /// How many times in a row a part of it could not be measured.
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

    /// How many times in a row a part of it could not be measured.
    pub(crate) const fn hidden(self) -> u8 {
        self.hidden
    }
}
