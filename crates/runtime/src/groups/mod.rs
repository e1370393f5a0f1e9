//! Control groups of live sandboxes: their freezers and their counters of processor time and of out-of-memory
//! kills. The
//! maker of a sandbox makes its groups; this module must only use them.

mod cpu;
mod freezer;
mod kills;

pub(crate) use self::cpu::CpuCounter;
pub(crate) use self::freezer::Freezer;
pub(crate) use self::kills::KillCounter;
