//! The image store of this machine, used without a server. That is safe beside a running server:
//! the store locks what it changes.

use std::fs::DirBuilder;
use std::ops::ControlFlow;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use images::{Collected, ImageError, ImageErrorCode, ImportOptions, Progress, Source, Store};
use model::ImageName;
use wire::{Image, ImageRemoved};

use super::{STORE, display};
use crate::failure::Failure;
use crate::output::Output;
use crate::server::Server;

/// How often progress is shown.
const PROGRESS_EVERY_BYTES: u64 = 4 << 20;
const PROGRESS_EVERY_ENTRIES: u64 = 500;

pub(super) struct LocalStore {
    /// None if no image was ever imported.
    store: Option<Store>,
}

impl LocalStore {
    /// The store, made if there is none.
    pub(super) fn make(server: &Server) -> Result<Self, Failure> {
        let data_dir = server.data_dir()?;
        // With the permissions that a server would give it.
        DirBuilder::new().recursive(true).mode(0o700).create(&data_dir).map_err(|error| {
            Failure::new(format!("cannot use {} for data", data_dir.display()), error)
                .remedy("choose another directory with --data-dir, or run it with sudo")
                .usage()
        })?;
        open(&data_dir).map(|store| Self { store: Some(store) })
    }

    /// The store, if there is one.
    pub(super) fn find(server: &Server) -> Result<Self, Failure> {
        let data_dir = server.data_dir()?;
        let store = data_dir.join(STORE).exists().then(|| open(&data_dir)).transpose()?;
        Ok(Self { store })
    }

    fn store(&self, image: &str) -> Result<&Store, ImageError> {
        self.store.as_ref().ok_or_else(|| {
            ImageError::new(ImageErrorCode::Unknown, format!("there is no image {image:?}"))
        })
    }

    pub(super) fn import(
        &self,
        name: &ImageName,
        reference: Option<String>,
        source: &Path,
        output: &Output,
    ) -> Result<Image, Failure> {
        let failed = |error| {
            output.progress("");
            Failure::of_image(format!("cannot import {}", source.display()), &error)
        };
        let source = if source == Path::new("-") {
            Source::Stream(Box::new(std::io::stdin()))
        } else {
            Source::Path(source.to_owned())
        };
        let options = ImportOptions { reference, ..ImportOptions::default() };
        let mut shown = (0, 0);
        let mut watch = |progress: &Progress| {
            let now =
                (progress.bytes / PROGRESS_EVERY_BYTES, progress.entries / PROGRESS_EVERY_ENTRIES);
            if now != shown {
                shown = now;
                output.progress(&display::progress(progress));
            }
            ControlFlow::Continue(())
        };
        let store = self.store(name.as_str()).map_err(failed)?;
        let imported = store.import(source, name, &options, &mut watch).map_err(failed)?;
        output.progress("");
        store.get(&imported.id.to_string()).map(Image::from).map_err(failed)
    }

    pub(super) fn list(&self) -> Result<Vec<Image>, Failure> {
        let Some(store) = &self.store else { return Ok(Vec::new()) };
        let images =
            store.list().map_err(|error| Failure::of_image("cannot list images", &error))?;
        Ok(images.into_iter().map(Image::from).collect())
    }

    pub(super) fn show(&self, image: &str) -> Result<Image, Failure> {
        let shown = self.store(image).and_then(|store| store.get(image));
        shown.map(Image::from).map_err(|error| Failure::of_image("cannot show the image", &error))
    }

    pub(super) fn remove(&self, image: &str, force: bool) -> Result<ImageRemoved, Failure> {
        let removed = self.store(image).and_then(|store| {
            let removed = store.remove(image, force)?;
            Ok((removed, store.collect_garbage_if_idle()?.unwrap_or_default()))
        });
        let (removed, collected) =
            removed.map_err(|error| Failure::of_image(format!("cannot remove {image}"), &error))?;
        Ok(ImageRemoved {
            id: removed.id,
            names: removed.names,
            layers: collected.layers as u64,
            bytes: collected.bytes,
        })
    }

    pub(super) fn collect(&self) -> Result<Collected, Failure> {
        let Some(store) = &self.store else { return Ok(Collected::default()) };
        let collected = store.collect_garbage();
        collected.map_err(|error| Failure::of_image("cannot collect garbage", &error))
    }
}

fn open(data_dir: &Path) -> Result<Store, Failure> {
    let opened = Store::open(&data_dir.join(STORE));
    opened.map_err(|error| Failure::of_image("cannot open the image store", &error))
}
