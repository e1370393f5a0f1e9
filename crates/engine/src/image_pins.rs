//! Pins the images that templates need: each is held by a lock of the image store for as long as a
//! template names it, so that neither the server nor a command beside it removes it. This module
//! never decides what a template is launched from: every launch looks the name up again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use images::{ImageHold, Resolved, Store};
use kernel::Kernel;
use model::template::RootFs;
use model::{ImageId, Template};
use tokio::time::sleep;

use crate::core::Core;
use crate::roots::in_background;

/// How often names are looked up again: a command beside the server may change them.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The pinned images.
#[derive(Default)]
pub(crate) struct ImagePins {
    pinned: Mutex<BTreeMap<ImageId, ImageHold>>,
    /// Templates are put and images removed one at a time: each checks the other first.
    pub(crate) changes: Arc<tokio::sync::Mutex<()>>,
}

/// Pins what templates need now, and unpins the rest. Blocks.
pub(crate) fn pin(core: &Core, store: &Store) {
    let mut pinned = core.image_pins.pinned.lock().unwrap_or_else(PoisonError::into_inner);
    let templates = core.read(Kernel::templates);
    let wanted: BTreeSet<ImageId> = templates
        .iter()
        .filter_map(|template| needed_image(template, store))
        .map(|resolved| resolved.id)
        .collect();
    pinned.retain(|id, _| wanted.contains(id));
    for id in wanted {
        if pinned.contains_key(&id) {
            continue;
        }
        match store.hold(id) {
            Ok(lock) => {
                pinned.insert(id, lock);
            }
            Err(error) => {
                tracing::warn!(
                    image = %id,
                    %error,
                    "an image that a template needs could not be pinned; it may be removed"
                );
            }
        }
    }
}

/// The image of a template, if it has one that exists.
pub(crate) fn needed_image(template: &Template, store: &Store) -> Option<Resolved> {
    match &template.root {
        RootFs::Image(named) => store.find(named).ok(),
        RootFs::Host | RootFs::Directory(_) => None,
    }
}

/// The same off the threads that serve requests, where there is an image store.
pub(crate) async fn pin_now(core: &Arc<Core>) {
    if let Some(store) = core.roots.images.clone() {
        let core = Arc::clone(core);
        // `in_background` has logged a panic.
        let _ = in_background(move || pin(&core, &store)).await;
    }
}

/// Runs for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>) {
    if core.roots.images.is_none() {
        return;
    }
    loop {
        pin_now(&core).await;
        sleep(LOOK_EVERY).await;
    }
}
