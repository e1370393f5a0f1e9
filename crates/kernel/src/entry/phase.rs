//! What a sandbox is doing: its phase, and whether its processes run. Where a freeze went wrong it
//! is never assumed that they do.

use crate::request::RequestIx;

/// What a sandbox is doing, in more detail than its state shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No process.
    Cold,
    /// Being started.
    Launching,
    /// In its pool, ready to be handed out.
    Idle,
    /// Being bound to a lease (with the request that waits for it) or a session.
    Claiming(Option<RequestIx>),
    /// A lease's or a session's.
    InUse,
    /// Being wiped after a use.
    Wiping,
    /// Being proven clean after a wipe.
    Proving,
    /// Being removed, until that is confirmed.
    Killing,
}

/// Whether its processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frozen {
    No,
    Yes,
    /// A freeze went wrong: it must be thawed before use, to be sure.
    Unsure,
}
