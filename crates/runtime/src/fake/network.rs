//! The network of a fake sandbox: real sockets on loopback, which no kernel leads anything to. Tests
//! see what was armed, and dial the sockets themselves.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use model::{InstanceId, NetworkPolicy};

use super::FakeRuntime;
use super::faults::Operation;
use super::handle::Handle;
use crate::contract::NetworkSockets;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::NetworkAbility;

/// What a fake sandbox was armed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeNetwork {
    /// The policy of the last call.
    pub policy: NetworkPolicy,
    /// Where its socket for connections listens.
    pub connections: SocketAddr,
    /// Where its socket for names is.
    pub names: Option<SocketAddr>,
    /// How many times it was armed and changed.
    pub calls: u32,
}

impl FakeRuntime {
    /// What a sandbox was armed with, if it is armed.
    pub fn network(&self, instance: InstanceId) -> Option<FakeNetwork> {
        let sandbox = self.world.state().sandboxes.get(&instance).cloned()?;
        let state = sandbox.state();
        state.network.clone()
    }
}

impl Handle {
    fn ability(&self) -> NetworkAbility {
        self.world.upgrade().map_or(NetworkAbility::None, |world| world.network)
    }

    async fn enter_network(&self) -> Result<(), RuntimeError> {
        const OPERATION: Operation = Operation::Network;
        if self.ability() == NetworkAbility::None {
            let cause = "sandboxes of this runtime have no network";
            return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, OPERATION.step(), cause));
        }
        // Nothing of it happens inside, so it works while the sandbox is frozen.
        self.meet_faults(OPERATION).await?;
        self.check(OPERATION.step())?;
        self.is_present(OPERATION)
    }

    pub(crate) async fn arm(&self, policy: &NetworkPolicy) -> Result<NetworkSockets, RuntimeError> {
        self.enter_network().await?;
        let failed = |error| RuntimeError::system("listen on loopback", &error);
        let transparent = self.ability() == NetworkAbility::Transparent;
        let connections = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        connections.set_nonblocking(true).map_err(failed)?;
        let names = transparent.then(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
        let names = names.transpose().map_err(failed)?;
        if let Some(names) = &names {
            names.set_nonblocking(true).map_err(failed)?;
        }
        let mut state = self.state();
        let calls = state.network.as_ref().map_or(0, |network| network.calls);
        state.network = Some(FakeNetwork {
            policy: policy.clone(),
            connections: connections.local_addr().map_err(failed)?,
            names: names.as_ref().map(UdpSocket::local_addr).transpose().map_err(failed)?,
            calls: calls + 1,
        });
        Ok(NetworkSockets { connections: connections.into(), names: names.map(Into::into) })
    }

    pub(crate) async fn change(&self, policy: &NetworkPolicy) -> Result<(), RuntimeError> {
        self.enter_network().await?;
        if let Some(network) = &mut self.state().network {
            network.policy.clone_from(policy);
            network.calls += 1;
            return Ok(());
        }
        let cause = "the network of the sandbox is not armed";
        Err(RuntimeError::new(RuntimeErrorCode::System, Operation::Network.step(), cause))
    }

    pub(crate) async fn refused(&self) -> Result<Vec<(Ipv4Addr, u16)>, RuntimeError> {
        self.enter_network().await?;
        // No kernel refuses anything here.
        Ok(Vec::new())
    }

    pub(crate) async fn disarm(&self) -> Result<(), RuntimeError> {
        self.enter_network().await?;
        self.state().network = None;
        Ok(())
    }
}
