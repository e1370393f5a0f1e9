//! Taking away: names at once, and then what has no name and is not used. Whatever goes is first
//! moved aside in one step, so nobody ever sees half of it.

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

/// What a removal did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The image that lost names.
    pub id: ImageId,
    /// The names that it lost.
    pub names: Vec<ImageName>,
}

/// What garbage collection did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Images that are gone.
    pub images: Vec<ImageId>,
    /// How many layers are gone.
    pub layers: usize,
    /// Bytes of their files.
    pub bytes: u64,
    /// Images without a name that stay, because somebody uses them.
    pub in_use: Vec<ImageId>,
}

impl Store {
    /// Forgets a name, or all names of an image that is given by its id. The image stays until
    /// garbage is collected. The last name of an image that somebody uses is forgotten by force
    /// only.
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

    /// Removes images that have no name and that nobody uses, and layers that no image has.
    pub fn collect_garbage(&self) -> Result<Collected, ImageError> {
        self.collect(Lock::alone(&self.lock_file(), WAIT)?)
    }

    /// The same, unless somebody imports: `None`, and it is left for the next time.
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
                        // While it is held: who opened it before sees that it has no name any more.
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
                    tracing::warn!(%id, %error, "all layers stay: an image does not say which it has");
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
        // Removing takes long, and what was moved out is in nobody's way.
        drop(lock);
        drop(work);
        Ok(collected)
    }

    /// Which layers an image has, by the list that launches go by.
    fn layers_of(&self, id: ImageId) -> Result<Vec<Digest>, ImageError> {
        let path = self.image(id).join(LAYERS_FILE);
        let text = read_text(&path).map_err(failed("read", &path))?;
        let wrong = |_| ImageError::store(path.display(), io::ErrorKind::InvalidData);
        text.lines().map(|line| line.parse().map_err(wrong)).collect()
    }

    /// Locks an image against its use, if nobody uses it. One that is damaged is used by nobody.
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

/// Who has the lock of an image.
enum ImageLock {
    /// We do, so nobody uses it.
    Ours(File),
    /// Somebody who uses it.
    Theirs,
    /// Nobody could: it is not whole.
    Damaged,
}

fn move_out(path: &Path, to: &Path) -> Result<PathBuf, ImageError> {
    let to = to.join(path.file_name().unwrap_or_default());
    fs::rename(path, &to).map_err(failed("remove", path))?;
    Ok(to)
}
