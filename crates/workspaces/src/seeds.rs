//! Seeds: files that fresh workspaces begin with, as archives that are named by what is in them. A
//! seed is put together here, from files or from an archive of a stranger, so that what is stored
//! is always of our own making: relative paths without `..`, and nothing but files, directories
//! and links.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::SeedId;
use rustix::fs::{AtFlags, Mode, OFlags, fsync, openat, renameat, unlinkat};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use tar::EntryType;
use zstd::stream::write::Encoder;

use crate::archives::{ArchiveReader, Spared, encoder};
use crate::error::{During as _, WorkspaceError};
use crate::places::names_in;
use crate::shelf::Shelf;
use crate::tar::{Entries, Kind, Written, end, padding};
use crate::unpack::way;

/// What the name of a seed ends with.
const ENDING: &str = ".tar.zst";

const BUFFER_BYTES: usize = 64 << 10;

/// The longest path, and the longest that a link may say.
const PATH_BYTES_MAX: usize = 4095;

/// The user of everything in a seed.
const OWNER: (u32, u32) = (crate::directory::WORKSPACE_USER, crate::directory::WORKSPACE_USER);

/// How much a seed may be.
#[derive(Debug, Clone, Copy)]
pub struct SeedBounds {
    /// Bytes of all files together.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
    /// What must be left free on the disk.
    pub spared_bytes: u64,
}

/// One file of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedFile {
    /// Where, beneath the workspace.
    pub path: String,
    /// What is in it.
    pub bytes: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
}

/// The seeds of a node. Cheap to clone.
#[derive(Clone)]
pub struct Seeds {
    shelf: Arc<Shelf>,
    known: Arc<Mutex<BTreeSet<SeedId>>>,
}

impl fmt::Debug for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seeds").field("path", &self.shelf.path()).finish_non_exhaustive()
    }
}

impl Seeds {
    /// Opens the directory of seeds, and removes what an earlier run left half written.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, WorkspaceError> {
        const STEP: &str = "open the directory of seeds";
        let shelf = Shelf::open(path.into()).during(STEP)?;
        let names = names_in(&shelf.top).during(STEP)?;
        let known = names.iter().filter_map(|name| name.strip_suffix(ENDING)?.parse().ok());
        let known = Arc::new(Mutex::new(known.collect()));
        Ok(Self { shelf: Arc::new(shelf), known })
    }

    /// Whether there is one.
    pub fn has(&self, seed: SeedId) -> bool {
        self.known().contains(&seed)
    }

    /// All there are.
    pub fn list(&self) -> BTreeSet<SeedId> {
        self.known().clone()
    }

    /// Puts files together. The same files in any order are the same seed.
    pub fn put_files(
        &self,
        files: Vec<SeedFile>,
        bounds: SeedBounds,
    ) -> Result<SeedId, WorkspaceError> {
        const STEP: &str = "store files for workspaces";
        let mut sorted = BTreeMap::new();
        for file in files {
            let path = inside(file.path.as_bytes()).during(STEP)?;
            if let Some(other) = sorted.insert(path, file) {
                return Err(refused(&other.path, "it is there twice")).during(STEP);
            }
        }
        let mut sowing = Sowing::begin(&self.shelf, bounds).during(STEP)?;
        for (path, file) in &sorted {
            let size = file.bytes.len() as u64;
            let said = Said { kind: EntryType::Regular, path, mode: file.mode, size };
            sowing.entry(&said, b"").during(STEP)?;
            sowing.write(&file.bytes).during(STEP)?;
            sowing.pad(size).during(STEP)?;
        }
        self.finish(sowing).during(STEP)
    }

    /// Takes an archive apart and puts it together again.
    pub fn put_archive(
        &self,
        from: impl Read,
        bounds: SeedBounds,
    ) -> Result<SeedId, WorkspaceError> {
        const STEP: &str = "store an archive for workspaces";
        let mut entries = Entries::of(from);
        let mut sowing = Sowing::begin(&self.shelf, bounds).during(STEP)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Some(entry) = entries.next_entry().during(STEP)? {
            let mut path = inside(&entry.path).during(STEP)?;
            if path.is_empty() && entry.kind == Kind::Directory {
                continue;
            }
            let kind = match entry.kind {
                Kind::File => EntryType::Regular,
                Kind::Directory => {
                    path.push(b'/');
                    EntryType::Directory
                }
                Kind::Symlink => EntryType::Symlink,
                Kind::Hardlink => EntryType::Link,
                Kind::Fifo | Kind::Other(_) => {
                    let why = "it is neither a file, a directory nor a link";
                    return Err(refused(&shown(&entry.path), why)).during(STEP);
                }
            };
            let target = match entry.kind {
                Kind::Hardlink => inside(&entry.target).during(STEP)?,
                Kind::Symlink => entry.target.clone(),
                Kind::File | Kind::Directory | Kind::Fifo | Kind::Other(_) => Vec::new(),
            };
            let size = if entry.kind == Kind::File { entry.size } else { 0 };
            sowing
                .entry(&Said { kind, path: &path, mode: entry.mode, size }, &target)
                .during(STEP)?;
            let mut left = size;
            while left > 0 {
                let read = entries.read(&mut buffer).during(STEP)?;
                sowing.write(&buffer[..read]).during(STEP)?;
                left -= read as u64;
            }
            sowing.pad(size).during(STEP)?;
        }
        self.finish(sowing).during(STEP)
    }

    /// Reads one; that there is none is no error.
    pub fn read(&self, seed: SeedId) -> Result<Option<ArchiveReader>, WorkspaceError> {
        const STEP: &str = "open files for workspaces";
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.shelf.top, name_of(seed), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => file.during(STEP)?,
        };
        Ok(Some(ArchiveReader::of(file).during(STEP)?))
    }

    /// Removes those that nobody names; says how many there were.
    pub fn remove_all_but(&self, named: &BTreeSet<SeedId>) -> Result<u32, WorkspaceError> {
        let mut removed = 0;
        for seed in self.list().difference(named) {
            match unlinkat(&self.shelf.top, name_of(*seed), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error).during("remove files for workspaces"),
            }
            self.known().remove(seed);
            removed += 1;
        }
        Ok(removed)
    }

    /// A seed is whole: it is durable and has its name when this returns.
    fn finish(&self, mut sowing: Sowing) -> io::Result<SeedId> {
        let mut last = Vec::new();
        end(&mut last);
        sowing.write(&last)?;
        let encoder = sowing.encoder.take().ok_or_else(|| io::Error::other("it is over"))?;
        let file = encoder.finish()?.file;
        let digest: [u8; 32] = sowing.hash.clone().finalize().into();
        let seed = SeedId::from_bytes(digest);
        fsync(&file)?;
        renameat(&self.shelf.new, sowing.aside.as_str(), &self.shelf.top, name_of(seed))?;
        fsync(&self.shelf.top)?;
        self.known().insert(seed);
        Ok(seed)
    }

    fn known(&self) -> MutexGuard<'_, BTreeSet<SeedId>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is said of one entry.
struct Said<'a> {
    kind: EntryType,
    path: &'a [u8],
    mode: u32,
    size: u64,
}

/// A seed that is being put together. Dropped before its end, nothing of it stays.
struct Sowing {
    shelf: Arc<Shelf>,
    aside: String,
    encoder: Option<Encoder<'static, Spared>>,
    hash: Sha256,
    left: SeedBounds,
}

impl Sowing {
    fn begin(shelf: &Arc<Shelf>, bounds: SeedBounds) -> io::Result<Self> {
        let aside = shelf.new_name();
        let file = Spared::create(shelf, &aside, bounds.spared_bytes)?;
        let mut begun = Self {
            shelf: Arc::clone(shelf),
            aside,
            encoder: None,
            hash: Sha256::new(),
            left: bounds,
        };
        begun.encoder = Some(encoder(file)?);
        Ok(begun)
    }

    fn entry(&mut self, said: &Said<'_>, target: &[u8]) -> io::Result<()> {
        let too_many = |what: &str| {
            io::Error::new(io::ErrorKind::FileTooLarge, format!("there are too many {what}"))
        };
        let path = shown(said.path);
        if said.path.is_empty() || said.path.len() > PATH_BYTES_MAX {
            return Err(refused(&path, "no name, or one that is too long"));
        }
        if target.len() > PATH_BYTES_MAX || (said.kind == EntryType::Symlink && target.is_empty()) {
            return Err(refused(&path, "a link that says nothing, or too much"));
        }
        if [said.path, target].iter().any(|text| std::str::from_utf8(text).is_err()) {
            return Err(refused(&path, "a name that is not UTF-8"));
        }
        self.left.entries = self.left.entries.checked_sub(1).ok_or_else(|| too_many("entries"))?;
        let bytes = self.left.bytes.checked_sub(said.size);
        self.left.bytes = bytes.ok_or_else(|| too_many("bytes"))?;
        let written = Written {
            kind: said.kind,
            path: said.path,
            mode: said.mode & 0o777,
            owner: OWNER,
            size: said.size,
            modified: (0, 0),
            target,
            attributes: &[],
            comment: None,
        };
        let mut header = Vec::new();
        written.write(&mut header);
        self.write(&header)
    }

    fn pad(&mut self, size: u64) -> io::Result<()> {
        self.write(&[0; 512][..padding(size) as usize])
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        match &mut self.encoder {
            Some(encoder) => encoder.write_all(bytes),
            None => Err(io::Error::other("it is over")),
        }
    }
}

impl Drop for Sowing {
    fn drop(&mut self) {
        // One that has its name is not there any more.
        let _ = unlinkat(&self.shelf.new, self.aside.as_str(), AtFlags::empty());
    }
}

fn name_of(seed: SeedId) -> String {
    format!("{seed}{ENDING}")
}

/// A path as it is stored: relative, plain, beneath the workspace.
fn inside(path: &[u8]) -> io::Result<Vec<u8>> {
    let way = way(path).map_err(|error| refused(&shown(path), &error.to_string()))?;
    Ok(way.join(&b'/'))
}

fn shown(path: &[u8]) -> String {
    path[..path.len().min(256)].escape_ascii().to_string()
}

fn refused(path: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{path}: {why}"))
}
