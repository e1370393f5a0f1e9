//! Keeps time for the kernel: tells it when a moment comes that it asked for. What is due then is
//! the kernel's affair.

use std::sync::Arc;

use kernel::Event;

use crate::core::Core;

/// Keeps time for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        core.clock.goes().await;
        let at = core.timer_sleeps_until();
        if at > core.now().mono {
            tokio::select! {
                () = tokio::time::sleep_until(core.clock.instant(at)) => {}
                () = core.timer_early.notified() => continue,
            }
        }
        core.tell(Event::Ticked);
        // A kernel that wants to be woken at once, again and again, must not keep others out.
        tokio::task::yield_now().await;
    }
}
