//! A flag on a thing that says that the thing stands in a list, so that it stands there once.

/// Whether a thing stands in a list.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flag(bool);

impl Flag {
    /// Tells whether it was down, so that the thing is to be put into the list.
    pub(crate) const fn raise(&mut self) -> bool {
        !std::mem::replace(&mut self.0, true)
    }

    /// Tells whether it was up, so that the thing was in the list.
    pub(crate) const fn lower(&mut self) -> bool {
        std::mem::replace(&mut self.0, false)
    }
}
