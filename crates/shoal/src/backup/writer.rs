//! Writes a backup: to a directory, a compressed archive, or standard output. It writes beside the
//! final name and renames at the end, after a sync. A failed backup leaves nothing.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use zstd::stream::write::Encoder;

use super::manifest::{FORMAT, Listed, MANIFEST, Manifest};
use crate::failure::Failure;

/// Low, because most of the data is compressed already.
const COMPRESSION_LEVEL: i32 = 1;

type Packed = tar::Builder<Encoder<'static, Box<dyn Write + Send>>>;

/// A backup that is being written.
pub(super) struct BackupWriter {
    to: Target,
    files: Vec<Listed>,
}

enum Target {
    Directory { path: PathBuf, partial: Partial },
    File { path: PathBuf, partial: Partial, packed: Box<Packed> },
    Output { packed: Box<Packed> },
}

/// An unfinished file or directory. Dropping it removes it.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        if fs::remove_file(&self.0).is_err() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

impl BackupWriter {
    /// Opens the target. It never overwrites anything.
    pub(super) fn open(to: &Path) -> Result<Self, Failure> {
        let opened = Self::try_open(to).map_err(|error| failed(to, &error))?;
        Ok(Self { to: opened, files: Vec::new() })
    }

    fn try_open(to: &Path) -> io::Result<Target> {
        if to == Path::new("-") {
            return Ok(Target::Output { packed: packed(Box::new(io::stdout()))? });
        }
        let is_archive = to.to_string_lossy().ends_with(".tar.zst");
        let is_empty = fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_none());
        if fs::symlink_metadata(to).is_ok() && (is_archive || !is_empty) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "it exists already and is not an empty directory",
            ));
        }
        let mut beside = to.as_os_str().to_owned();
        beside.push(format!(".partial-{}", std::process::id()));
        let partial = Partial(beside.into());
        let path = to.to_owned();
        if to.to_string_lossy().ends_with(".tar.zst") {
            let options = File::options().write(true).create_new(true).mode(0o600).clone();
            let file = options.open(&partial.0)?;
            return Ok(Target::File { path, partial, packed: packed(Box::new(file))? });
        }
        for directory in ["", "archives", "seeds"] {
            DirBuilder::new().mode(0o700).create(partial.0.join(directory))?;
        }
        Ok(Target::Directory { path, partial })
    }

    /// Whether the backup has this file.
    pub(super) fn has(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.path == path)
    }

    /// Adds a file, if it exists.
    pub(super) fn put_file(&mut self, name: &str, file: &Path) -> Result<(), Failure> {
        let opened = match File::open(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened,
        };
        let put = opened.and_then(|mut opened| {
            let bytes = opened.metadata()?.len();
            self.put(name, bytes, &mut opened)
        });
        put.map_err(|error| failed(file, &error))
    }

    /// Adds a file from a reader.
    pub(super) fn put(&mut self, name: &str, bytes: u64, from: &mut dyn Read) -> io::Result<()> {
        let mut summed = HashingReader { from, digest: Sha256::new(), bytes: 0 };
        self.write(name, bytes, &mut summed)?;
        if summed.bytes != bytes {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a file ended too early"));
        }
        let sha256 = hex(&summed.digest.finalize());
        self.files.push(Listed { path: name.to_owned(), bytes, sha256 });
        Ok(())
    }

    fn write(&mut self, name: &str, bytes: u64, from: &mut dyn Read) -> io::Result<()> {
        let packed = match &mut self.to {
            Target::Directory { partial, .. } => {
                let options = File::options().write(true).create_new(true).mode(0o600).clone();
                let mut file = options.open(partial.0.join(name))?;
                io::copy(&mut from.take(bytes), &mut file)?;
                return file.sync_all();
            }
            Target::File { packed, .. } | Target::Output { packed } => packed,
        };
        let mut header = tar::Header::new_ustar();
        header.set_path(name)?;
        header.set_size(bytes);
        header.set_mode(0o600);
        header.set_cksum();
        packed.append(&header, from.take(bytes))
    }

    /// The list of what is in it.
    pub(super) fn manifest(&self, node_key: bool, sessions: u64) -> Manifest {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Manifest { format: FORMAT, version, node_key, sessions, files: self.files.clone() }
    }

    /// It is whole. Says how long the file is, if it is one.
    pub(super) fn finish(mut self, manifest: &Manifest) -> Result<Option<u64>, Failure> {
        let text = serde_json::to_vec_pretty(manifest)
            .map_err(|error| Failure::new("cannot write the manifest of the backup", error))?;
        let written = self.write(MANIFEST, text.len() as u64, &mut &*text);
        written.and_then(|()| self.end()).map_err(|error| {
            Failure::new("cannot finish the backup", error)
                .remedy("check the permissions and the free space of the target")
        })
    }

    fn end(self) -> io::Result<Option<u64>> {
        let (path, partial) = match self.to {
            Target::Output { packed } => {
                packed.into_inner()?.finish()?.flush()?;
                return Ok(None);
            }
            Target::File { path, partial, packed } => {
                packed.into_inner()?.finish()?.flush()?;
                (path, partial)
            }
            Target::Directory { path, partial } => {
                // Removes an empty directory. If it is not empty by now, the rename fails.
                let _ = fs::remove_dir(&path);
                (path, partial)
            }
        };
        let made = File::open(&partial.0)?;
        made.sync_all()?;
        let about = made.metadata()?;
        rename_new(&partial.0, &path)?;
        Ok(about.is_file().then_some(about.len()))
    }
}

/// Renames, unless the new name exists.
pub(super) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?;
    let above = to.parent().filter(|above| !above.as_os_str().is_empty());
    File::open(above.unwrap_or(Path::new(".")))?.sync_all()
}

fn packed(to: Box<dyn Write + Send>) -> io::Result<Box<Packed>> {
    let mut encoder = Encoder::new(to, COMPRESSION_LEVEL)?;
    encoder.include_checksum(true)?;
    Ok(Box::new(tar::Builder::new(encoder)))
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("cannot back up to or from {}", path.display()), error)
        .remedy("choose a name that does not exist, with enough space, or run it with sudo")
        .usage()
}

/// Hashes and counts what is read through it.
pub(crate) struct HashingReader<'r> {
    pub(crate) from: &'r mut dyn Read,
    pub(crate) digest: Sha256,
    pub(crate) bytes: u64,
}

impl Read for HashingReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.digest.update(&buffer[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
