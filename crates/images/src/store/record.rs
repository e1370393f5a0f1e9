//! The stored record of an image, and the types that describe images.

use std::io;

use model::{ImageId, ImageName};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::source::ImageConfig;
use crate::unpack::Report;

pub(super) const IMAGE_FILE: &str = "image.json";
pub(super) const LAYERS_FILE: &str = "layers";

/// `image.json`. The same contents give the same bytes, and so the same id, wherever and whenever
/// they are imported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Lowest first.
    pub(super) layers: Vec<RecordedLayer>,
    pub(super) config: ImageConfig,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedLayer {
    digest: String,
    #[serde(flatten)]
    report: Report,
}

impl Record {
    pub(super) fn new(layers: &[Layer], config: ImageConfig) -> Self {
        let layers = layers
            .iter()
            .map(|layer| RecordedLayer { digest: layer.digest.to_string(), report: layer.report });
        Self { layers: layers.collect(), config }
    }

    pub(super) fn parse(text: &str) -> io::Result<Self> {
        let record: Self = serde_json::from_str(text)?;
        if record.layers.iter().any(|layer| layer.digest.parse::<Digest>().is_err()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(record)
    }

    /// The bytes of the file, and the id that follows from them.
    pub(super) fn bytes(&self) -> io::Result<(Vec<u8>, ImageId)> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        let id = ImageId::from_bytes(Digest::of(&bytes).0);
        Ok((bytes, id))
    }

    /// The file `layers`.
    pub(super) fn lines(&self) -> String {
        self.layers.iter().flat_map(|layer| [layer.digest.as_str(), "\n"]).collect()
    }

    pub(super) fn digests(&self) -> Vec<Digest> {
        self.layers.iter().filter_map(|layer| layer.digest.parse().ok()).collect()
    }

    pub(super) fn into_image(
        self,
        id: ImageId,
        names: Vec<ImageName>,
        imported_at_ms: u64,
    ) -> Image {
        let digests = self.digests().into_iter().zip(self.layers);
        let layers = digests.map(|(digest, layer)| Layer { digest, report: layer.report });
        Image { id, names, layers: layers.collect(), config: self.config, imported_at_ms }
    }
}

/// One layer of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// The digest of its uncompressed archive.
    pub digest: Digest,
    /// What was unpacked.
    pub report: Report,
}

/// An image in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Its id.
    pub id: ImageId,
    /// Its names; empty if another image took its name.
    pub names: Vec<ImageName>,
    /// Lowest first.
    pub layers: Vec<Layer>,
    /// What it says about itself.
    pub config: ImageConfig,
    /// When it was first imported, in milliseconds since 1970.
    pub imported_at_ms: u64,
}

impl Image {
    /// Bytes of all files in all layers, shared or not.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.report.bytes).sum()
    }
}

/// As the API and the command line show it.
impl From<Image> for wire::Image {
    fn from(image: Image) -> Self {
        let layer = |layer: &Layer| wire::ImageLayer {
            digest: layer.digest.to_string(),
            entries: layer.report.entries,
            bytes: layer.report.bytes,
            left_out: layer.report.left_out,
            bits_dropped: layer.report.bits_dropped,
            attributes_dropped: layer.report.attributes_dropped,
        };
        let (bytes, layers) = (image.bytes(), image.layers.iter().map(layer).collect());
        let config = image.config;
        Self {
            id: image.id,
            names: image.names,
            bytes,
            layers,
            config: wire::ImageConfig {
                architecture: config.architecture,
                env: config.env,
                entrypoint: config.entrypoint,
                command: config.command,
                working_directory: config.working_directory,
                user: config.user,
                labels: config.labels,
            },
            imported_at: wire::Time(i64::try_from(image.imported_at_ms).unwrap_or(i64::MAX)),
        }
    }
}
