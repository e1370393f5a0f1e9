//! The network of a native sandbox with a policy. The launcher makes it; the sockets only pass
//! through here. One call about a sandbox at a time, and each to its end: sockets of a call that was
//! dropped are closed before the next one begins.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::network::NetworkRequest;
use model::NetworkPolicy;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::timeout;

use super::instance::Instance;
use super::launcher_client::{LauncherClient, NetworkAnswer};
use super::run_removal::is_launcher_gone;
use crate::contract::NetworkSockets;
use crate::deaths::Died;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::guest_link::Surroundings as _;
use crate::network_rules;

/// How long a death that the launcher has seen takes to be known here.
const DEATH_PATIENCE: Duration = Duration::from_secs(5);

/// Calls about the network of one sandbox.
#[derive(Default)]
pub(super) struct Network {
    turn: Arc<Mutex<()>>,
}

/// An answer and the turn in which it was given. The answer is dropped first.
type InTurn = (Result<NetworkAnswer, RuntimeError>, OwnedMutexGuard<()>);

impl Network {
    pub(super) async fn arm(
        &self,
        launcher: &Arc<LauncherClient>,
        instance: &Arc<Instance>,
        policy: &NetworkPolicy,
    ) -> Result<NetworkSockets, RuntimeError> {
        const STEP: &str = "arm the network";
        let request = NetworkRequest::Arm(network_rules::of_policy(policy));
        match self.ask(launcher, instance, STEP, request).await? {
            NetworkAnswer::Armed(sockets) => from_descriptors(sockets).ok_or_else(|| unfit(STEP)),
            NetworkAnswer::Done | NetworkAnswer::Refused(_) => Err(unfit(STEP)),
        }
    }

    pub(super) async fn change(
        &self,
        launcher: &Arc<LauncherClient>,
        instance: &Arc<Instance>,
        policy: &NetworkPolicy,
    ) -> Result<(), RuntimeError> {
        const STEP: &str = "change the network";
        let request = NetworkRequest::Change(network_rules::of_policy(policy));
        done(STEP, &self.ask(launcher, instance, STEP, request).await?)
    }

    pub(super) async fn disarm(
        &self,
        launcher: &Arc<LauncherClient>,
        instance: &Arc<Instance>,
    ) -> Result<(), RuntimeError> {
        const STEP: &str = "disarm the network";
        done(STEP, &self.ask(launcher, instance, STEP, NetworkRequest::Disarm).await?)
    }

    pub(super) async fn refused(
        &self,
        launcher: &Arc<LauncherClient>,
        instance: &Arc<Instance>,
    ) -> Result<Vec<(Ipv4Addr, u16)>, RuntimeError> {
        const STEP: &str = "read refused addresses";
        match self.ask(launcher, instance, STEP, NetworkRequest::Refused).await? {
            NetworkAnswer::Refused(addresses) => {
                Ok(addresses.into_iter().map(|(bytes, port)| (bytes.into(), port)).collect())
            }
            NetworkAnswer::Done | NetworkAnswer::Armed(_) => Err(unfit(STEP)),
        }
    }

    async fn ask(
        &self,
        launcher: &Arc<LauncherClient>,
        instance: &Arc<Instance>,
        step: &'static str,
        request: NetworkRequest,
    ) -> Result<NetworkAnswer, RuntimeError> {
        if let Some(died) = instance.died() {
            return Err(died.error(step));
        }
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let (launcher, id) = (Arc::clone(launcher), instance.id());
        let asked: tokio::task::JoinHandle<InTurn> = tasks::spawn(async move {
            let answer = launcher.network(step, id, request).await;
            (answer, turn)
        });
        let (answer, _turn) = asked.await.map_err(|error| {
            RuntimeError::new(RuntimeErrorCode::System, step, error.to_string())
        })?;
        match answer {
            Err(error) if is_launcher_gone(error.code) => {
                Err(Died::with_launcher(id, None).error(step))
            }
            // The launcher knows of its end first.
            Err(error) if error.code == RuntimeErrorCode::SandboxUnknown => {
                match timeout(DEATH_PATIENCE, instance.death()).await {
                    Ok(died) => Err(died.error(step)),
                    Err(_) => Err(error),
                }
            }
            other => other,
        }
    }
}

fn from_descriptors(sockets: Vec<OwnedFd>) -> Option<NetworkSockets> {
    let mut sockets = sockets.into_iter();
    Some(NetworkSockets { connections: sockets.next()?, names: sockets.next() })
}

fn done(step: &'static str, answer: &NetworkAnswer) -> Result<(), RuntimeError> {
    match answer {
        NetworkAnswer::Done => Ok(()),
        NetworkAnswer::Armed(_) | NetworkAnswer::Refused(_) => Err(unfit(step)),
    }
}

fn unfit(step: &'static str) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::Protocol, step, "the launcher sent an unexpected answer")
}
