//! A world for the kernel: virtual time, a simulated runtime, clients that do anything, faults of
//! every kind, crashes between any two steps. Every promise is checked on every step, every run can
//! be replayed from its random seed, and a failing run is shortened before it is shown.
//!
//! A world is deterministic: all its choices come from one source, and nothing in it reads a clock,
//! starts a thread or depends on the order of a hash map.

mod answers;
pub mod checks;
pub mod choices;
mod clients;
pub mod coverage;
mod disk;
mod interpreter;
mod ledger;
mod liveness;
mod machine_faults;
pub mod run;
mod runtime;
mod scenario;
pub mod shrink;
mod store;
mod trace;
mod world;

pub use kernel::Flaw;
pub use world::World;
