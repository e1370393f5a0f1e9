//! Images: root filesystems that somebody brought, and that templates name.

use std::collections::BTreeMap;

use model::{ImageId, ImageName};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// An image of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Image {
    /// Which one it is: the same contents have the same id everywhere.
    pub id: ImageId,
    /// What it is called; nothing if another image took its name.
    pub names: Vec<ImageName>,
    /// Bytes of all files in all layers, shared or not.
    pub bytes: u64,
    /// What it is made of, lowest first.
    pub layers: Vec<ImageLayer>,
    /// What it says about itself.
    pub config: ImageConfig,
    /// When it was imported first.
    pub imported_at: Time,
}

/// One layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImageLayer {
    /// The SHA-256 of its uncompressed archive.
    pub digest: String,
    /// Entries of the archive.
    pub entries: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Devices, pipes and the like, which were left out.
    pub left_out: u64,
    /// Entries that had setuid, setgid or sticky bits and have them no longer.
    pub bits_dropped: u64,
    /// Entries that had extended attributes and have them no longer.
    pub attributes_dropped: u64,
}

/// What an image says about itself. None of it is obeyed: templates and execs decide.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImageConfig {
    /// The kind of processor, as in `amd64`; empty if it does not say.
    pub architecture: String,
    /// Environment, as `NAME=VALUE`.
    pub env: Vec<String>,
    /// The program that is meant to be started, with its first arguments.
    pub entrypoint: Vec<String>,
    /// Arguments of that, or a program if there is none.
    pub command: Vec<String>,
    /// Where it is meant to be started.
    pub working_directory: String,
    /// As whom.
    pub user: String,
    /// What its makers wrote on it.
    pub labels: BTreeMap<String, String>,
}

/// All images, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImageList {
    /// The images.
    pub images: Vec<Image>,
}

/// Names are gone, and with them what nothing uses any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImageRemoved {
    /// The image that lost names.
    pub id: ImageId,
    /// The names that it lost.
    pub names: Vec<ImageName>,
    /// Layers that were removed from the disk.
    pub layers: u64,
    /// Bytes of their files.
    pub bytes: u64,
}
