//! The removal of a whole run after its launcher has died: its sandboxes die with it, and the
//! server removes what the launcher had made for them.

use model::InstanceId;
use tokio::sync::watch;

use super::launcher_client::LauncherClient;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// Whether everything of a run whose launcher has died is removed.
pub(super) struct RunRemoval {
    removed: watch::Sender<bool>,
}

impl RunRemoval {
    pub(super) fn new() -> Self {
        Self { removed: watch::Sender::new(false) }
    }

    /// Called when nothing of the run is left.
    pub(super) fn mark_removed(&self) {
        self.removed.send_replace(true);
    }

    /// Waits until nothing of the run is left.
    pub(super) async fn wait(&self) {
        // The sender is ours, so it cannot be gone.
        let _ = self.removed.subscribe().wait_for(|removed| *removed).await;
    }

    /// Kills a sandbox. If its launcher has died, waits until the whole run is removed.
    pub(super) async fn kill(
        &self,
        launcher: &LauncherClient,
        instance: InstanceId,
    ) -> Result<(), RuntimeError> {
        match launcher.kill(instance).await {
            Err(error) if is_launcher_gone(error.code) => {
                self.wait().await;
                Ok(())
            }
            killed => killed,
        }
    }
}

/// Whether this error says that the launcher has ended.
pub(super) fn is_launcher_gone(code: RuntimeErrorCode) -> bool {
    matches!(code, RuntimeErrorCode::LauncherLost | RuntimeErrorCode::ShuttingDown)
}
