//! What happens at a start: the log line with the text of Ash, which its users look for, warm
//! sandboxes for the agents that ask for them, and the stored views of sessions.

use engine::Recovery;

use super::known_sessions::remember_all;
use super::prewarm::size_pool;
use crate::app::App;

/// Sizes the pool for the agents that an earlier run left, and stores views of its sessions. Without
/// a runtime nothing is served.
pub(super) fn continue_soon(app: &App) {
    if tokio::runtime::Handle::try_current().is_err() {
        return;
    }
    let app = app.clone();
    tasks::spawn(async move {
        if let Err(refusal) = size_pool(&app).await {
            // The next change of an agent tries again.
            tracing::warn!(cause = %refusal.cause, "cannot keep sandboxes warm for agents of Ash");
        }
        if let Err(error) = remember_all(&app).await {
            // Messages of these sessions try again.
            tracing::warn!(?error, "cannot store the views of sessions of Ash");
        }
    });
}

/// Writes the line about sandboxes that an earlier run left, if there are some.
pub fn log_recovery(recovery: &Recovery) {
    if let Some(line) = line(recovery) {
        tracing::info!("{line}");
    }
}

fn line(recovery: &Recovery) -> Option<String> {
    let cold = recovery.marked_cold;
    (cold > 0).then(|| format!("Startup: marked {cold} stale sandbox(es) as cold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_that_are_cold_now_are_told_in_the_words_of_ash() {
        let found = |marked_cold| Recovery { marked_cold, ..Recovery::default() };
        assert_eq!(line(&found(0)), None);
        let expected = "Startup: marked 3 stale sandbox(es) as cold";
        assert_eq!(line(&found(3)).as_deref(), Some(expected));
    }
}
