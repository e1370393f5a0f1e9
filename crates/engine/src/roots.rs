//! Root filesystems that templates name. A name is looked up when a template is put, so that a
//! wrong one is refused there, and again for every launch, because names may change. Where a
//! runtime has images of its own, a name that our store does not know is left to the runtime: the
//! launch shows whether it has the image, and the pool reports a failure.

use std::path::PathBuf;

use images::{ImageError, ImageErrorCode, ImageHold, Store};
use model::template::{RootFs, RuntimeKind};
use model::{ErrorCode, ImageId, Refusal};
use runtime::{Root, RuntimeError, RuntimeErrorCode};
use tasks::spawn_blocking;

/// Refuses a directory that is not beneath one of these. Blocks.
pub(crate) fn check_directory(directories: &[PathBuf], wanted: &str) -> Result<(), Refusal> {
    if directories.is_empty() {
        let cause = "root: this server serves no directories; see native.directories";
        return Err(Refusal::new(ErrorCode::Unsupported, cause));
    }
    if directories.iter().any(|above| images::is_directory_beneath(above, wanted)) {
        return Ok(());
    }
    let cause = format!("root: no directory {wanted:?} exists beneath native.directories");
    Err(Refusal::new(ErrorCode::TemplateInvalid, cause))
}

/// Where root filesystems are found besides the host's own.
#[derive(Debug, Clone, Default)]
pub struct Roots {
    /// The image store, if there is one.
    pub images: Option<Store>,
    /// Directories whose subdirectories can be used as roots.
    pub directories: Vec<PathBuf>,
}

impl Roots {
    /// Refuses a root that could not be launched. The image is pinned until the caller drops the
    /// result.
    pub(crate) async fn check(
        &self,
        runtime: RuntimeKind,
        root: &RootFs,
    ) -> Result<Option<ImageHold>, Refusal> {
        match root {
            RootFs::Host => Ok(None),
            RootFs::Directory(name) => {
                let (directories, wanted) = (self.directories.clone(), name.clone());
                in_background(move || check_directory(&directories, &wanted)).await??;
                Ok(None)
            }
            RootFs::Image(_) if has_images(runtime) && self.images.is_none() => Ok(None),
            RootFs::Image(name) => {
                let (store, name) = (self.store()?, name.clone());
                let held = in_background(move || store.hold(store.resolve(&name)?)).await?;
                match held {
                    Err(error) if has_images(runtime) && is_unknown(&error) => Ok(None),
                    held => held.map(Some).map_err(ImageError::into),
                }
            }
        }
    }

    /// A root filesystem in the terms of a runtime.
    pub(crate) async fn of(
        &self,
        runtime: RuntimeKind,
        root: &RootFs,
    ) -> Result<Root, RuntimeError> {
        match root {
            RootFs::Host => Ok(Root::Host),
            RootFs::Directory(name) => Ok(Root::Directory(name.clone())),
            RootFs::Image(name) if has_images(runtime) => {
                let stored = self.image_if_known(name).await;
                let stored = stored.map_err(|refusal| not_found(&refusal))?;
                Ok(Root::Named { name: name.clone(), stored })
            }
            RootFs::Image(name) => {
                self.image(name).await.map(Root::Image).map_err(|refusal| not_found(&refusal))
            }
        }
    }

    async fn image(&self, name: &str) -> Result<ImageId, Refusal> {
        let (store, name) = (self.store()?, name.to_owned());
        in_background(move || store.resolve(&name)).await?.map_err(ImageError::into)
    }

    async fn image_if_known(&self, name: &str) -> Result<Option<ImageId>, Refusal> {
        let Some(store) = self.images.clone() else { return Ok(None) };
        let name = name.to_owned();
        match in_background(move || store.resolve(&name)).await? {
            Ok(id) => Ok(Some(id)),
            Err(error) if is_unknown(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn store(&self) -> Result<Store, Refusal> {
        let none = || Refusal::new(ErrorCode::Unsupported, "this server serves no images");
        self.images.clone().ok_or_else(none)
    }
}

/// Whether a runtime has images of its own and can fetch others.
const fn has_images(runtime: RuntimeKind) -> bool {
    match runtime {
        RuntimeKind::Docker => true,
        RuntimeKind::Native
        | RuntimeKind::Runc
        | RuntimeKind::Runsc
        | RuntimeKind::Crun
        | RuntimeKind::Youki
        | RuntimeKind::Fake => false,
    }
}

fn is_unknown(error: &ImageError) -> bool {
    error.code == ImageErrorCode::Unknown
}

fn not_found(refusal: &Refusal) -> RuntimeError {
    let cause = refusal.cause.clone();
    RuntimeError::new(RuntimeErrorCode::RootUnknown, "find the image", cause)
}

/// Runs blocking work off the threads that serve requests.
pub(crate) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Refusal> {
    spawn_blocking(work).await.map_err(|error| {
        tracing::error!(%error, "work on images panicked");
        Refusal::new(ErrorCode::Internal, "internal error: work on images panicked")
    })
}
