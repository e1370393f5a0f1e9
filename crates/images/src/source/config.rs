//! What an image says about itself: its platform, and how its programs are meant to be started.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::digest::Digest;
use crate::error::{ImageError, ImageErrorCode};

/// What an image says about itself. Nothing of it is applied here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// The architecture, such as `amd64`; empty if it is missing.
    pub architecture: String,
    /// Environment, as `NAME=VALUE`.
    pub env: Vec<String>,
    /// The program to start, with its first arguments.
    pub entrypoint: Vec<String>,
    /// Arguments of the entry point, or a program if there is none.
    pub command: Vec<String>,
    /// Its working directory.
    pub working_directory: String,
    /// Its user.
    pub user: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
}

/// The configuration of an image in the format of OCI and Docker.
#[derive(Debug, Deserialize)]
pub(super) struct ConfigFile {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default, deserialize_with = "or_default")]
    config: Start,
    rootfs: RootFs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Start {
    #[serde(deserialize_with = "or_default")]
    env: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    entrypoint: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    cmd: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    working_dir: String,
    #[serde(deserialize_with = "or_default")]
    user: String,
    #[serde(deserialize_with = "or_default")]
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    #[serde(default, deserialize_with = "or_default")]
    diff_ids: Vec<String>,
}

/// Go writes `null` for missing values.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// The architecture of this machine, as images name it.
pub(crate) fn architecture_here() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl ConfigFile {
    /// Its contents, and the layers it must have, if it is for this machine.
    pub(super) fn check(self) -> Result<(ImageConfig, Vec<Digest>), ImageError> {
        let here = architecture_here();
        let fits = |said: &str, expected: &str| said.is_empty() || said == expected;
        if !fits(&self.architecture, here) || !fits(&self.os, "linux") {
            let cause = format!(
                "the image is for {}/{}, and this machine is linux/{here}",
                self.os, self.architecture
            );
            return Err(ImageError::new(ImageErrorCode::WrongPlatform, cause));
        }
        let mut layers = Vec::new();
        for text in &self.rootfs.diff_ids {
            layers.push(digest(text)?);
        }
        let start = self.config;
        let config = ImageConfig {
            architecture: self.architecture,
            env: start.env,
            entrypoint: start.entrypoint,
            command: start.cmd,
            working_directory: start.working_dir,
            user: start.user,
            labels: start.labels,
        };
        Ok((config, layers))
    }
}

/// Parses the digest of a part of an image.
pub(super) fn digest(text: &str) -> Result<Digest, ImageError> {
    Digest::from_reference(text).ok_or_else(|| {
        let shown: String = text.chars().take(100).collect();
        let cause = format!("{shown:?} is not a supported digest: only sha256 is");
        ImageError::new(ImageErrorCode::Unsupported, cause)
    })
}
