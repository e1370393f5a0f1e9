//! Images: root filesystems that templates name.

use std::time::Duration;

use hyper::header::{CONTENT_TYPE, HeaderValue};
use model::ImageName;
use wire::{Image, ImageList, ImageRemoved};

use crate::body::Upload;
use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::query::Target;
use crate::transport::Client;

const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// The longest time for the upload of an image.
const TRANSFER: Duration = Duration::from_hours(24);

fn at() -> Target {
    Target::new("/v1/images")
}

impl Client {
    /// All images, by name.
    #[boxed]
    pub async fn images(&self) -> Result<Vec<Image>, ClientError> {
        let list: ImageList = self.json(Call::get(at())).await?;
        Ok(list.images)
    }

    /// One image, by its name, its id or a beginning of its id.
    #[boxed]
    pub async fn image(&self, reference: &str) -> Result<Image, ClientError> {
        self.json(Call::get(at().part(reference))).await
    }

    /// Imports an image from its archive. `reference` says which one, if there are several in it.
    #[boxed]
    pub async fn import_image(
        &self,
        name: &ImageName,
        reference: Option<&str>,
        archive: Upload,
    ) -> Result<Image, ClientError> {
        let target = at().with("name", name.as_str()).maybe("reference", reference);
        let call = Call::post(target).header(CONTENT_TYPE, BYTES).stream(archive);
        self.json(call.may_take(TRANSFER)).await
    }

    /// Removes a name of an image, or all its names by its id. With `force` also if it is in use.
    #[boxed]
    pub async fn delete_image(
        &self,
        reference: &str,
        force: bool,
    ) -> Result<ImageRemoved, ClientError> {
        let target = at().part(reference).maybe("force", force.then_some(true));
        self.json(Call::delete(target).may_take(self.patience().control)).await
    }
}
