//! The network of a sandbox with a policy: made from inside of its namespace, by visits that end
//! before anything else is done. Programs have no part in it: the namespace belongs to the
//! launcher.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use guest_protocol::launcher::{LauncherConfig, NetworkMode};
use guest_protocol::network::{
    AddressRule, NetworkFeature, NetworkRequest, NetworkRules, RefusedAddress,
};
use jail::network::{self, Armed, Namespace, Rules, Sockets};
use jail::sys::clone::exit_now;
use jail::sys::loopback;
use jail::sys::namespaces;
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::isolation::HostAccess;
use super::prefork_pool::now;
use super::workspace_mount::namespace_of;

/// What came of a request.
pub(super) enum Done {
    Nothing,
    /// The socket for connections and, where the kernel has tables, that for names.
    Armed(Vec<OwnedFd>),
    Refused(Vec<RefusedAddress>),
}

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
    request: NetworkRequest,
) -> (&'static str, io::Result<Done>) {
    let mut inside = Inside { host_access, retired, pid };
    match (request, host_access.network) {
        (_, NetworkFeature::None) => ("reach the network", Err(io::ErrorKind::Unsupported.into())),
        (NetworkRequest::Arm(rules), NetworkFeature::Transparent) => {
            ("arm the network", inside.arm(&rules).map(Done::Armed))
        }
        (NetworkRequest::Arm(_), NetworkFeature::ProxyOnly) => {
            let made = inside.visit(network::proxy_listener).flatten();
            ("listen for the proxy", made.map(|listener| Done::Armed(vec![listener])))
        }
        (NetworkRequest::Change(rules), NetworkFeature::Transparent) => {
            let changed = inside.with(|namespace| namespace.change(&rules_of(&rules)));
            ("change the network", changed.map(|()| Done::Nothing))
        }
        (NetworkRequest::Refused, NetworkFeature::Transparent) => {
            let found = inside.open().and_then(|namespace| namespace.refused());
            let plain = |(address, port): (Ipv4Addr, u16)| (address.octets(), port);
            let found = found.map(|all| Done::Refused(all.into_iter().map(plain).collect()));
            ("read refused addresses", found)
        }
        (NetworkRequest::Disarm, NetworkFeature::Transparent) => {
            let gone = inside.with(Namespace::disarm);
            ("disarm the network", gone.map(|()| Done::Nothing))
        }
        // The kernel knows nothing of policies.
        (NetworkRequest::Change(_) | NetworkRequest::Disarm, NetworkFeature::ProxyOnly) => {
            ("change the network", Ok(Done::Nothing))
        }
        (NetworkRequest::Refused, NetworkFeature::ProxyOnly) => {
            ("read refused addresses", Ok(Done::Refused(Vec::new())))
        }
    }
}

/// Visits to the network namespace of a process.
struct Inside<'a> {
    host_access: &'a HostAccess,
    retired: &'a mut Retired,
    pid: Pid,
}

impl Inside<'_> {
    fn visit<T>(&self, act: impl FnOnce() -> T) -> io::Result<T> {
        let there = namespace_of(self.pid, "net").map_err(|error| explained(self.pid, error))?;
        move_into_link_name_space(there.as_fd(), Some(LinkNameSpaceType::Network))?;
        let result = act();
        let home = self.host_access.home_network.as_fd();
        if move_into_link_name_space(home, Some(LinkNameSpaceType::Network)).is_err() {
            // If we cannot come back, nothing is safe any more: end, which ends every sandbox.
            exit_now(1);
        }
        Ok(result)
    }

    fn open(&self) -> io::Result<Namespace> {
        self.visit(Namespace::open).flatten()
    }

    /// Changes something, and leaves the namespace open for a while.
    fn with<T>(&mut self, change: impl FnOnce(&Namespace) -> io::Result<T>) -> io::Result<T> {
        let namespace = self.open()?;
        let changed = change(&namespace);
        self.retired.keep(namespace);
        changed
    }

    fn arm(&mut self, rules: &NetworkRules) -> io::Result<Vec<OwnedFd>> {
        let made = self.visit(|| Ok::<_, io::Error>((Sockets::make()?, Namespace::open()?)));
        let (sockets, namespace) = made.flatten()?;
        let Sockets { connections, names } = sockets;
        let (armed, is_first) = match namespace.arm(&rules_of(rules)) {
            Ok(was) => (Ok(vec![connections, names]), was == Armed::First),
            Err(error) => {
                // Half of it must not stay. If this fails too, the sockets are closed all the same,
                // and without them nothing gets out.
                let _ = namespace.disarm();
                (Err(error), false)
            }
        };
        if !is_first {
            self.retired.keep(namespace);
        }
        armed
    }
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

fn rules_of(rules: &NetworkRules) -> Rules {
    match rules {
        NetworkRules::Open => Rules::Open,
        NetworkRules::Addresses(addresses) => {
            Rules::Addresses(addresses.iter().map(rule_of).collect())
        }
    }
}

fn rule_of(rule: &AddressRule) -> network::AddressRule {
    network::AddressRule {
        first: Ipv4Addr::from(rule.first),
        bits: rule.bits.min(32),
        ports: (rule.from_port, rule.to_port),
    }
}

/// Whether the kernel has all that a policy needs, tried in a network namespace that is thrown
/// away: the caller makes another one afterwards.
pub(super) fn try_out(config: &LauncherConfig) -> NetworkFeature {
    let works = || {
        namespaces::make(&[namespaces::Namespace::Network])?;
        loopback::bring_up()?;
        let _sockets = Sockets::make()?;
        Namespace::open()?.arm(&Rules::Open).map(drop)
    };
    match config.network {
        // All sandboxes have the same one.
        NetworkMode::Shared => NetworkFeature::None,
        NetworkMode::Spare | NetworkMode::Fresh if config.tables && works().is_ok() => {
            NetworkFeature::Transparent
        }
        NetworkMode::Spare | NetworkMode::Fresh => NetworkFeature::ProxyOnly,
    }
}
