//! Passes on the deaths of sandboxes, whoever caused them: the kernel knows which it asked for.

use std::sync::Arc;

use kernel::{DeathCause, Event};
use runtime::Deaths;

use crate::core::Core;

/// Passes on the deaths of one runtime until it is shut down.
pub(crate) async fn run(core: Arc<Core>, mut deaths: Deaths) {
    while let Some(died) = deaths.next().await {
        let cause = if died.out_of_memory { DeathCause::Oom } else { DeathCause::Crash };
        core.tell(Event::InstanceDied { instance: died.instance, cause });
    }
}
