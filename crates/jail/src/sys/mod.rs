//! System calls that the safe crates do not offer. All `unsafe` of the project is beneath this
//! module, each block with its reason.
#![expect(unsafe_code, reason = "the one place for it")]

pub mod btrfs;
pub mod clone;
pub mod descriptors;
pub mod exec;
pub mod filter;
pub mod fork;
pub mod ids;
pub mod ipc;
pub mod keyring;
pub mod lease;
pub mod loopback;
pub mod loops;
pub mod memory;
pub mod mount;
pub mod namespaces;
mod no_leases;
pub mod probe;
pub mod project;
pub mod reap;
pub mod signals;
pub mod spawn;
pub mod transparent;
