//! Reports every death of an instance to the kernel, which knows the ones it asked for.

use std::sync::Arc;

use kernel::{DeathCause, Event};
use runtime::{Deaths, LostGuests};

use crate::core::Core;
use crate::network;

/// Reports the deaths of one runtime until it is shut down.
pub(crate) async fn run(core: Arc<Core>, mut deaths: Deaths) {
    while let Some(died) = deaths.next().await {
        let cause = if died.out_of_memory { DeathCause::Oom } else { DeathCause::Crash };
        // The cause says that memory ran out; the exit of the first process adds nothing to it.
        let detail = (!died.out_of_memory).then(|| died.cause().into());
        network::forget(&core, died.instance);
        core.notify(Event::InstanceDied { instance: died.instance, cause, detail });
    }
}

/// Reports the lost guests of one runtime for as long as the runtime does.
pub(crate) async fn run_lost_guests(core: Arc<Core>, mut lost: LostGuests) {
    while let Some(instance) = lost.next().await {
        core.notify(Event::GuestLost { instance });
    }
}
