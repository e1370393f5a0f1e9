//! Gives up every power of the process, in the order in which that is possible. What it needs of files
//! is read between the first part and the second.

use std::io;

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, Signal, geteuid, getrlimit, set_dumpable_behavior,
    set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::boundary::{Authority, Terminator, UpstreamRoots};
use crate::control::Beginning;

/// Descriptors that are not for connections: sockets of sandboxes, pipes, questions for names.
const KEPT_BACK: u64 = 2 * crate::supervisor::SANDBOXES_OF_A_PROCESS as u64 + 1024;

/// What ends TLS for hosts of boundary secrets, in the process of a key. Reads the authorities of the
/// system.
pub(super) fn boundary(beginning: &Beginning) -> io::Result<Option<Terminator>> {
    let Some(carried) = &beginning.authority else { return Ok(None) };
    let authority: Authority = postcard::from_bytes(carried).map_err(io::Error::other)?;
    let roots = UpstreamRoots::load(beginning.upstream_ca_pem.as_deref())?;
    Ok(Some(Terminator::new(authority, roots)))
}

/// Becomes a user without powers. Returns how many descriptors there may be.
pub(super) fn become_nothing(user: u32) -> io::Result<u64> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised)?;
    if geteuid().is_root() {
        set_thread_groups(&[])?;
        let group = Gid::from_raw(user);
        set_thread_res_gid(group, group, group)?;
        let user = Uid::from_raw(user);
        set_thread_res_uid(user, user, user)?;
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    // After the change of users, which undoes both.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_parent_process_death_signal(Some(Signal::KILL))?;
    set_no_new_privs(true)?;
    Ok(limit.maximum.unwrap_or(1 << 20))
}

/// How many connections fit: each has two descriptors.
pub(super) fn places(descriptors: u64) -> usize {
    let connections = descriptors.saturating_sub(KEPT_BACK).max(256) / 2;
    usize::try_from(connections).unwrap_or(usize::MAX).min(100_000)
}

/// From here on, only what serving needs.
pub(super) fn load_filter() -> io::Result<()> {
    let policy = jail::seccomp::Policy::egress();
    let program = jail::seccomp::compile(&policy).map_err(io::Error::other)?;
    jail::sys::filter::load(program.instructions())
}
