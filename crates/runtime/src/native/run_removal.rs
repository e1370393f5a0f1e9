//! What is left of a sandbox's life when its launcher is gone: it dies with it, and what the
//! launcher had made for it is removed by us.

use model::InstanceId;
use tokio::sync::watch;

use super::launcher_client::Launcher;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// Whether everything of a run whose launcher is gone has been removed.
pub(super) struct Ending {
    removed: watch::Sender<bool>,
}

impl Ending {
    pub(super) fn new() -> Self {
        Self { removed: watch::Sender::new(false) }
    }

    /// Nothing of the run is left.
    pub(super) fn all_is_removed(&self) {
        self.removed.send_replace(true);
    }

    /// Waits until nothing of the run is left.
    pub(super) async fn wait(&self) {
        // It cannot be dropped while it is waited for.
        let _ = self.removed.subscribe().wait_for(|removed| *removed).await;
    }

    /// Kills a sandbox; one that is dying with its launcher is gone when all is removed.
    pub(super) async fn kill(
        &self,
        launcher: &Launcher,
        instance: InstanceId,
    ) -> Result<(), RuntimeError> {
        match launcher.kill(instance).await {
            Err(error) if is_end(error.code) => {
                self.wait().await;
                Ok(())
            }
            killed => killed,
        }
    }
}

/// Whether this says that there is no launcher any more.
pub(super) fn is_end(code: RuntimeErrorCode) -> bool {
    matches!(code, RuntimeErrorCode::LauncherLost | RuntimeErrorCode::ShuttingDown)
}
