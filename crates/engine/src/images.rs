//! Images of this node. The image store does the work, off the threads that serve requests; the
//! engine adds which templates use an image.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use images::{Collected, Image, ImageError, ImportOptions, Imported, Resolved, Source, Store};
use kernel::Kernel;
use model::{ErrorCode, ImageId, ImageName, Refusal};
use tokio::time::timeout;

use crate::Engine;
use crate::boxed;
use crate::core::Core;
use crate::disk_guard::{DiskGuard, no_room};
use crate::image_pins::{self, needed_image};
use crate::roots::in_background;

/// The longest import, from its first byte to its end.
const IMPORT_MAX: Duration = Duration::from_hours(2);

/// An image to import.
pub struct ImageRequest {
    /// Its name from now on.
    pub name: ImageName,
    /// Which image, if the archive has several.
    pub reference: Option<String>,
    /// The archive. Reading it may block.
    pub archive: Box<dyn Read + Send>,
}

/// What a removal did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRemoved {
    /// The image that lost names.
    pub id: ImageId,
    /// The names that it lost.
    pub names: Vec<ImageName>,
    /// What was deleted with them.
    pub collected: Collected,
}

impl Engine {
    /// All images, by name.
    #[boxed]
    pub async fn images(&self) -> Result<Vec<Image>, Refusal> {
        let store = self.core.roots.store()?;
        let images = in_background(move || store.list()).await?.map_err(Refusal::from)?;
        self.count_images(&images);
        Ok(images)
    }

    /// One image, by its name, its id or a beginning of its id.
    #[boxed]
    pub async fn image(&self, reference: &str) -> Result<Image, Refusal> {
        let (store, reference) = (self.core.roots.store()?, reference.to_owned());
        in_background(move || store.get(&reference)).await?.map_err(ImageError::into)
    }

    /// Imports an image. The image that had its name before is removed if nothing uses it.
    #[boxed]
    pub async fn import_image(&self, request: ImageRequest) -> Result<Image, Refusal> {
        let store = self.core.roots.store()?;
        let place = Arc::clone(&self.core.imports).try_acquire_owned().map_err(|_| {
            let cause = "as many images are being imported as the server allows at once";
            Refusal::new(ErrorCode::Overloaded, cause).retry_after(10_000)
        })?;
        let core = Arc::clone(&self.core);
        let wanted = ImportCaller::default();
        let called_off = Arc::clone(&wanted.0);
        let outcome = in_background(move || {
            let imported = import(&core, &store, request, called_off);
            drop(place);
            imported
        });
        let outcome = timeout(IMPORT_MAX, outcome).await.map_err(|_| {
            Refusal::new(ErrorCode::DeadlineExceeded, "the import took longer than two hours")
        })?;
        let outcome = outcome?;
        self.core.metrics.imported(match &outcome {
            Ok(_) => Ok(()),
            Err(error) => Err(error.code.as_str()),
        });
        let image = outcome.map_err(Refusal::from)?;
        self.look_at_images().await;
        Ok(image)
    }

    /// Removes a name, or all names of an image given by its id, and deletes what nothing uses.
    /// What a template names stays.
    #[boxed]
    pub async fn remove_image(
        &self,
        reference: &str,
        force: bool,
    ) -> Result<ImageRemoved, Refusal> {
        let (core, store) = (Arc::clone(&self.core), self.core.roots.store()?);
        let alone = Arc::clone(&core.image_pins.changes).lock_owned().await;
        let reference = reference.to_owned();
        let removed = in_background(move || {
            // Held also if the caller goes away.
            let _alone = alone;
            remove(&core, &store, &reference, force)
        });
        let removed = removed.await??;
        self.look_at_images().await;
        Ok(removed)
    }

    /// Updates the image metrics. If that fails, the next request for images says why.
    pub(crate) async fn look_at_images(&self) {
        if self.core.roots.images.is_some() {
            let _ = self.images().await;
        }
    }

    fn count_images(&self, images: &[Image]) {
        let layers = images.iter().flat_map(|image| &image.layers);
        let layers: BTreeMap<_, _> =
            layers.map(|layer| (layer.digest, layer.report.bytes)).collect();
        self.core.metrics.images(images.len(), layers.values().sum());
    }
}

/// The caller of an import. The import is called off when this is dropped.
#[derive(Default)]
struct ImportCaller(Arc<AtomicBool>);

impl Drop for ImportCaller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn import(
    core: &Core,
    store: &Store,
    request: ImageRequest,
    called_off: Arc<AtomicBool>,
) -> Result<Image, ImageError> {
    let reference = request.reference;
    let options = ImportOptions { reference, called_off, ..ImportOptions::default() };
    let is_short = || core.disk.is_short();
    let source = Source::Stream(Box::new(DiskGuard::new(request.archive, is_short)));
    let ran_short = Cell::new(false);
    let mut watch = |_: &_| {
        ran_short.set(is_short());
        if ran_short.get() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let imported = store.import(source, &request.name, &options, &mut watch);
    let Imported { id, .. } =
        imported.map_err(|error| if ran_short.get() { no_room() } else { error })?;
    // Its name may have been that of an image which a template needed until now.
    image_pins::pin(core, store);
    collect(store);
    store.get(&id.to_string())
}

fn remove(
    core: &Core,
    store: &Store,
    reference: &str,
    force: bool,
) -> Result<ImageRemoved, Refusal> {
    image_pins::pin(core, store);
    let (going, names) = (store.find(reference)?, store.get(reference)?.names.len());
    for template in core.read(Kernel::templates) {
        if needed_image(&template, store).is_some_and(|needed| is_lost(&needed, &going, names)) {
            let cause = format!("template \"{}\" uses the image {reference}", template.name);
            return Err(Refusal::new(ErrorCode::ImageInUse, cause));
        }
    }
    let removed = store.remove(reference, force)?;
    Ok(ImageRemoved { id: removed.id, names: removed.names, collected: collect(store) })
}

/// What cannot be deleted now is deleted the next time.
fn collect(store: &Store) -> Collected {
    let collected = store.collect_garbage_if_idle().unwrap_or_else(|error| {
        tracing::warn!(
            %error,
            "images without a name could not be deleted; the next import or removal tries again"
        );
        None
    });
    collected.unwrap_or_default()
}

/// Whether a template would no longer find its image. The image that goes has so many names.
fn is_lost(needed: &Resolved, going: &Resolved, names: usize) -> bool {
    let by_name = match (&needed.name, &going.name) {
        (_, None) => true,
        (Some(needed), Some(going)) => needed == going,
        (None, Some(_)) => names <= 1,
    };
    needed.id == going.id && by_name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_removal_is_refused_for_the_name_of_a_template_or_the_last_name() {
        let resolved = |byte: u8, name: Option<&str>| Resolved {
            id: ImageId::from_bytes([byte; 32]),
            name: name.map(|name| ImageName::new(name).unwrap()),
        };
        let id = || resolved(1, None);
        let (a, b) = (resolved(1, Some("a")), resolved(1, Some("b")));
        let cases = [
            (a.clone(), a.clone(), 2, true),
            (a.clone(), b, 2, false),
            (a.clone(), id(), 2, true),
            (id(), a.clone(), 2, false),
            (id(), a.clone(), 1, true),
            (id(), id(), 2, true),
            (resolved(2, Some("c")), a.clone(), 1, false),
            (resolved(2, None), a, 1, false),
        ];
        for (needed, going, names, expected) in cases {
            assert_eq!(is_lost(&needed, &going, names), expected, "{needed:?} {going:?} {names}");
        }
    }
}
