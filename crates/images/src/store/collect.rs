//! Removal: names at once, then images and layers that have no name and are not used. What is
//! removed is first moved aside in one step, so no process ever sees half of it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use model::{ImageId, ImageName};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::digest::Digest;
use crate::error::{ImageError, ImageErrorCode};
use crate::store::lock::Lock;
use crate::store::record::LAYERS_FILE;
use crate::store::work_directory::WorkDirectory;
use crate::store::{Resolved, Store, WAIT, entries, failed, read_text};

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The image that lost names.
    pub id: ImageId,
    /// The names that it lost.
    pub names: Vec<ImageName>,
}

/// The result of a garbage collection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Images that are gone.
    pub images: Vec<ImageId>,
    /// How many layers are gone.
    pub layers: usize,
    /// Bytes of their files.
    pub bytes: u64,
    /// Images without a name that stay, because they are in use.
    pub in_use: Vec<ImageId>,
}

impl Store {
    /// Removes a name, or all names of an image that is given by its id. The image stays until
    /// garbage is collected. The last name of an image in use is removed only by force.
    pub fn remove(&self, reference: &str, force: bool) -> Result<Removed, ImageError> {
        let _lock = Lock::shared(&self.lock_file(), WAIT)?;
        let Resolved { id, name: named } = self.find(reference)?;
        let all = self.all_names()?;
        let of_image = all.iter().filter(|(_, of)| *of == id).map(|(name, _)| name);
        let (gone, stay): (Vec<_>, Vec<_>) =
            of_image.cloned().partition(|name| named.as_ref().is_none_or(|named| named == name));
        if stay.is_empty() && !force && matches!(self.lock_image(id)?, ImageLock::Theirs) {
            let cause = format!("a server uses image {id}");
            return Err(ImageError::new(ImageErrorCode::InUse, cause));
        }
        for name in &gone {
            let path = self.names().join(name.as_str());
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &path)(error));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(Removed { id, names: gone })
    }

    /// Removes images that have no name and are not in use, and layers that no image has.
    pub fn collect_garbage(&self) -> Result<Collected, ImageError> {
        self.collect(Lock::alone(&self.lock_file(), WAIT)?)
    }

    /// The same, unless an import runs: then `None`, and the next call does it.
    pub fn collect_garbage_if_idle(&self) -> Result<Option<Collected>, ImageError> {
        Lock::try_alone(&self.lock_file())?.map(|lock| self.collect(lock)).transpose()
    }

    fn collect(&self, lock: Lock) -> Result<Collected, ImageError> {
        let work = WorkDirectory::new(&self.tmp())?;
        let named: BTreeSet<ImageId> = self.all_names()?.into_iter().map(|(_, id)| id).collect();
        let mut collected = Collected::default();
        let (mut needed, mut doomed) = (BTreeSet::new(), Vec::new());
        let mut is_all_known = true;
        for id in self.all_ids()? {
            if !named.contains(&id) {
                match self.lock_image(id)? {
                    ImageLock::Theirs => collected.in_use.push(id),
                    ImageLock::Ours(_held) => {
                        let path = move_out(&self.image(id), work.path())?;
                        // Removed while it is locked: a process that opened it before sees that the
                        // file has no name any more.
                        let path = path.join(LAYERS_FILE);
                        fs::remove_file(&path).map_err(failed("remove", &path))?;
                        collected.images.push(id);
                        continue;
                    }
                    ImageLock::Damaged => {
                        move_out(&self.image(id), work.path())?;
                        collected.images.push(id);
                        continue;
                    }
                }
            }
            match self.layers_of(id) {
                Ok(layers) => needed.extend(layers),
                Err(error) => {
                    tracing::warn!(%id, %error, "no layer was removed, because the layer list of an image cannot be read");
                    is_all_known = false;
                }
            }
        }
        let layers = if is_all_known { entries(&self.layers())? } else { Vec::new() };
        for name in layers {
            let path = self.layers().join(&name);
            match name.strip_suffix(".json").unwrap_or(&name).parse::<Digest>() {
                Ok(digest) if needed.contains(&digest) => {}
                Ok(digest) if path.is_dir() => {
                    let report = self.known(digest).map(|layer| layer.report);
                    collected.layers += 1;
                    collected.bytes += report.map_or(0, |report| report.bytes);
                    doomed.push(path);
                }
                Ok(_) | Err(_) => doomed.push(path),
            }
        }
        for path in doomed {
            move_out(&path, work.path())?;
        }
        // Removing takes long, and what was moved aside blocks no other process.
        drop(lock);
        drop(work);
        Ok(collected)
    }

    /// The layers of an image, from the list that launches use.
    fn layers_of(&self, id: ImageId) -> Result<Vec<Digest>, ImageError> {
        let path = self.image(id).join(LAYERS_FILE);
        let text = read_text(&path).map_err(failed("read", &path))?;
        let wrong = |_| ImageError::store(path.display(), io::ErrorKind::InvalidData);
        text.lines().map(|line| line.parse().map_err(wrong)).collect()
    }

    /// Locks an image against its use, if it is not in use. A damaged image cannot be in use.
    fn lock_image(&self, id: ImageId) -> Result<ImageLock, ImageError> {
        let path = self.image(id).join(LAYERS_FILE);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ImageLock::Damaged),
            Err(error) => return Err(failed("open", &path)(error)),
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(ImageLock::Ours(file)),
            Err(Errno::WOULDBLOCK) => Ok(ImageLock::Theirs),
            Err(error) => Err(failed("lock", &path)(error.into())),
        }
    }
}

/// Which process has the lock of an image.
enum ImageLock {
    /// This one, so the image is not in use.
    Ours(File),
    /// A process that uses the image.
    Theirs,
    /// None: the image is incomplete.
    Damaged,
}

fn move_out(path: &Path, to: &Path) -> Result<PathBuf, ImageError> {
    let to = to.join(path.file_name().unwrap_or_default());
    fs::rename(path, &to).map_err(failed("remove", path))?;
    Ok(to)
}
