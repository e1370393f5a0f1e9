//! Wiping: everything the use started ends, its places are thrown away whole and replaced, and the
//! guest begins again on a connection of its own, so that nothing of the use survives in it either.
//! Then all of that is proven from outside. Given up in the middle, a sandbox is fit for nobody, and
//! says so.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::time::timeout;

use super::keeper::{Baseline, Keeper};
use super::maker::Maker;
use super::sandbox::Contained;
use crate::contract::Inside as _;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// How long a guest may take to begin again.
const BEGIN_PATIENCE: Duration = Duration::from_secs(5);

impl<M: Maker> Contained<M> {
    /// Who does it, and what it was like at its birth.
    fn outside(&self, step: &'static str) -> Result<(&Arc<Keeper>, &Baseline), RuntimeError> {
        self.alive(step)?;
        if let (Some(keeper), Some(baseline)) = (&self.shared.keeper, &self.baseline) {
            return Ok((keeper, baseline));
        }
        let cause = "used sandboxes are made anew here";
        Err(RuntimeError::new(RuntimeErrorCode::Unsupported, step, cause))
    }

    /// Ends the use and makes everything fresh.
    pub(super) async fn renew(&self) -> Result<(), RuntimeError> {
        const STEP: &str = "wipe";
        let (keeper, baseline) = self.outside(STEP)?;
        self.fit.store(false, Ordering::Relaxed);
        let old = &self.connected;
        let fresh = async {
            old.link.end_all().await?;
            keeper.renew(baseline).await?;
            let (ours, theirs) =
                socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
                    .map_err(|error| RuntimeError::system("make a connection", &error.into()))?;
            let new = self.shared.connect(self.spec.instance, &self.life, ours, true)?;
            let next = Arc::new(self.successor(new));
            // From here on whatever breaks, breaks the new connection, and that is watched.
            if !self.shared.succeed(&next) {
                let cause = "it was ended meanwhile";
                return Err(RuntimeError::new(RuntimeErrorCode::SandboxGone, STEP, cause));
            }
            old.watch.replace();
            old.link.begin_again(theirs)?;
            let ready = timeout(BEGIN_PATIENCE, next.connected.link.ready()).await;
            ready.unwrap_or_else(|_| Err(RuntimeError::deadline(STEP)))?;
            Ok(next)
        };
        let fresh = fresh.await;
        let next = self.unless_over(STEP, fresh)?;
        old.link.retire();
        next.fit.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Looks whether nothing of a use is left, and whether the guest answers.
    pub(super) async fn prove_clean(&self) -> Result<(), RuntimeError> {
        const STEP: &str = "prove";
        let (keeper, baseline) = self.outside(STEP)?;
        if !self.fit.load(Ordering::Relaxed) {
            let cause = "a wipe of it was not finished";
            return Err(RuntimeError::new(RuntimeErrorCode::Protocol, STEP, cause));
        }
        let link = &self.connected.link;
        let proven = async {
            // Whoever answers has made what it makes for itself, and nothing moves any more.
            link.ping().await?;
            keeper.prove(baseline).await
        };
        let proven = proven.await;
        self.unless_over(STEP, proven)
    }
}
