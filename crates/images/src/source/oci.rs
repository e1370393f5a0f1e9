//! An OCI image layout: `index.json`, and blobs named by their digests.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::digest::Digest;
use crate::error::{ImageError, ImageErrorCode};
use crate::source::config::{self, ConfigFile, ImageConfig, architecture_here};
use crate::source::docker::not_one;
use crate::source::files::Files;
use crate::source::{LayerBlob, SourceOptions};

/// How deep lists may be nested.
const DEPTH_MAX: usize = 4;
/// The most entries of all lists.
const LISTED_MAX: usize = 1000;

const NAME: &str = "org.opencontainers.image.ref.name";
const FULL_NAME: &str = "io.containerd.image.name";
/// The annotation of a descriptor that is about an image and not an image itself.
const ABOUT: &str = "vnd.docker.reference.type";

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

#[derive(Debug, Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    config: Descriptor,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

impl Descriptor {
    fn path(&self) -> Result<(String, Digest), ImageError> {
        let digest = config::digest(&self.digest)?;
        Ok((format!("blobs/sha256/{digest}"), digest))
    }

    fn is_index(&self) -> bool {
        self.media_type.ends_with(".image.index.v1+json")
            || self.media_type.ends_with(".manifest.list.v2+json")
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn is(&self, reference: &str) -> bool {
        [NAME, FULL_NAME].iter().any(|key| self.annotation(key) == Some(reference))
    }

    fn is_for_here(&self) -> bool {
        self.platform.as_ref().is_none_or(|platform| {
            platform.architecture == architecture_here() && platform.os == "linux"
        })
    }

    fn shown(&self) -> String {
        let name = self.annotation(FULL_NAME).or(self.annotation(NAME)).unwrap_or(&self.digest);
        match &self.platform {
            Some(platform) => format!("{name} for {}/{}", platform.os, platform.architecture),
            None => name.to_owned(),
        }
    }
}

pub(super) fn read(
    files: &Files,
    wanted: &SourceOptions<'_>,
) -> Result<(ImageConfig, Vec<LayerBlob>), ImageError> {
    let mut top: Index = files.read_json("index.json", None)?;
    let known: Vec<_> = top.manifests.iter().map(Descriptor::shown).collect();
    let known = known.join(", ");
    if let Some(reference) = wanted.reference {
        top.manifests.retain(|manifest| manifest.is(reference));
        if top.manifests.is_empty() {
            return Err(not_one(wanted.reference, &known));
        }
    }
    let mut lists = Lists::default();
    lists.collect(files, top, 0)?;
    let Lists { mut found, elsewhere, .. } = lists;
    // One image may have several names.
    found.sort_by(|a, b| a.digest.cmp(&b.digest));
    found.dedup_by(|a, b| a.digest == b.digest);
    let image = match found.as_slice() {
        [image] => image,
        [] if !elsewhere.is_empty() => {
            let here = architecture_here();
            let cause =
                format!("no image is for linux/{here}; there are: {}", elsewhere.join(", "));
            return Err(ImageError::new(ImageErrorCode::WrongPlatform, cause));
        }
        _ => return Err(not_one(wanted.reference, &known)),
    };
    let (path, digest) = image.path()?;
    let manifest: Manifest = files.read_json(&path, Some(digest))?;
    let (path, digest) = manifest.config.path()?;
    let written: ConfigFile = files.read_json(&path, Some(digest))?;
    let (config, plain) = written.check()?;
    if manifest.layers.len() != plain.len() {
        return Err(ImageError::broken("the image does not describe all its layers"));
    }
    let mut layers = Vec::new();
    for (layer, plain) in manifest.layers.iter().zip(plain) {
        let (path, digest) = layer.path()?;
        layers.push(LayerBlob { path, stored: Some((digest, layer.size)), plain });
    }
    Ok((config, layers))
}

/// The result of reading lists.
#[derive(Default)]
struct Lists {
    /// Images for this machine.
    found: Vec<Descriptor>,
    /// Images for other platforms, in words.
    elsewhere: Vec<String>,
    /// How many entries were read, of any kind.
    looked_at: usize,
    /// Lists that were read.
    known: BTreeSet<Digest>,
}

impl Lists {
    /// Finds the images for this machine, also in nested lists. Each list is read once, however
    /// often it is named.
    fn collect(&mut self, files: &Files, index: Index, depth: usize) -> Result<(), ImageError> {
        for manifest in index.manifests {
            self.looked_at += 1;
            if self.looked_at > LISTED_MAX || depth > DEPTH_MAX {
                let cause = "the lists of the image are nested too deeply";
                return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
            }
            if manifest.annotation(ABOUT).is_some() {
                continue;
            }
            if !manifest.is_for_here() {
                self.elsewhere.push(manifest.shown());
            } else if manifest.is_index() {
                let (path, digest) = manifest.path()?;
                if self.known.insert(digest) {
                    let index = files.read_json(&path, Some(digest))?;
                    self.collect(files, index, depth + 1)?;
                }
            } else {
                self.found.push(manifest);
            }
        }
        Ok(())
    }
}
