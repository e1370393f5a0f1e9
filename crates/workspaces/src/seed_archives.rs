//! Seed archives: files that new workspaces begin with, named by the hash of their contents. A seed
//! archive is built here, from files or from an untrusted archive. What is stored is always our own
//! archive: relative paths without `..`, and nothing but files, directories and links.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::SeedId;
use rustix::fs::{AtFlags, Mode, OFlags, fstat, fsync, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use tar_stream::{Bounds, Entries, Kind};
use zstd::stream::write::Encoder;

use crate::archives::{ArchiveReader, GuardedFile};
use crate::error::{During as _, WorkspaceError};
use crate::layout::names_in;
use crate::seed_archive_builder::{SeedBuilder, SeedEntry, UnfinishedFile, inside, refused, shown};
use crate::write_once_dir::WriteOnceDir;

/// The suffix of a seed archive's file name.
const ENDING: &str = ".tar.zst";

const BUFFER_BYTES: usize = 64 << 10;

const FILES_STEP: &str = "store files for workspaces";

type Writer = Encoder<'static, GuardedFile>;

/// Limits of a seed archive.
#[derive(Debug, Clone, Copy)]
pub struct SeedBounds {
    /// Bytes of all files together.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
    /// What must be left free on the disk.
    pub spared_bytes: u64,
}

/// One file of a seed archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedFile {
    /// Where, beneath the workspace.
    pub path: String,
    /// What is in it.
    pub bytes: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
}

/// Checked files of a seed archive, with its name. They are not stored yet.
pub struct NamedFiles {
    seed: SeedId,
    sorted: BTreeMap<Vec<u8>, SeedFile>,
    bounds: SeedBounds,
}

impl NamedFiles {
    /// Checks files, and computes their name.
    pub fn new(files: Vec<SeedFile>, bounds: SeedBounds) -> Result<Self, WorkspaceError> {
        let mut sorted = BTreeMap::new();
        for file in files {
            let path = inside(file.path.as_bytes()).during(FILES_STEP)?;
            if let Some(other) = sorted.insert(path, file) {
                return Err(refused(&other.path, "the path is listed twice")).during(FILES_STEP);
            }
        }
        for path in sorted.keys() {
            let above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            if above.into_iter().any(|(at, _)| sorted.contains_key(&path[..at])) {
                return Err(refused(&shown(path), "a parent of the path is a file"))
                    .during(FILES_STEP);
            }
        }
        let (seed, _) =
            write_files(SeedBuilder::begin(io::sink(), bounds), &sorted).during(FILES_STEP)?;
        Ok(Self { seed, sorted, bounds })
    }

    /// The name of the seed archive.
    pub const fn seed(&self) -> SeedId {
        self.seed
    }
}

fn write_files<W: Write>(
    mut builder: SeedBuilder<W>,
    files: &BTreeMap<Vec<u8>, SeedFile>,
) -> io::Result<(SeedId, W)> {
    for (path, file) in files {
        builder.file(path, file.mode, &file.bytes)?;
    }
    builder.end()
}

/// The seed archives of a node. Cheap to clone.
#[derive(Clone)]
pub struct Seeds {
    directory: Arc<WriteOnceDir>,
    /// The size of each on disk.
    known: Arc<Mutex<BTreeMap<SeedId, u64>>>,
}

impl fmt::Debug for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seeds").field("path", &self.directory.path()).finish_non_exhaustive()
    }
}

impl Seeds {
    /// Opens the directory of seed archives, and removes unfinished ones of an earlier run.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, WorkspaceError> {
        const STEP: &str = "open the directory of seed archives";
        let directory = WriteOnceDir::open(path.into()).during(STEP)?;
        let names = names_in(&directory.top).during(STEP)?;
        let mut known = BTreeMap::new();
        for name in &names {
            if let Some(seed) = name.strip_suffix(ENDING).and_then(|seed| seed.parse().ok()) {
                let found = statat(&directory.top, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
                known.insert(seed, found.during(STEP)?.st_size.cast_unsigned());
            }
        }
        Ok(Self { directory: Arc::new(directory), known: Arc::new(Mutex::new(known)) })
    }

    /// Whether there is one.
    pub fn has(&self, seed: SeedId) -> bool {
        self.known().contains_key(&seed)
    }

    /// All there are.
    pub fn list(&self) -> BTreeSet<SeedId> {
        self.known().keys().copied().collect()
    }

    /// What all of them take on the disk.
    pub fn bytes(&self) -> u64 {
        self.known().values().sum()
    }

    /// What one takes on the disk.
    pub fn bytes_of(&self, seed: SeedId) -> Option<u64> {
        self.known().get(&seed).copied()
    }

    /// Stores files. The same files in any order are the same seed archive.
    pub fn put_files(
        &self,
        files: Vec<SeedFile>,
        bounds: SeedBounds,
    ) -> Result<SeedId, WorkspaceError> {
        self.put(&NamedFiles::new(files, bounds)?)
    }

    /// Stores checked files.
    pub fn put(&self, files: &NamedFiles) -> Result<SeedId, WorkspaceError> {
        let (aside, encoder) = UnfinishedFile::create(&self.directory, files.bounds.spared_bytes)
            .during(FILES_STEP)?;
        let builder = SeedBuilder::begin(encoder, files.bounds);
        let ended = write_files(builder, &files.sorted).during(FILES_STEP)?;
        self.finish(&aside, ended).during(FILES_STEP)
    }

    /// Stores an untrusted archive: reads its entries and writes them to an archive of our own.
    pub fn put_archive(
        &self,
        from: impl Read,
        bounds: SeedBounds,
    ) -> Result<SeedId, WorkspaceError> {
        const STEP: &str = "store an archive for workspaces";
        let mut entries = Entries::whole(from, Bounds::NONE);
        let (aside, encoder) =
            UnfinishedFile::create(&self.directory, bounds.spared_bytes).during(STEP)?;
        let mut builder = SeedBuilder::begin(encoder, bounds);
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Some(entry) = entries.next_entry().during(STEP)? {
            let mut path = inside(&entry.path).during(STEP)?;
            if path.is_empty() && entry.kind == Kind::Directory {
                continue;
            }
            let kind = entry.kind;
            match kind {
                Kind::File if entry.sparse.is_some() => {
                    return Err(refused(&shown(&entry.path), "sparse files are not allowed"))
                        .during(STEP);
                }
                Kind::File | Kind::Symlink | Kind::Hardlink => {}
                Kind::Directory => path.push(b'/'),
                Kind::Device | Kind::Fifo | Kind::Other(_) => {
                    let why = "the entry is neither a file, a directory nor a link";
                    return Err(refused(&shown(&entry.path), why)).during(STEP);
                }
            }
            let target = match kind {
                Kind::Hardlink => inside(&entry.target).during(STEP)?,
                Kind::Symlink => entry.target.clone(),
                Kind::File | Kind::Directory | Kind::Device | Kind::Fifo | Kind::Other(_) => {
                    Vec::new()
                }
            };
            let size = if kind == Kind::File { entry.size } else { 0 };
            builder
                .entry(&SeedEntry { kind, path: &path, mode: entry.mode, size }, &target)
                .during(STEP)?;
            let mut left = size;
            while left > 0 {
                let read = entries.read(&mut buffer).during(STEP)?;
                builder.write(&buffer[..read]).during(STEP)?;
                left -= read as u64;
            }
            builder.pad(size).during(STEP)?;
        }
        self.finish(&aside, builder.end().during(STEP)?).during(STEP)
    }

    /// Reads one; none if it does not exist.
    pub fn read(&self, seed: SeedId) -> Result<Option<ArchiveReader>, WorkspaceError> {
        const STEP: &str = "open files for workspaces";
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.directory.top, name_of(seed), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => file.during(STEP)?,
        };
        Ok(Some(ArchiveReader::of(file).during(STEP)?))
    }

    /// Opens the compressed file of one, with its name; none if it does not exist. It can be read
    /// to its end also if it is removed meanwhile.
    pub fn open_file(&self, seed: SeedId) -> Result<Option<(String, File)>, WorkspaceError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.directory.top, name_of(seed), flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            file => {
                let file = file.during("open files for workspaces")?;
                Ok(Some((name_of(seed), file.into())))
            }
        }
    }

    /// Removes all but those in `named`; returns how many it removed. Just before each removal
    /// `is_wanted` is called under the lock, so that a caller that marks a seed archive as wanted
    /// and then finds it keeps it.
    pub fn remove_all_but(
        &self,
        named: &BTreeSet<SeedId>,
        is_wanted: impl Fn(SeedId) -> bool,
    ) -> Result<u32, WorkspaceError> {
        let mut removed = 0;
        for seed in self.list().difference(named) {
            let mut known = self.known();
            if is_wanted(*seed) {
                continue;
            }
            match unlinkat(&self.directory.top, name_of(*seed), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error).during("remove files for workspaces"),
            }
            known.remove(seed);
            removed += 1;
        }
        Ok(removed)
    }

    /// Completes a seed archive: it is durable and has its name when this returns.
    fn finish(&self, aside: &UnfinishedFile, ended: (SeedId, Writer)) -> io::Result<SeedId> {
        let (seed, encoder) = ended;
        let file = encoder.finish()?.file;
        fsync(&file)?;
        let bytes = fstat(&file)?.st_size.cast_unsigned();
        renameat(&self.directory.new, aside.name.as_str(), &self.directory.top, name_of(seed))?;
        fsync(&self.directory.top)?;
        self.known().insert(seed, bytes);
        Ok(seed)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<SeedId, u64>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name_of(seed: SeedId) -> String {
    format!("{seed}{ENDING}")
}
