//! Makes new namespaces for this process.

use std::io;

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// A kind of namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    /// Users and capabilities.
    User,
    /// Mounts.
    Mount,
    /// Network.
    Network,
    /// System V objects and POSIX message queues.
    Ipc,
    /// Host name.
    Hostname,
    /// View of control groups.
    Groups,
}

/// Makes new namespaces and enters them.
pub fn make(kinds: &[Namespace]) -> io::Result<()> {
    let mut flags = UnshareFlags::empty();
    for kind in kinds {
        flags |= match kind {
            Namespace::User => UnshareFlags::NEWUSER,
            Namespace::Mount => UnshareFlags::NEWNS,
            Namespace::Network => UnshareFlags::NEWNET,
            Namespace::Ipc => UnshareFlags::NEWIPC,
            Namespace::Hostname => UnshareFlags::NEWUTS,
            Namespace::Groups => UnshareFlags::NEWCGROUP,
        };
    }
    // SAFETY: only the descriptor table would be a danger to Rust's rules when it is unshared, and
    // none of the kinds above is that.
    unsafe { unshare_unsafe(flags) }?;
    Ok(())
}
