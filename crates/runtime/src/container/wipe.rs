//! Wiping: every program of the use ends, the keeper replaces all writable mounts, and the guest
//! starts again on a new connection, so that nothing of the use survives in the guest either. The
//! network of a policy is taken away; who has its sockets must have closed them before. Then
//! the keeper proves it from outside. A sandbox whose wipe was not finished must never be handed
//! out: its proof fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::time::timeout;

use super::keeper::{Baseline, Keeper};
use super::maker::Maker;
use super::sandbox::ContainerSandbox;
use crate::contract::Inside as _;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// How long a guest may take to start again.
const BEGIN_PATIENCE: Duration = Duration::from_secs(5);

impl<M: Maker> ContainerSandbox<M> {
    /// The keeper, and the state of the sandbox at its launch.
    fn outside(&self, step: &'static str) -> Result<(&Arc<Keeper>, &Arc<Baseline>), RuntimeError> {
        self.alive(step)?;
        if let (Some(keeper), Some(baseline)) = (&self.shared.keeper, &self.baseline) {
            return Ok((keeper, baseline));
        }
        let cause = "this runtime recreates used sandboxes and does not wipe them";
        Err(RuntimeError::new(RuntimeErrorCode::Unsupported, step, cause))
    }

    /// Ends the use and wipes the sandbox.
    pub(super) async fn renew(&self) -> Result<(), RuntimeError> {
        const STEP: &str = "wipe";
        let (keeper, baseline) = self.outside(STEP)?;
        self.wipe_complete.store(false, Ordering::Relaxed);
        let old = &self.connected;
        let fresh = async {
            // A call about the network ends first, and none of this use begins afterwards.
            let _turn = self.network_turn.lock().await;
            old.link.end_all().await?;
            keeper.renew(baseline).await?;
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                    .map_err(|error| RuntimeError::system("make a connection", &error.into()))?;
            let new = self.shared.connect(self.spec.instance, &self.instance, ours, true)?;
            let next = Arc::new(self.for_next_use(new));
            // From here on only the new connection counts, and it is watched.
            if !self.shared.replace_live(&next) {
                let cause = "the sandbox ended during the wipe";
                return Err(RuntimeError::new(RuntimeErrorCode::SandboxGone, STEP, cause));
            }
            old.watch.replace();
            old.link.begin_again(theirs)?;
            let ready = timeout(BEGIN_PATIENCE, next.connected.link.ready()).await;
            ready.unwrap_or_else(|_| Err(RuntimeError::deadline(STEP)))?;
            Ok(next)
        };
        let fresh = fresh.await;
        let next = self.unless_dead(STEP, fresh)?;
        old.link.retire();
        next.wipe_complete.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Proves that nothing of a use is left, and that the guest answers.
    pub(super) async fn prove_clean(&self) -> Result<(), RuntimeError> {
        const STEP: &str = "prove";
        let (keeper, baseline) = self.outside(STEP)?;
        if !self.wipe_complete.load(Ordering::Relaxed) {
            let cause = "the last wipe of the sandbox was not finished";
            return Err(RuntimeError::new(RuntimeErrorCode::Protocol, STEP, cause));
        }
        let link = &self.connected.link;
        let proven = async {
            // A guest that answers has finished its own setup, so its state no longer changes.
            link.ping().await?;
            keeper.prove(baseline).await
        };
        let proven = proven.await;
        self.unless_dead(STEP, proven)
    }
}
