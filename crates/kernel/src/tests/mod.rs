//! Tests of whole decisions, by subject. Each drives the kernel through [`rig::Rig`], which audits
//! it after every event.

#![allow(clippy::wildcard_enum_match_arm, reason = "a test names the one variant it looks for")]

mod aborts;
mod admission;
mod ash;
mod ash_sessions;
mod checkout;
mod checkout_failure;
mod cold_workspaces;
mod disk_limits;
mod ended_sessions;
mod events;
mod eviction;
mod explanations;
mod fork_sources;
mod forks;
mod freeze_and_sweep;
mod handouts;
mod harness_access;
mod instance_end;
mod keep_alive;
mod open_uses;
mod pool_closing;
mod pool_health;
mod pool_queue_model;
mod pools;
mod probes;
mod processes;
mod quiesce;
mod recovery;
mod recycle;
mod retention;
mod rig;
mod rig_steps;
mod saves;
mod session_pages;
mod session_steps;
mod session_uses;
mod sessions;
mod sharing;
mod shelved_sessions;
mod shutdowns;
mod situations;
mod smoke;
mod state_loss;
mod states;
mod stop_and_end;
mod storm;
mod tenants;
mod tombstones;
mod transitions;
mod traps;
mod ttl;
mod turns;
mod voided_evictions;
