//! Imports an image. Everything is unpacked aside; layers, image and name appear at the end, in
//! this order, after their contents are on disk. An import that fails or is killed leaves nothing
//! visible.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model::{ImageId, ImageName};
use rustix::fs::{fstat, syncfs};
use rustix::io::Errno;

use crate::digest::Digest;
use crate::error::{ImageError, ImageErrorCode};
use crate::source::{
    self, Blob, Described, ImageConfig, LayerBlob, Source, SourceKind, SourceOptions,
};
use crate::store::lock::Lock;
use crate::store::record::{self, Layer, Record};
use crate::store::work_directory::WorkDirectory;
use crate::store::{Store, WAIT, failed, read_text};
use crate::stream::{self, Cancellable, Pieces, StreamDigests};
use crate::unpack::{Limits, Report, unpack_watched};

/// The most layers of an image: overlayfs allows few more.
const LAYERS_MAX: usize = 64;
/// The most layers that a source may name: those that add nothing are dropped later.
const NAMED_LAYERS_MAX: usize = 1000;
/// The longest record of an image: listing images reads all of them.
const RECORD_BYTES_MAX: usize = 1 << 20;
/// What an entry adds to an archive besides its contents, at most.
const HEADER_BYTES: u64 = 1 << 10;

/// Options of an import.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Limits of all layers together.
    pub limits: Limits,
    /// Which of several images in the source, by its name there.
    pub reference: Option<String>,
    /// Set to cancel the import, at any time.
    pub called_off: Arc<AtomicBool>,
}

/// The progress of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The layer that is being unpacked, from 1.
    pub layer: usize,
    /// How many there are.
    pub layers: usize,
    /// Entries so far, of all layers.
    pub entries: u64,
    /// Bytes so far, of all layers.
    pub bytes: u64,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// Which image it is.
    pub id: ImageId,
    /// Its layers, lowest first, without those that add nothing.
    pub layers: Vec<Layer>,
    /// How many of them were in the store before.
    pub shared: usize,
}

/// Called from time to time; decides whether to go on.
type Watch<'a> = dyn FnMut(&Progress) -> ControlFlow<()> + 'a;

impl Store {
    /// Imports an image and gives it a name. Another image with that name loses it.
    pub fn import(
        &self,
        source: Source<'_>,
        name: &ImageName,
        options: &ImportOptions,
        watch: &mut Watch<'_>,
    ) -> Result<Imported, ImageError> {
        let _lock = Lock::shared(&self.lock_file(), WAIT)?;
        let work = WorkDirectory::new(&self.tmp())?;
        let stream_bytes_max = options.limits.max_bytes.saturating_add(
            options.limits.max_entries.saturating_mul(HEADER_BYTES).saturating_add(1 << 20),
        );
        let wanted = SourceOptions {
            reference: options.reference.as_deref(),
            spool_bytes_max: stream_bytes_max,
            spool_in: work.path(),
            called_off: &options.called_off,
        };
        let found = source::find(source, &wanted)?;
        let mut importing = Importing {
            store: self,
            work: work.path(),
            limits: options.limits,
            stream_bytes_max,
            called_off: &options.called_off,
            watch,
            new: BTreeMap::new(),
            progress: Progress { layer: 1, layers: 1, entries: 0, bytes: 0 },
        };
        let (config, layers) = match found {
            SourceKind::Archive(reader) => {
                (ImageConfig::default(), vec![importing.archive(reader)?.0])
            }
            SourceKind::Directory(path) => {
                (ImageConfig::default(), vec![importing.directory(&path)?])
            }
            SourceKind::Image(image) => importing.image(image)?,
        };
        let layers = needed(layers);
        if layers.len() > LAYERS_MAX {
            let cause = format!(
                "the image has {} layers, and at most {LAYERS_MAX} can be mounted",
                layers.len()
            );
            return Err(ImageError::new(ImageErrorCode::TooManyLayers, cause));
        }
        let new = importing.new;
        let shared = layers.iter().filter(|layer| !new.contains_key(&layer.digest)).count();
        let id = self.publish(&layers, &new, config, name, work.path())?;
        Ok(Imported { id, layers, shared })
    }

    /// The record of a layer, if the store has it.
    pub(super) fn known(&self, digest: Digest) -> Option<Layer> {
        let path = self.layer(digest);
        let report = read_text(&path.with_extension("json")).ok()?;
        let report = serde_json::from_str(&report).ok()?;
        path.is_dir().then_some(Layer { digest, report })
    }

    fn publish(
        &self,
        layers: &[Layer],
        new: &BTreeMap<Digest, PathBuf>,
        config: ImageConfig,
        name: &ImageName,
        work: &Path,
    ) -> Result<ImageId, ImageError> {
        let record = Record::new(layers, config);
        let image = work.join("image");
        let (bytes, id) = record.bytes().map_err(failed("describe", &image))?;
        if bytes.len() > RECORD_BYTES_MAX {
            let cause = format!(
                "the description of the image has {} bytes, and at most {RECORD_BYTES_MAX} are allowed",
                bytes.len()
            );
            return Err(ImageError::new(ImageErrorCode::TooLarge, cause));
        }
        fs::create_dir(&image).map_err(failed("make", &image))?;
        let write = |path: PathBuf, bytes: &[u8]| {
            File::create(&path)
                .and_then(|mut file| file.write_all(bytes))
                .map_err(failed("write", &path))
        };
        write(image.join(record::IMAGE_FILE), &bytes)?;
        write(image.join(record::LAYERS_FILE), record.lines().as_bytes())?;
        write(work.join("name"), format!("{id}\n").as_bytes())?;
        for layer in layers.iter().filter(|layer| new.contains_key(&layer.digest)) {
            let report = serde_json::to_vec(&layer.report);
            let report = report.map_err(|error| ImageError::store("a report", error))?;
            write(work.join(format!("{}.json", layer.digest)), &report)?;
        }
        self.sync()?;
        for layer in layers {
            if let Some(unpacked) = new.get(&layer.digest) {
                let report = format!("{}.json", layer.digest);
                move_in(&work.join(&report), &self.layers().join(&report))?;
                move_in(unpacked, &self.layer(layer.digest))?;
            }
        }
        move_in(&image, &self.image(id))?;
        self.sync()?;
        move_in(&work.join("name"), &self.names().join(name.as_str()))?;
        let names = File::open(self.names()).and_then(|names| names.sync_all());
        names.map_err(failed("write", &self.names()))?;
        Ok(id)
    }

    fn sync(&self) -> Result<(), ImageError> {
        let store = File::open(&self.path).map_err(failed("open", &self.path))?;
        syncfs(&store).map_err(|error| failed("write", &self.path)(error.into()))
    }
}

/// Moves something to its final path. If another import was faster, its file is the same.
fn move_in(from: &Path, to: &Path) -> Result<(), ImageError> {
    match rustix::fs::rename(from, to) {
        Ok(()) | Err(Errno::EXIST | Errno::NOTEMPTY) => Ok(()),
        Err(error) => Err(failed("write", to)(error.into())),
    }
}

/// Layers that add something, each once: if a layer comes twice, the upper one counts.
fn needed(layers: Vec<Layer>) -> Vec<Layer> {
    let mut kept: Vec<Layer> = Vec::new();
    for layer in layers.iter().rev() {
        let is_twice = kept.iter().any(|above| above.digest == layer.digest);
        if layer.report.entries > 0 && !is_twice {
            kept.push(*layer);
        }
        if layer.report.hides_all_below {
            break;
        }
    }
    kept.reverse();
    // An empty root is still a root.
    if kept.is_empty() { layers.into_iter().take(1).collect() } else { kept }
}

struct Importing<'a> {
    store: &'a Store,
    work: &'a Path,
    limits: Limits,
    stream_bytes_max: u64,
    called_off: &'a Arc<AtomicBool>,
    watch: &'a mut Watch<'a>,
    /// Layers that the store does not have yet, and their paths.
    new: BTreeMap<Digest, PathBuf>,
    progress: Progress,
}

impl Importing<'_> {
    fn image(&mut self, image: Described) -> Result<(ImageConfig, Vec<Layer>), ImageError> {
        if image.layers.len() > NAMED_LAYERS_MAX {
            let cause = format!(
                "the image has {} layers, and at most {LAYERS_MAX} can be mounted",
                image.layers.len()
            );
            return Err(ImageError::new(ImageErrorCode::TooManyLayers, cause));
        }
        self.progress.layers = image.layers.len();
        let mut layers = Vec::new();
        for (n, blob) in image.layers.iter().enumerate() {
            self.progress.layer = n + 1;
            let again = layers.iter().find(|layer: &&Layer| layer.digest == blob.plain).copied();
            let layer = match again {
                Some(layer) => layer,
                None => self.blob(image.open(blob)?, blob)?,
            };
            layers.push(layer);
        }
        Ok((image.config, layers))
    }

    /// Unpacks a layer. A layer that the store has is not unpacked again, but still read: knowing
    /// its digest alone does not give access to it.
    fn blob(&mut self, opened: Blob<'_>, blob: &LayerBlob) -> Result<Layer, ImageError> {
        let wrong = |what: &str| {
            let cause = format!("layer {} {what}", blob.plain);
            Err(ImageError::new(ImageErrorCode::DigestMismatch, cause))
        };
        if let Some((_, Some(size))) = blob.stored
            && size != opened.size
        {
            return wrong("is not as long as the image says");
        }
        let (layer, passed) = match self.store.known(blob.plain) {
            Some(known) => {
                let reader = Cancellable::new(opened.reader, self.called_off);
                let ((), passed) = stream::from_reader(reader, self.stream_bytes_max, |_| Ok(()))?;
                (known, passed)
            }
            None => self.archive(opened.reader)?,
        };
        if blob.stored.is_some_and(|(digest, _)| digest != passed.stored) {
            return wrong("is stored with other bytes than the image says");
        }
        if passed.plain != blob.plain {
            return wrong("has other contents than the image says");
        }
        Ok(layer)
    }

    fn archive(
        &mut self,
        reader: impl io::Read + Send,
    ) -> Result<(Layer, StreamDigests), ImageError> {
        let bytes_max = self.stream_bytes_max;
        let reader = Cancellable::new(reader, self.called_off);
        self.unpack(|consume| stream::from_reader(reader, bytes_max, consume))
    }

    fn directory(&mut self, path: &Path) -> Result<Layer, ImageError> {
        let bytes_max = self.stream_bytes_max;
        let store = File::open(&self.store.path).map_err(failed("open", &self.store.path))?;
        let store = fstat(&store).map_err(|error| ImageError::store("the store", error))?;
        let pack = |sink: &mut stream::Sink| source::pack(path, Some(&store), sink);
        self.unpack(|consume| stream::from_writer(bytes_max, pack, consume)).map(|(layer, _)| layer)
    }

    fn unpack(
        &mut self,
        pass: impl FnOnce(
            &mut dyn FnMut(&mut Pieces) -> Result<Report, ImageError>,
        ) -> Result<(Report, StreamDigests), ImageError>,
    ) -> Result<(Layer, StreamDigests), ImageError> {
        let path = self.work.join(format!("layer-{}", self.progress.layer));
        fs::create_dir(&path).map_err(failed("make", &path))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&path, mode).map_err(failed("make", &path))?;
        let target = File::open(&path).map_err(failed("open", &path))?;
        let before = self.progress;
        let limits = Limits {
            max_bytes: self.limits.max_bytes.saturating_sub(before.bytes),
            max_entries: self.limits.max_entries.saturating_sub(before.entries),
            ..self.limits
        };
        let (progress, watch, called_off) = (&mut self.progress, &mut self.watch, self.called_off);
        let (report, passed) = pass(&mut |pieces| {
            unpack_watched(pieces, &target, &limits, |report| {
                progress.entries = before.entries + report.entries;
                progress.bytes = before.bytes + report.bytes;
                if called_off.load(Ordering::Relaxed) {
                    return ControlFlow::Break(());
                }
                watch(progress)
            })
        })?;
        let layer = Layer { digest: passed.plain, report };
        match self.store.known(layer.digest) {
            Some(_) => fs::remove_dir_all(&path).map_err(failed("remove", &path))?,
            None => {
                self.new.insert(layer.digest, path);
            }
        }
        Ok((layer, passed))
    }
}
