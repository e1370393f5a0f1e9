//! Dialects: the wire formats of other systems over the same engine, so that their own clients work
//! unchanged. A dialect translates; what it cannot translate it refuses in the other system's words.
//! It never decides.

pub(crate) mod ash;
pub(crate) mod blaxel;
