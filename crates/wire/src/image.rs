//! Images: root filesystems that were imported and that templates name.

use std::collections::BTreeMap;

use model::{ImageId, ImageName};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// An image of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Image {
    /// Its id: equal contents have the same id on every server.
    pub id: ImageId,
    /// Its names; empty if another image took them.
    pub names: Vec<ImageName>,
    /// Bytes of all files in all layers, shared or not.
    pub bytes: u64,
    /// Its layers, lowest first.
    pub layers: Vec<ImageLayer>,
    /// Its configuration.
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
    /// Entries whose setuid, setgid or sticky bits were removed.
    pub bits_dropped: u64,
    /// Entries whose extended attributes were removed.
    pub attributes_dropped: u64,
}

/// The configuration in an image. It is only shown: templates and execs decide.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImageConfig {
    /// The processor architecture, such as `amd64`; empty if not given.
    pub architecture: String,
    /// Environment, as `NAME=VALUE`.
    pub env: Vec<String>,
    /// The entrypoint: a program and its first arguments.
    pub entrypoint: Vec<String>,
    /// Arguments of the entrypoint, or a program if there is none.
    pub command: Vec<String>,
    /// The working directory.
    pub working_directory: String,
    /// The user.
    pub user: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// All images, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ImageList {
    /// The images.
    pub images: Vec<Image>,
}

/// Which names, layers and bytes a removal deleted.
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
