//! The keeper's own namespaces, and the way back to them. A step in other namespaces is done
//! between two calls of the kernel. A keeper that cannot come back must end at once: the next path
//! that it opened would lead into a container.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use guest_protocol::keeper::KeeperRefusalCode;
use jail::sys::clone::exit_now;
use jail::sys::namespaces::{Namespace, make};
use rustix::fs::{CWD, Mode, OFlags, fstatfs, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, ThreadNameSpaceType, capabilities, move_into_link_name_space,
};

use super::process::Process;
use super::{Named as _, Refusal, refusal};

/// The magic number of a file system of the kind `proc`.
const PROC_MAGIC: i64 = 0x9fa0;

/// Namespaces that a container must have for itself.
pub(super) const OWN: [&str; 4] = ["mnt", "pid", "ipc", "net"];

/// The keeper's own namespaces.
pub(super) struct OwnNamespaces {
    /// Its `/proc`, whatever the root is at the moment.
    pub proc: OwnedFd,
    mounts: OwnedFd,
    ipc: OwnedFd,
    network: OwnedFd,
    /// Its namespaces by name, in the order of [`OWN`].
    pub names: [String; OWN.len()],
}

impl OwnNamespaces {
    pub(super) fn open() -> Result<Self, Refusal> {
        let powerless = |why: &str| refusal(KeeperRefusalCode::Powerless, why, 0);
        let sets = capabilities(None).named("read our capabilities")?;
        let needed = CapabilitySet::SYS_ADMIN
            | CapabilitySet::SYS_CHROOT
            | CapabilitySet::SYS_PTRACE
            | CapabilitySet::NET_ADMIN;
        if !sets.effective.contains(needed) {
            return Err(powerless("needs root with CAP_SYS_ADMIN and CAP_SYS_PTRACE"));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = openat(CWD, "/proc", flags, Mode::empty()).named("open /proc")?;
        let own = readlinkat(&proc, "self", Vec::new()).named("inspect /proc")?;
        let is_ours = own.to_bytes() == getpid().as_raw_nonzero().to_string().as_bytes();
        if fstatfs(&proc).named("inspect /proc")?.f_type != PROC_MAGIC || !is_ours {
            return Err(powerless("/proc does not show the processes of this machine"));
        }
        let names = names(&proc, "self")?;
        let namespace = |kind: &str| {
            let path = format!("self/ns/{kind}");
            openat(&proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .named("open our namespaces")
        };
        let (mounts, ipc, network) = (namespace("mnt")?, namespace("ipc")?, namespace("net")?);
        Ok(Self { proc, mounts, ipc, network, names })
    }

    /// Calls `act` in some namespaces of a process.
    pub(super) fn within<T>(
        &self,
        process: &Process,
        kinds: ThreadNameSpaceType,
        act: impl FnOnce() -> T,
    ) -> Result<T, Refusal> {
        let entered = rustix::thread::move_into_thread_name_spaces(process.handle(), kinds);
        if entered == Err(Errno::SRCH) {
            return Err(refusal(
                KeeperRefusalCode::Gone,
                "the first process of the container has ended",
                0,
            ));
        }
        entered.named("enter the namespaces of a container")?;
        let away = Entered { namespaces: self, kinds };
        let done = act();
        drop(away);
        Ok(done)
    }

    /// Calls `act` in a new network namespace, which is gone afterwards.
    pub(super) fn within_new_network<T>(&self, act: impl FnOnce() -> T) -> Result<T, Refusal> {
        make(&[Namespace::Network]).named("make a network namespace")?;
        let away = Entered { namespaces: self, kinds: ThreadNameSpaceType::NETWORK };
        let done = act();
        drop(away);
        Ok(done)
    }
}

/// Guard while the keeper is in other namespaces. When it is dropped, in whatever way, the keeper
/// is back in its own.
struct Entered<'a> {
    namespaces: &'a OwnNamespaces,
    kinds: ThreadNameSpaceType,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let back = |kind, namespace: BorrowedFd<'_>, link| {
            if self.kinds.contains(kind)
                && move_into_link_name_space(namespace, Some(link)).is_err()
            {
                exit_now(1);
            }
        };
        let OwnNamespaces { mounts, ipc, network, .. } = self.namespaces;
        back(ThreadNameSpaceType::MOUNT, mounts.as_fd(), LinkNameSpaceType::Mount);
        let kind = ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION;
        back(kind, ipc.as_fd(), LinkNameSpaceType::InterProcessCommunication);
        back(ThreadNameSpaceType::NETWORK, network.as_fd(), LinkNameSpaceType::Network);
    }
}

/// The names of a process' namespaces.
pub(super) fn names(proc: &OwnedFd, process: &str) -> Result<[String; OWN.len()], Refusal> {
    let mut names = [const { String::new() }; OWN.len()];
    for (name, kind) in names.iter_mut().zip(OWN) {
        let path = format!("{process}/ns/{kind}");
        let found = readlinkat(proc, path, Vec::new()).named("read namespaces")?;
        *name = found.to_string_lossy().into_owned();
    }
    Ok(names)
}
