//! The network of a sandbox with a policy, as the launcher and the keeper make it: what a request
//! needs is opened in a short visit to the namespace, and all else is done after the visit. Programs
//! have no part in it: the namespace belongs to those who call this.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use guest_protocol::network::{
    AddressRule, NetworkFeature, NetworkRequest, NetworkRules, RefusedAddress,
};
use jail::network::{self, Armed, Namespace, Rules, Sockets};
use jail::sys::loopback;

/// What a request needs of a namespace.
pub(crate) enum Needed {
    /// Nothing: the kernel knows nothing of policies.
    Nothing,
    /// A listener for the proxy, where the kernel has no tables.
    Listener(OwnedFd),
    /// The namespace itself.
    Namespace(Namespace),
    /// The namespace, and the sockets that were made in it.
    Sockets(Sockets, Namespace),
}

/// What came of a request.
pub(crate) enum Done {
    Nothing,
    /// The socket for connections and, where the kernel has tables, that for names.
    Armed(Vec<OwnedFd>),
    Refused(Vec<RefusedAddress>),
}

/// What a request does, in words.
pub(crate) const fn step(request: &NetworkRequest) -> &'static str {
    match request {
        NetworkRequest::Arm(_) => "arm the network",
        NetworkRequest::Change(_) => "change the network",
        NetworkRequest::Refused => "read refused addresses",
        NetworkRequest::Disarm => "disarm the network",
    }
}

impl Needed {
    /// Opens it in the namespace of the calling thread.
    pub(crate) fn open(feature: NetworkFeature, request: &NetworkRequest) -> io::Result<Self> {
        match (feature, request) {
            (NetworkFeature::None, _) => Err(io::ErrorKind::Unsupported.into()),
            (NetworkFeature::Transparent, NetworkRequest::Arm(_)) => {
                Ok(Self::Sockets(Sockets::make()?, Namespace::open()?))
            }
            (NetworkFeature::ProxyOnly, NetworkRequest::Arm(_)) => {
                Ok(Self::Listener(network::proxy_listener()?))
            }
            (
                NetworkFeature::Transparent,
                NetworkRequest::Change(_) | NetworkRequest::Refused | NetworkRequest::Disarm,
            ) => Ok(Self::Namespace(Namespace::open()?)),
            (
                NetworkFeature::ProxyOnly,
                NetworkRequest::Change(_) | NetworkRequest::Refused | NetworkRequest::Disarm,
            ) => Ok(Self::Nothing),
        }
    }

    /// Does what is asked, wherever the calling thread is. Gives back the namespace if its rules
    /// changed: closing it at once may take milliseconds.
    pub(crate) fn carry_out(
        self,
        request: &NetworkRequest,
    ) -> (io::Result<Done>, Option<Namespace>) {
        match (self, request) {
            (Self::Sockets(sockets, namespace), NetworkRequest::Arm(rules)) => {
                arm(sockets, namespace, rules)
            }
            (Self::Listener(listener), NetworkRequest::Arm(_)) => {
                (Ok(Done::Armed(vec![listener])), None)
            }
            (Self::Namespace(namespace), NetworkRequest::Change(rules)) => {
                let changed = namespace.change(&rules_of(rules));
                (changed.map(|()| Done::Nothing), Some(namespace))
            }
            (Self::Namespace(namespace), NetworkRequest::Refused) => {
                let plain = |(address, port): (Ipv4Addr, u16)| (address.octets(), port);
                let found = namespace.refused();
                let found = found.map(|all| Done::Refused(all.into_iter().map(plain).collect()));
                (found, None)
            }
            (Self::Namespace(namespace), NetworkRequest::Disarm) => {
                let gone = namespace.disarm();
                (gone.map(|()| Done::Nothing), Some(namespace))
            }
            (Self::Nothing, NetworkRequest::Refused) => (Ok(Done::Refused(Vec::new())), None),
            (Self::Nothing, NetworkRequest::Change(_) | NetworkRequest::Disarm) => {
                (Ok(Done::Nothing), None)
            }
            // Something else was opened than the request needs.
            (
                Self::Nothing | Self::Listener(_) | Self::Namespace(_) | Self::Sockets(..),
                NetworkRequest::Arm(_)
                | NetworkRequest::Change(_)
                | NetworkRequest::Refused
                | NetworkRequest::Disarm,
            ) => (Err(io::ErrorKind::InvalidInput.into()), None),
        }
    }
}

fn arm(
    sockets: Sockets,
    namespace: Namespace,
    rules: &NetworkRules,
) -> (io::Result<Done>, Option<Namespace>) {
    let Sockets { connections, names } = sockets;
    match namespace.arm(&rules_of(rules)) {
        Ok(was) => {
            let changed = match was {
                Armed::First => None,
                Armed::Again => Some(namespace),
            };
            (Ok(Done::Armed(vec![connections, names])), changed)
        }
        Err(error) => {
            // Half of it must not stay. If this fails too, the sockets are closed all the same, and
            // without them nothing gets out.
            let _ = namespace.disarm();
            (Err(error), Some(namespace))
        }
    }
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

/// What sandboxes can have, by trying it in the network namespace of the calling thread, which must
/// be a new one that is thrown away.
pub(crate) fn try_out_here() -> NetworkFeature {
    let works = || {
        loopback::bring_up()?;
        let _sockets = Sockets::make()?;
        Namespace::open()?.arm(&Rules::Open).map(drop)
    };
    if works().is_ok() { NetworkFeature::Transparent } else { NetworkFeature::ProxyOnly }
}
