//! Exports an image as `docker load` reads it: an archive with an archive of each layer, and their
//! description. It is written once from front to back, and nothing of it is kept on disk or in
//! memory. The same image always gives the same bytes, so an engine that has it recognises it.

use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;

use model::ImageId;
use rustix::fs::{CWD, Mode, openat};
use serde::Serialize;
use tar_stream::{BLOCK, Kind, padding};

use crate::digest::Digest;
use crate::error::ImageError;
use crate::layer_archive::{self, not_taken};
use crate::source::{ImageConfig, architecture_here};
use crate::store::{Store, failed};
use crate::unpack::DIRECTORY;

const BUFFER_BYTES: usize = 256 << 10;

/// An entry of `manifest.json`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Saved<'a> {
    config: String,
    repo_tags: [&'a str; 1],
    layers: Vec<String>,
}

/// The configuration of the image, as engines read it.
#[derive(Serialize)]
struct Described<'a> {
    architecture: &'a str,
    os: &'static str,
    config: Start<'a>,
    rootfs: RootFs,
}

/// Without labels: engines give the labels of an image to its containers, and we recognise our
/// containers by their labels.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Start<'a> {
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    env: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    entrypoint: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cmd: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    working_dir: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    user: &'a str,
}

#[derive(Serialize)]
struct RootFs {
    r#type: &'static str,
    diff_ids: Vec<String>,
}

impl Store {
    /// Writes an image as `docker load` reads it, named `tag` there. It is held meanwhile, so it
    /// cannot be removed.
    pub fn write_archive(
        &self,
        id: ImageId,
        tag: &str,
        to: &mut dyn Write,
    ) -> Result<(), ImageError> {
        let _held = self.hold(id)?;
        let image = self.read(id, &[])?;
        let mut to = BufWriter::with_capacity(BUFFER_BYTES, to);
        let (mut layers, mut diff_ids) = (Vec::new(), Vec::new());
        for layer in &image.layers {
            let directory = self.open_layer(layer.digest)?;
            let path = format!("{}/layer.tar", layer.digest);
            let length = layer_archive::measure(&directory)?;
            head(&path, length, &mut to).map_err(not_taken)?;
            let (digest, written) = layer_archive::write(&directory, &mut to)?;
            if written != length {
                return Err(layer_archive::changed());
            }
            layers.push(path);
            diff_ids.push(format!("sha256:{digest}"));
        }
        let described = json(&described(&image.config, diff_ids))?;
        let config = format!("{}.json", Digest::of(&described));
        let saved = json(&[Saved { config: config.clone(), repo_tags: [tag], layers }])?;
        member(&config, &described, &mut to)
            .and_then(|()| member("manifest.json", &saved, &mut to))
            .and_then(|()| to.write_all(&[0; 2 * BLOCK]))
            .and_then(|()| to.flush())
            .map_err(not_taken)
    }

    fn open_layer(&self, digest: Digest) -> Result<OwnedFd, ImageError> {
        let path = self.layer(digest);
        openat(CWD, &path, DIRECTORY, Mode::empty())
            .map_err(|error| failed("open", &path)(error.into()))
    }
}

fn described(config: &ImageConfig, diff_ids: Vec<String>) -> Described<'_> {
    let said = config.architecture.as_str();
    Described {
        architecture: if said.is_empty() { architecture_here() } else { said },
        os: "linux",
        config: Start {
            env: &config.env,
            entrypoint: &config.entrypoint,
            cmd: &config.command,
            working_dir: &config.working_directory,
            user: &config.user,
        },
        rootfs: RootFs { r#type: "layers", diff_ids },
    }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, ImageError> {
    serde_json::to_vec(value).map_err(|error| ImageError::store("cannot describe an image", error))
}

fn member(path: &str, bytes: &[u8], to: &mut impl Write) -> io::Result<()> {
    head(path, bytes.len() as u64, to)?;
    to.write_all(bytes)?;
    to.write_all(&[0; BLOCK][..padding(bytes.len() as u64) as usize])
}

fn head(path: &str, length: u64, to: &mut impl Write) -> io::Result<()> {
    let written = tar_stream::NewEntry {
        kind: Kind::File,
        path: path.as_bytes(),
        mode: 0o644,
        owner: (0, 0),
        size: length,
        modified: (0, 0),
        target: b"",
        attributes: &[],
        comment: None,
    };
    let mut header = Vec::new();
    written.write(&mut header);
    to.write_all(&header)
}
