//! The network of a policy in a container. The keeper makes it; the sockets only pass through here.
//! One call about a container at a time, and each to its end: sockets of a call that was dropped are
//! closed before the next one begins. A use that has ended must never reach the network of the next.

use std::net::Ipv4Addr;
use std::sync::Arc;

use guest_protocol::network::NetworkRequest;
use model::NetworkPolicy;
use tokio::sync::OwnedMutexGuard;

use super::keeper::Networked;
use super::maker::Maker;
use super::sandbox::ContainerSandbox;
use crate::contract::NetworkSockets;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::network_rules;

/// An answer and the turn in which it was given. The answer is dropped first.
type InTurn = (Result<Networked, RuntimeError>, OwnedMutexGuard<()>);

impl<M: Maker> ContainerSandbox<M> {
    pub(super) async fn arm(&self, policy: &NetworkPolicy) -> Result<NetworkSockets, RuntimeError> {
        const STEP: &str = "arm the network";
        let request = NetworkRequest::Arm(network_rules::of_policy(policy));
        let mut sockets = self.ask_keeper(STEP, request).await?.sockets.into_iter();
        let Some(connections) = sockets.next() else {
            let cause = "the keeper sent no sockets";
            return Err(RuntimeError::new(RuntimeErrorCode::Protocol, STEP, cause));
        };
        Ok(NetworkSockets { connections, names: sockets.next() })
    }

    pub(super) async fn change_rules(&self, policy: &NetworkPolicy) -> Result<(), RuntimeError> {
        let request = NetworkRequest::Change(network_rules::of_policy(policy));
        self.ask_keeper("change the network", request).await.map(drop)
    }

    pub(super) async fn disarm(&self) -> Result<(), RuntimeError> {
        self.ask_keeper("disarm the network", NetworkRequest::Disarm).await.map(drop)
    }

    pub(super) async fn refused(&self) -> Result<Vec<(Ipv4Addr, u16)>, RuntimeError> {
        let answer = self.ask_keeper("read refused addresses", NetworkRequest::Refused).await?;
        Ok(answer.refused.into_iter().map(|(bytes, port)| (bytes.into(), port)).collect())
    }

    async fn ask_keeper(
        &self,
        step: &'static str,
        request: NetworkRequest,
    ) -> Result<Networked, RuntimeError> {
        self.alive(step)?;
        let (Some(keeper), Some(baseline)) = (&self.shared.keeper, &self.baseline) else {
            let cause = self.shared.maker.why_no_network();
            return Err(RuntimeError::new(RuntimeErrorCode::Unsupported, step, cause));
        };
        let turn = Arc::clone(&self.network_turn).lock_owned().await;
        if self.connected.watch.is_replaced() {
            let cause = "this use of the sandbox has ended";
            return Err(RuntimeError::new(RuntimeErrorCode::SandboxGone, step, cause));
        }
        let (keeper, baseline) = (Arc::clone(keeper), Arc::clone(baseline));
        let asked: tokio::task::JoinHandle<InTurn> = tasks::spawn(async move {
            let answer = keeper.network_request(step, &baseline, request).await;
            (answer, turn)
        });
        let (answer, _turn) = asked.await.map_err(|error| {
            RuntimeError::new(RuntimeErrorCode::System, step, error.to_string())
        })?;
        self.unless_dead(step, answer)
    }
}
