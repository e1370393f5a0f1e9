//! The network of a sandbox with a policy: made from inside of its namespace, by visits that end
//! before anything else is done.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use guest_protocol::launcher::{LauncherConfig, NetworkMode};
use guest_protocol::network::{NetworkFeature, NetworkRequest};
use jail::network::Namespace;
use jail::sys::clone::exit_now;
use jail::sys::namespaces;
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::isolation::HostAccess;
use super::prefork_pool::now;
use super::workspace_mount::namespace_of;
use crate::network::{self, Done, Needed};

/// How long a namespace whose rules changed stays open. The kernel has removed what was replaced by
/// then, except on a very busy machine.
const REMOVAL: Duration = Duration::from_millis(50);

/// The most namespaces that stay open.
const RETIRED_AT_MOST: usize = 256;

/// Namespaces whose rules have just changed. To close them at once takes milliseconds, and there is
/// a host that waits for its answer, and launches that wait for this thread.
#[derive(Default)]
pub(super) struct Retired {
    since: VecDeque<(Duration, Namespace)>,
}

impl Retired {
    fn keep(&mut self, namespace: Namespace) {
        if self.since.len() >= RETIRED_AT_MOST {
            self.since.pop_front();
        }
        self.since.push_back((now(), namespace));
    }

    /// How long until there is something to close.
    pub(super) fn pause(&self) -> Option<Duration> {
        self.since.front().map(|(since, _)| REMOVAL.saturating_sub(now().saturating_sub(*since)))
    }

    /// Closes those that are old enough.
    pub(super) fn close_old(&mut self) {
        while self.pause().is_some_and(|pause| pause.is_zero()) {
            self.since.pop_front();
        }
    }
}

/// Does what is asked in the sandbox of this process; gives the name of the step, too.
pub(super) fn handle(
    host_access: &HostAccess,
    retired: &mut Retired,
    pid: Pid,
    request: &NetworkRequest,
) -> (&'static str, io::Result<Done>) {
    let needed = match host_access.network {
        // No namespace is visited where nothing can be done.
        NetworkFeature::None => Needed::open(NetworkFeature::None, request),
        feature @ (NetworkFeature::Transparent | NetworkFeature::ProxyOnly) => {
            visit(host_access, pid, || Needed::open(feature, request)).flatten()
        }
    };
    let done = needed.and_then(|needed| {
        let (done, changed) = needed.carry_out(request);
        if let Some(namespace) = changed {
            retired.keep(namespace);
        }
        done
    });
    (network::step(request), done)
}

/// Acts in the network namespace of a process.
fn visit<T>(host_access: &HostAccess, pid: Pid, act: impl FnOnce() -> T) -> io::Result<T> {
    let there = namespace_of(pid, "net").map_err(|error| explained(pid, error))?;
    move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::Network))?;
    let result = act();
    let home = host_access.home_network.as_fd();
    if move_into_link_name_space(home, Some(LinkNameSpaceType::Network)).is_err() {
        // If we cannot come back, nothing is safe any more: end, which ends every sandbox.
        exit_now(1);
    }
    Ok(result)
}

/// Why a namespace could not be opened: that of a process that is ending is gone, whatever the
/// kernel says instead. Without root it says that it is forbidden.
fn explained(pid: Pid, error: io::Error) -> io::Error {
    let pages = std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero()));
    // A process gives its memory back first.
    if pages.is_ok_and(|pages| !pages.starts_with("0 ")) {
        return error;
    }
    io::ErrorKind::NotFound.into()
}

/// Whether the kernel has all that a policy needs, tried in a network namespace that is thrown
/// away: the caller makes another one afterwards.
pub(super) fn try_out(config: &LauncherConfig) -> NetworkFeature {
    let tried = || match namespaces::make(&[namespaces::Namespace::Network]) {
        Ok(()) => network::try_out_here(),
        Err(_) => NetworkFeature::ProxyOnly,
    };
    match config.network {
        // All sandboxes have the same one.
        NetworkMode::Shared => NetworkFeature::None,
        NetworkMode::Spare | NetworkMode::Fresh if config.tables => tried(),
        NetworkMode::Spare | NetworkMode::Fresh => NetworkFeature::ProxyOnly,
    }
}
