//! The store: a directory of images that any number of processes may use at once.
//!
//! ```text
//! layers/DIGEST/         the tree of one layer, named by the SHA-256 of its uncompressed archive
//! layers/DIGEST.json     what was unpacked and what was left out
//! images/ID/layers       digests, one per line, lowest first
//! images/ID/image.json   what the image says about itself; its SHA-256 is the ID
//! names/NAME             an ID
//! lock                   held shared by imports, and exclusively by garbage collection
//! tmp/                   unfinished work; opening the store removes what no process works on
//! ```
//!
//! Everything appears by a rename, complete, and in this order: layers, image, name. What has no
//! name is garbage, unless it is in use: **a process that uses an image holds a shared `flock` on
//! its file `images/ID/layers`**, taken before it opens the first layer. Then it must check whether
//! that file still has a name (its link count): if not, the image was collected a moment before.
//! Nothing in here is ever changed in place.

mod collect;
mod export;
mod hold;
mod import;
mod lock;
mod record;
mod work_directory;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use model::{ImageId, ImageName};

use crate::digest::Digest;
use crate::error::{ImageError, ImageErrorCode};
pub use collect::{Collected, Removed};
pub use hold::ImageHold;
pub use import::{ImportOptions, Imported, Progress};
use record::Record;
pub use record::{Image, Layer};

/// How long another process may work on the store before we give up.
const WAIT: Duration = Duration::from_secs(10);
/// The shortest prefix of an id that may stand for it.
const PREFIX_DIGITS_MIN: usize = 8;
/// The longest file of ours that is read.
const TEXT_BYTES_MAX: u64 = 16 << 20;

/// The image of a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The image.
    pub id: ImageId,
    /// The reference, if it is a name; `None` if it is an id or a prefix of one.
    pub name: Option<ImageName>,
}

/// A store of images.
#[derive(Debug, Clone)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// Opens a store, and makes it if there is none. Removes what unfinished imports left.
    pub fn open(path: &Path) -> Result<Self, ImageError> {
        let store = Self { path: path.to_owned() };
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), 0o755);
        builder.create(path).map_err(failed("make", path))?;
        keep_to_owner(path).map_err(failed("close to others", path))?;
        for directory in [store.layers(), store.images(), store.names(), store.tmp()] {
            builder.create(&directory).map_err(failed("make", &directory))?;
        }
        work_directory::empty(&store.tmp());
        Ok(store)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn layers(&self) -> PathBuf {
        self.path.join("layers")
    }

    fn images(&self) -> PathBuf {
        self.path.join("images")
    }

    fn names(&self) -> PathBuf {
        self.path.join("names")
    }

    fn tmp(&self) -> PathBuf {
        self.path.join("tmp")
    }

    fn lock_file(&self) -> PathBuf {
        self.path.join("lock")
    }

    fn layer(&self, digest: Digest) -> PathBuf {
        self.layers().join(digest.to_string())
    }

    fn image(&self, id: ImageId) -> PathBuf {
        self.images().join(id.to_string())
    }

    /// All images, also those without a name, sorted by name.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let names = self.all_names()?;
        let mut images = Vec::new();
        for id in self.all_ids()? {
            match self.read(id, &names) {
                Ok(image) => images.push(image),
                // Another process may remove one meanwhile.
                Err(error) if error.code == ImageErrorCode::Unknown => {}
                // The other images are still usable.
                Err(error) => {
                    tracing::warn!(%id, %error, "an image cannot be read and is left out of the list");
                }
            }
        }
        images.sort_by(|a, b| {
            let key = |image: &Image| (image.names.is_empty(), image.names.clone(), image.id);
            key(a).cmp(&key(b))
        });
        Ok(images)
    }

    /// One image, by its name, its id, or a prefix of its id.
    pub fn get(&self, reference: &str) -> Result<Image, ImageError> {
        let id = self.resolve(reference)?;
        self.read(id, &self.all_names()?)
    }

    /// The id of the image that a reference stands for.
    pub fn resolve(&self, reference: &str) -> Result<ImageId, ImageError> {
        self.find(reference).map(|found| found.id)
    }

    /// The same, and whether the reference is a name. A reference that is both a name and a prefix
    /// of an id is a name.
    pub fn find(&self, reference: &str) -> Result<Resolved, ImageError> {
        if let Ok(name) = ImageName::new(reference)
            && let Some(id) = self.named(&name)?
        {
            return Ok(Resolved { id, name: Some(name) });
        }
        let unknown = || {
            let shown: String = reference.chars().take(200).collect();
            ImageError::new(ImageErrorCode::Unknown, format!("there is no image {shown:?}"))
        };
        if reference.len() < PREFIX_DIGITS_MIN {
            return Err(unknown());
        }
        let mut ids = self.all_ids()?;
        ids.retain(|id| id.to_string().starts_with(reference));
        match ids.as_slice() {
            [id] => Ok(Resolved { id: *id, name: None }),
            [] => Err(unknown()),
            [_, ..] => {
                let cause = format!("several images begin with {reference}");
                Err(ImageError::new(ImageErrorCode::Ambiguous, cause))
            }
        }
    }

    /// The image with this name.
    fn named(&self, name: &ImageName) -> Result<Option<ImageId>, ImageError> {
        let path = self.names().join(name.as_str());
        match read_text(&path) {
            Ok(text) => {
                let wrong = |_| ImageError::store(path.display(), io::ErrorKind::InvalidData);
                text.trim_end().parse().map(Some).map_err(wrong)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path)(error)),
        }
    }

    fn all_names(&self) -> Result<Vec<(ImageName, ImageId)>, ImageError> {
        let mut found = Vec::new();
        for file in entries(&self.names())? {
            if let Ok(name) = ImageName::new(&file)
                && let Some(id) = self.named(&name)?
            {
                found.push((name, id));
            }
        }
        found.sort();
        Ok(found)
    }

    fn all_ids(&self) -> Result<Vec<ImageId>, ImageError> {
        let mut found: Vec<ImageId> =
            entries(&self.images())?.iter().filter_map(|name| name.parse().ok()).collect();
        found.sort();
        Ok(found)
    }

    fn read(&self, id: ImageId, names: &[(ImageName, ImageId)]) -> Result<Image, ImageError> {
        let directory = self.image(id);
        let path = directory.join(record::IMAGE_FILE);
        let text = read_text(&path).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                return ImageError::new(ImageErrorCode::Unknown, format!("there is no image {id}"));
            }
            failed("read", &path)(error)
        })?;
        let record = Record::parse(&text).map_err(failed("read", &path))?;
        let imported = fs::metadata(&directory).and_then(|found| found.modified());
        let imported = imported.map_err(failed("look at", &directory))?;
        let imported_at_ms =
            imported.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let names = names.iter().filter(|(_, of)| *of == id).map(|(name, _)| name.clone());
        Ok(record.into_image(id, names.collect(), imported_at_ms))
    }
}

/// Only the owner may enter, even if another user made the directory: files that are
/// world-writable by the permissions of an archive would be writable for every user of the host.
fn keep_to_owner(path: &Path) -> io::Result<()> {
    let directory = fs::File::open(path)?;
    let mut permissions = directory.metadata()?.permissions();
    if permissions.mode() & 0o7777 != 0o700 {
        permissions.set_mode(0o700);
        directory.set_permissions(permissions)?;
    }
    Ok(())
}

/// Names in a directory, as far as they are UTF-8.
fn entries(path: &Path) -> Result<Vec<String>, ImageError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(failed("read", path))? {
        let name = entry.map_err(failed("read", path))?.file_name();
        names.extend(name.into_string());
    }
    Ok(names)
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(
        &mut io::Read::take(fs::File::open(path)?, TEXT_BYTES_MAX),
        &mut text,
    )?;
    Ok(text)
}

fn failed(what: &str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    move |error| ImageError::store(format!("cannot {what} {}", path.display()), error)
}
