//! What `docker save` writes: `manifest.json`, a configuration, and a file for each layer.

use std::path::Path;

use serde::Deserialize;

use crate::digest::Digest;
use crate::error::{ImageError, ImageErrorCode};
use crate::source::config::{ConfigFile, ImageConfig};
use crate::source::files::Files;
use crate::source::{LayerBlob, SourceOptions};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

impl Saved {
    fn tags(&self) -> &[String] {
        self.repo_tags.as_deref().unwrap_or_default()
    }

    fn is(&self, reference: &str) -> bool {
        let same =
            |tag: &String| tag == reference || tag.strip_suffix(":latest") == Some(reference);
        self.tags().iter().any(same)
    }
}

pub(super) fn read(
    files: &Files,
    wanted: &SourceOptions<'_>,
) -> Result<(ImageConfig, Vec<LayerBlob>), ImageError> {
    let mut saved: Vec<Saved> = files.read_json("manifest.json", None)?;
    let known = saved.iter().flat_map(Saved::tags).cloned().collect::<Vec<_>>().join(", ");
    if let Some(reference) = wanted.reference {
        saved.retain(|image| image.is(reference));
    }
    let mut saved = saved.into_iter();
    let (Some(image), None) = (saved.next(), saved.next()) else {
        return Err(not_one(wanted.reference, &known));
    };
    let written: ConfigFile = files.read_json(&image.config, named_by(&image.config))?;
    let (config, plain) = written.check()?;
    let layers = image.layers.unwrap_or_default();
    if layers.len() != plain.len() {
        return Err(ImageError::broken("the image does not describe all its layers"));
    }
    let layers = layers.into_iter().zip(plain);
    let layers = layers.map(|(path, plain)| {
        let stored = named_by(&path).map(|digest| (digest, None));
        LayerBlob { path, stored, plain }
    });
    Ok((config, layers.collect()))
}

/// None or several of the images in a source match.
pub(super) fn not_one(reference: Option<&str>, known: &str) -> ImageError {
    let cause = match reference {
        Some(reference) => {
            format!("not exactly one image is called {reference}; there are: {known}")
        }
        None => format!("there is not exactly one image; there are: {known}"),
    };
    ImageError::new(ImageErrorCode::Ambiguous, cause)
}

/// A file named like a digest must have that digest.
fn named_by(path: &str) -> Option<Digest> {
    let name = Path::new(path).file_name()?.to_str()?;
    name.strip_suffix(".json").unwrap_or(name).parse().ok()
}
