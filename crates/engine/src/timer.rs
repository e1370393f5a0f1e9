//! Wakes the kernel at its next alarm. The kernel decides what is due.

use std::sync::Arc;

use kernel::Event;

use crate::core::Core;

/// Runs for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        core.clock.until_running().await;
        let at = core.timer_sleeps_until();
        if at > core.now().mono {
            tokio::select! {
                () = tokio::time::sleep_until(core.clock.instant(at)) => {}
                () = core.timer_early.notified() => continue,
            }
        }
        core.notify(Event::Ticked);
        // A kernel whose alarms are always due must not starve other tasks.
        tokio::task::yield_now().await;
    }
}
