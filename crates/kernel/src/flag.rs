//! A flag that says whether an item is in a list, so that the list holds it once.

/// Whether an item is in a list.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flag(bool);

impl Flag {
    /// Returns whether it was down: then the item must be added to the list.
    pub(crate) const fn raise(&mut self) -> bool {
        !std::mem::replace(&mut self.0, true)
    }

    /// Returns whether it was up: then the item was in the list.
    pub(crate) const fn lower(&mut self) -> bool {
        std::mem::replace(&mut self.0, false)
    }
}
