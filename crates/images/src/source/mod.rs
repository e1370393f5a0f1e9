//! Sources of images, and their kinds. A source is recognised by its contents, never by its name.

mod archive;
mod config;
mod directory;
mod docker;
mod files;
mod oci;

use std::fs::File;
use std::io::{Cursor, Read, Seek as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tar_stream::{BLOCK, Bounds, Entries};

use crate::digest::Digest;
use crate::error::{ImageError, ImageErrorCode};
use crate::stream::Compression;
pub use config::ImageConfig;
pub(crate) use config::architecture_here;
pub(crate) use directory::pack;
pub use directory::write_archive;
pub(crate) use files::Blob;
use files::Files;

/// How many bytes are read to recognise a source.
const BEGIN_BYTES: u64 = 64 << 10;

/// Where an image comes from.
pub enum Source<'a> {
    /// A directory, or a file.
    Path(PathBuf),
    /// A stream of bytes.
    Stream(Box<dyn Read + Send + 'a>),
}

impl std::fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => f.debug_tuple("Path").field(path).finish(),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// The kind of a source.
pub(crate) enum SourceKind<'a> {
    /// The only layer of an image, as an archive.
    Archive(Box<dyn Read + Send + 'a>),
    /// The only layer of an image, as a directory.
    Directory(PathBuf),
    /// An image with a description.
    Image(Described),
}

/// An image with a description.
pub(crate) struct Described {
    pub(crate) config: ImageConfig,
    /// Lowest first.
    pub(crate) layers: Vec<LayerBlob>,
    files: Files,
}

/// A layer in a source, and its expected digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LayerBlob {
    path: String,
    /// The stored bytes.
    pub(crate) stored: Option<(Digest, Option<u64>)>,
    /// The decompressed bytes.
    pub(crate) plain: Digest,
}

impl Described {
    pub(crate) fn open(&self, layer: &LayerBlob) -> Result<Blob<'_>, ImageError> {
        self.files.require(&layer.path)
    }
}

/// How to read a source.
pub(crate) struct SourceOptions<'a> {
    /// Which of several images.
    pub(crate) reference: Option<&'a str>,
    /// The most bytes to spool of a stream that cannot be read in order.
    pub(crate) spool_bytes_max: u64,
    /// The directory for them.
    pub(crate) spool_in: &'a Path,
    /// Set when the import is cancelled.
    pub(crate) called_off: &'a Arc<AtomicBool>,
}

/// Recognises a source.
pub(crate) fn find<'a>(
    source: Source<'a>,
    wanted: &SourceOptions<'_>,
) -> Result<SourceKind<'a>, ImageError> {
    match source {
        Source::Stream(stream) => of_stream(stream, wanted),
        Source::Path(path) => {
            let shown = path.display().to_string();
            let failed = |error| {
                let cause = format!("cannot open {shown}: {error}");
                ImageError::new(ImageErrorCode::SourceUnreadable, cause)
            };
            let file = File::open(&path).map_err(failed)?;
            let kind = file.metadata().map_err(failed)?.file_type();
            if kind.is_dir() {
                return of_directory(path, file, wanted);
            }
            if kind.is_file() { of_file(file, wanted) } else { of_stream(Box::new(file), wanted) }
        }
    }
}

fn of_directory<'a>(
    path: PathBuf,
    directory: File,
    wanted: &SourceOptions<'_>,
) -> Result<SourceKind<'a>, ImageError> {
    let files = Files::Directory(directory.into());
    match described(files, wanted)? {
        Ok(image) => Ok(SourceKind::Image(image)),
        Err(_) => Ok(SourceKind::Directory(path)),
    }
}

fn of_file<'a>(mut file: File, wanted: &SourceOptions<'_>) -> Result<SourceKind<'a>, ImageError> {
    let failed = |error| ImageError::read("cannot read the archive", error);
    let begin = begin_of(&mut file)?;
    file.rewind().map_err(failed)?;
    if Compression::of(&begin)? != Compression::None {
        return of_begun(begin, Box::new(file), wanted, true);
    }
    if begins_like_an_image(&begin)? || archive::describes_an_image(&file) {
        return of_seekable(file, wanted);
    }
    file.rewind().map_err(failed)?;
    Ok(SourceKind::Archive(Box::new(file)))
}

fn of_seekable<'a>(file: File, wanted: &SourceOptions<'_>) -> Result<SourceKind<'a>, ImageError> {
    match described(archive::index(file)?, wanted)? {
        Ok(image) => Ok(SourceKind::Image(image)),
        Err(Files::Archive { file, .. }) => {
            Ok(SourceKind::Archive(Box::new(files::Part::whole(file))))
        }
        Err(Files::Directory(_)) => Err(ImageError::broken("an archive turned into a directory")),
    }
}

fn of_stream<'a>(
    mut stream: Box<dyn Read + Send + 'a>,
    wanted: &SourceOptions<'_>,
) -> Result<SourceKind<'a>, ImageError> {
    let begin = begin_of(&mut stream)?;
    of_begun(begin, stream, wanted, false)
}

/// A source that can be read once only, with its beginning already read.
fn of_begun<'a>(
    begin: Vec<u8>,
    rest: Box<dyn Read + Send + 'a>,
    wanted: &SourceOptions<'_>,
    whole: bool,
) -> Result<SourceKind<'a>, ImageError> {
    let compression = Compression::of(&begin)?;
    let mut plain = Vec::new();
    // It is cut, so it ends in an error; what comes before that is enough.
    let _ = compression.reader(begin.as_slice())?.take(BEGIN_BYTES).read_to_end(&mut plain);
    let is_image = begins_like_an_image(&plain)?;
    let all: Box<dyn Read + Send + 'a> =
        if whole { rest } else { Box::new(Cursor::new(begin).chain(rest)) };
    if !is_image {
        return Ok(SourceKind::Archive(all));
    }
    let spooled = archive::spool(compression.reader(all)?, wanted)?;
    of_seekable(spooled, wanted)
}

fn begin_of(reader: &mut impl Read) -> Result<Vec<u8>, ImageError> {
    let mut begin = Vec::new();
    let read = reader.take(BEGIN_BYTES).read_to_end(&mut begin);
    read.map_err(|error| ImageError::read("cannot read the archive", error))?;
    if begin.is_empty() {
        return Err(ImageError::new(ImageErrorCode::Unrecognised, "the source is empty"));
    }
    Ok(begin)
}

/// Whether an archive is that of an image, judged by its first name: the files of a root never have
/// such names.
fn begins_like_an_image(begin: &[u8]) -> Result<bool, ImageError> {
    let unrecognised =
        || ImageError::new(ImageErrorCode::Unrecognised, "the source is not a tar archive");
    if begin.len() < BLOCK {
        return Err(unrecognised());
    }
    let mut entries = Entries::new(begin, Bounds { headers: 16, ..Bounds::NONE });
    let mut is_first = true;
    loop {
        let entry = match entries.next_entry() {
            Ok(Some(entry)) => entry,
            Err(_) if is_first => return Err(unrecognised()),
            // Only the beginning is here.
            Ok(None) | Err(_) => return Ok(false),
        };
        is_first = false;
        let names = entry.path.split(|&byte| byte == b'/');
        let first = names.into_iter().find(|name| !name.is_empty() && *name != b".");
        let Some(first) = first else { continue };
        let is_digest = std::str::from_utf8(first).is_ok_and(is_called_by_a_digest);
        let known =
            [&b"blobs"[..], b"oci-layout", b"index.json", b"manifest.json", b"repositories"];
        return Ok(is_digest || known.contains(&first));
    }
}

/// Whether a name looks like that of a layer or a configuration.
fn is_called_by_a_digest(name: &str) -> bool {
    let name = name.strip_prefix("sha256:").unwrap_or(name);
    let kinds = [".json", ".tar", ".tar.gz"];
    let stem = kinds.iter().find_map(|kind| name.strip_suffix(kind)).unwrap_or(name);
    stem.parse::<Digest>().is_ok()
}

/// Reads the description of an image; returns the files if there is none.
fn described(
    files: Files,
    wanted: &SourceOptions<'_>,
) -> Result<Result<Described, Files>, ImageError> {
    let (config, layers) = if files.open("oci-layout")?.is_some() {
        oci::read(&files, wanted)?
    } else if files.open("manifest.json")?.is_some() && files.is_docker()? {
        docker::read(&files, wanted)?
    } else {
        return Ok(Err(files));
    };
    Ok(Ok(Described { config, layers, files }))
}
