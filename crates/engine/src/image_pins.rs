//! Images that templates need. Each is held by a lock of the store for as long as a template names
//! it, so that nobody removes it: neither we, nor a command beside us. Never decides what a template
//! is launched from: a name is looked up again for every launch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use images::{Held, Resolved, Store};
use kernel::Kernel;
use model::template::RootFs;
use model::{ImageId, Template};
use tokio::time::sleep;

use crate::core::Core;
use crate::roots::in_background;

/// How often it is looked whether names still mean the same: a command beside us may change them.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The images that are held.
#[derive(Default)]
pub(crate) struct Needed {
    held: Mutex<BTreeMap<ImageId, Held>>,
    /// Templates are put, or images removed, one at a time: each looks at the other first.
    pub(crate) changes: Arc<tokio::sync::Mutex<()>>,
}

/// Holds what templates need now, and lets go of the rest. Blocks.
pub(crate) fn hold(core: &Core, store: &Store) {
    let mut held = core.needed.held.lock().unwrap_or_else(PoisonError::into_inner);
    let templates = core.read(Kernel::templates);
    let wanted: BTreeSet<ImageId> = templates
        .iter()
        .filter_map(|template| needs(template, store))
        .map(|resolved| resolved.id)
        .collect();
    held.retain(|id, _| wanted.contains(id));
    for id in wanted {
        if held.contains_key(&id) {
            continue;
        }
        match store.hold(id) {
            Ok(lock) => {
                held.insert(id, lock);
            }
            Err(error) => tracing::warn!(%id, %error, "an image that a template needs is not held"),
        }
    }
}

/// What a template's image is, if it has one that is there.
pub(crate) fn needs(template: &Template, store: &Store) -> Option<Resolved> {
    match &template.root {
        RootFs::Image(named) => store.find(named).ok(),
        RootFs::Host | RootFs::Directory(_) => None,
    }
}

/// The same off the threads that serve, where there is a store.
pub(crate) async fn hold_now(core: &Arc<Core>) {
    if let Some(store) = core.roots.images.clone() {
        let core = Arc::clone(core);
        // A mistake in there is told by whoever ran it.
        let _ = in_background(move || hold(&core, &store)).await;
    }
}

/// Looks again and again, for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>) {
    if core.roots.images.is_none() {
        return;
    }
    loop {
        hold_now(&core).await;
        sleep(LOOK_EVERY).await;
    }
}
