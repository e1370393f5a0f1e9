//! Tests of whole decisions, by what they are about. Each drives the kernel through [`rig::Rig`],
//! which audits it after every event.

#![allow(clippy::wildcard_enum_match_arm, reason = "a test names the one variant it looks for")]

mod aborts;
mod acts;
mod admission;
mod ash;
mod ash_sessions;
mod checkout;
mod checkout_failure;
mod cold;
mod disk;
mod events;
mod eviction;
mod fork_sources;
mod forks;
mod gone;
mod handouts;
mod instance_over;
mod leaving;
mod line_model;
mod losses;
mod moves;
mod over;
mod pool_ends;
mod pool_health;
mod pools;
mod probes;
mod processes;
mod recycle;
mod rest;
mod restarts;
mod retention;
mod rig;
mod saves;
mod session_pages;
mod session_uses;
mod sessions;
mod shelves;
mod shutdowns;
mod situations;
mod smoke;
mod speakers;
mod states;
mod stillness;
mod storm;
mod tenants;
mod transitions;
mod traps;
mod ttl;
mod turns;
mod users;
mod void;
mod wakefulness;
