//! Images of this node: what the store does, off the threads that serve, and what only the engine
//! knows: which templates use an image.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::Arc;

use images::{Collected, Image, ImageError, ImportOptions, Imported, Source, Store};
use model::template::RootFs;
use model::{ErrorCode, ImageId, ImageName, Refusal, Template};

use crate::Engine;
use crate::roots::in_background;

/// An image is to be imported.
pub struct ImageRequest {
    /// What it will be called.
    pub name: ImageName,
    /// Which one, if its archive has several.
    pub reference: Option<String>,
    /// The archive. It may block.
    pub archive: Box<dyn Read + Send>,
}

/// What a removal did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRemoved {
    /// The image that lost names.
    pub id: ImageId,
    /// The names that it lost.
    pub names: Vec<ImageName>,
    /// What went with them.
    pub collected: Collected,
}

impl Engine {
    /// All images, by name.
    pub async fn images(&self) -> Result<Vec<Image>, Refusal> {
        let store = self.core.roots.store()?;
        let images = in_background(move || store.list()).await?.map_err(Refusal::from)?;
        self.count_images(&images);
        Ok(images)
    }

    /// One image, by its name, its id or a beginning of its id.
    pub async fn image(&self, reference: &str) -> Result<Image, Refusal> {
        let (store, reference) = (self.core.roots.store()?, reference.to_owned());
        in_background(move || store.get(&reference)).await?.map_err(ImageError::into)
    }

    /// Imports an image. What had its name before and is used by nothing is removed.
    pub async fn import_image(&self, request: ImageRequest) -> Result<Image, Refusal> {
        let store = self.core.roots.store()?;
        let place = Arc::clone(&self.core.imports).try_acquire_owned().map_err(|_| {
            let cause = "as many images are being imported as can be at once";
            Refusal::new(ErrorCode::Overloaded, cause).retry_after(10_000)
        })?;
        let outcome = in_background(move || {
            let imported = import(&store, request);
            drop(place);
            imported
        });
        let outcome = outcome.await?;
        self.core.metrics.imported(match &outcome {
            Ok(_) => Ok(()),
            Err(error) => Err(error.code.as_str()),
        });
        let image = outcome.map_err(Refusal::from)?;
        self.look_at_images().await;
        Ok(image)
    }

    /// Forgets a name, or all names of an image that is given by its id, and removes what nothing
    /// uses any more. What a template names stays.
    pub async fn remove_image(
        &self,
        reference: &str,
        force: bool,
    ) -> Result<ImageRemoved, Refusal> {
        let store = self.core.roots.store()?;
        let image = self.image(reference).await?;
        let templates = self.templates();
        if let Some(user) = templates.iter().find(|template| uses(template, &image, reference)) {
            let cause = format!("template {} uses image {reference}", user.name);
            return Err(Refusal::new(ErrorCode::ImageInUse, cause));
        }
        let reference = reference.to_owned();
        let removed = in_background(move || {
            let removed = store.remove(&reference, force)?;
            Ok(ImageRemoved { id: removed.id, names: removed.names, collected: collect(&store) })
        });
        let removed = removed.await?.map_err(|error: ImageError| Refusal::from(error))?;
        self.look_at_images().await;
        Ok(removed)
    }

    /// Counts images for those who watch. That it cannot be done is told when somebody asks.
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

fn import(store: &Store, request: ImageRequest) -> Result<Image, ImageError> {
    let options = ImportOptions { reference: request.reference, ..ImportOptions::default() };
    let source = Source::Stream(request.archive);
    // Who goes away takes the archive along, and that ends it.
    let mut watch = |_: &_| ControlFlow::Continue(());
    let Imported { id, .. } = store.import(source, &request.name, &options, &mut watch)?;
    collect(store);
    store.get(&id.to_string())
}

/// What cannot be collected now is collected the next time.
fn collect(store: &Store) -> Collected {
    let collected = store.collect_garbage_if_idle().unwrap_or_else(|error| {
        tracing::warn!(%error, "images without a name were not removed");
        None
    });
    collected.unwrap_or_default()
}

/// Whether a template could not be launched any more without these names.
fn uses(template: &Template, image: &Image, reference: &str) -> bool {
    let RootFs::Image(named) = &template.root else { return false };
    let is_name = image.names.iter().any(|name| name.as_str() == reference);
    let by_name = image.names.iter().any(|name| name.as_str() == named);
    let is_last = !is_name || image.names.len() == 1;
    let by_id = image.id.to_string().starts_with(named.as_str());
    if by_name { named == reference || !is_name } else { by_id && is_last }
}

#[cfg(test)]
mod tests {
    use model::TemplateName;

    use super::*;

    #[test]
    fn a_template_uses_the_name_it_has_or_the_last_one() {
        let name = |text: &str| ImageName::new(text).unwrap();
        let id = ImageId::from_bytes([0xab; 32]);
        let image = |names: &[&str]| Image {
            id,
            names: names.iter().map(|text| name(text)).collect(),
            layers: vec![],
            config: images::ImageConfig::default(),
            imported_at_ms: 0,
        };
        let (both, one) = (image(&["a", "b"]), image(&["a"]));
        let id = id.to_string();
        let cases = [
            (RootFs::Image("a".into()), &both, "a", true),
            (RootFs::Image("a".into()), &both, "b", false),
            (RootFs::Image("a".into()), &both, id.as_str(), true),
            (RootFs::Image(id.clone()), &both, "a", false),
            (RootFs::Image(id.clone()), &one, "a", true),
            (RootFs::Image(id.clone()), &both, id.as_str(), true),
            (RootFs::Image("c".into()), &one, "a", false),
            (RootFs::Host, &one, "a", false),
        ];
        for (root, image, reference, expected) in cases {
            let mut template = Template::named(TemplateName::new("t").unwrap());
            template.root = root;
            assert_eq!(uses(&template, image, reference), expected, "{template:?} {reference}");
        }
    }
}
