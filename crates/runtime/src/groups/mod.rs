//! Control groups as far as a host needs them while a sandbox lives: what freezes it, and what counts
//! its kills. Whoever makes a sandbox makes its groups; here they are only used.

mod freezer;
mod kills;

pub(crate) use self::freezer::Freezer;
pub(crate) use self::kills::KillCounter;
