//! Archives of workspaces: one file for each, named by its id. An archive is written aside and gets
//! its name when it is complete and durable. It then replaces an older one, so there is the old or
//! the new archive, and never half of one.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::WorkspaceId;
use rustix::fs::{
    AtFlags, Mode, OFlags, fstat, fstatvfs, fsync, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use zstd::stream::{read::Decoder, write::Encoder};

use crate::error::{During as _, WorkspaceError};
use crate::file_contents::copy_contents;
use crate::layout::names_in;
use crate::write_once_dir::WriteOnceDir;

/// What the name of an archive ends with.
const ENDING: &str = ".tar.zst";

/// Fast, and still much smaller than typical files.
const LEVEL: i32 = 3;

/// How many bytes are written between two checks of the free space.
const STRIDE: u64 = 8 << 20;

/// What is known of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Archived {
    /// What it takes on disk.
    pub bytes: u64,
    /// When it was made, in seconds since 1970.
    pub made_at_s: i64,
}

/// The archives of a node. Cheap to clone.
#[derive(Clone)]
pub struct Archives {
    directory: Arc<WriteOnceDir>,
    known: Arc<Mutex<BTreeMap<WorkspaceId, Archived>>>,
}

impl fmt::Debug for Archives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archives").field("path", &self.directory.path()).finish_non_exhaustive()
    }
}

impl Archives {
    /// Opens the directory of archives, and removes what an earlier run left half written.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, WorkspaceError> {
        const STEP: &str = "open the directory of archives";
        let directory = WriteOnceDir::open(path.into()).during(STEP)?;
        let mut known = BTreeMap::new();
        for name in names_in(&directory.top).during(STEP)? {
            let Some(id) = workspace_of(&name) else { continue };
            let found = statat(&directory.top, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            known.insert(id, archived(&found.during(STEP)?));
        }
        Ok(Self { directory: Arc::new(directory), known: Arc::new(Mutex::new(known)) })
    }

    /// All there are.
    pub fn list(&self) -> BTreeMap<WorkspaceId, Archived> {
        self.known().clone()
    }

    /// How many there are, and what they take together.
    pub fn count(&self) -> (usize, u64) {
        let known = self.known();
        (known.len(), known.values().map(|one| one.bytes).sum())
    }

    /// What is known of one.
    pub fn get(&self, workspace: WorkspaceId) -> Option<Archived> {
        self.known().get(&workspace).copied()
    }

    /// Begins to write one. Writing fails if less than `spared_bytes` would be left free.
    pub fn write(
        &self,
        workspace: WorkspaceId,
        spared_bytes: u64,
    ) -> Result<ArchiveWriter, WorkspaceError> {
        const STEP: &str = "begin an archive";
        let aside = self.directory.new_name();
        let file = GuardedFile::create(&self.directory, &aside, spared_bytes).during(STEP)?;
        // From here on it is removed again unless it is finished.
        let mut writer = ArchiveWriter { archives: self.clone(), workspace, aside, encoder: None };
        writer.encoder = Some(encoder(file).during(STEP)?);
        Ok(writer)
    }

    /// Reads one; none if it does not exist. Damage is reported as an error, at the end at the
    /// latest.
    pub fn read(&self, workspace: WorkspaceId) -> Result<Option<ArchiveReader>, WorkspaceError> {
        const STEP: &str = "open an archive";
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match openat(&self.directory.top, name_of(workspace), flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                // An operator may have removed it.
                self.known().remove(&workspace);
                return Ok(None);
            }
            file => file.during(STEP)?,
        };
        Ok(Some(ArchiveReader::of(file).during(STEP)?))
    }

    /// Copies one, all or nothing.
    pub fn copy(&self, from: WorkspaceId, to: WorkspaceId) -> Result<(), WorkspaceError> {
        const STEP: &str = "copy an archive";
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let source = match openat(&self.directory.top, name_of(from), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Err(WorkspaceError::gone(STEP, from)),
            source => source.during(STEP)?,
        };
        let aside = self.directory.new_name();
        let copied = (|| {
            let file = GuardedFile::create(&self.directory, &aside, 0)?.file;
            let size = fstat(&source)?.st_size.cast_unsigned();
            copy_contents(&source, &file.into(), size, &mut |_| true)?;
            let made = openat(&self.directory.new, aside.as_str(), flags, Mode::empty())?;
            self.give_name(&made, &aside, to)
        })();
        if copied.is_err() {
            let _ = unlinkat(&self.directory.new, aside.as_str(), AtFlags::empty());
        }
        copied.map(|_| ()).during(STEP)
    }

    /// Makes a file that was written aside durable, and gives it its name.
    fn give_name(
        &self,
        file: impl AsFd,
        aside: &str,
        workspace: WorkspaceId,
    ) -> io::Result<Archived> {
        fsync(&file)?;
        let archived = archived(&fstat(&file)?);
        renameat(&self.directory.new, aside, &self.directory.top, name_of(workspace))?;
        fsync(&self.directory.top)?;
        self.known().insert(workspace, archived);
        Ok(archived)
    }

    /// Removes one. Succeeds also if it does not exist.
    pub fn remove(&self, workspace: WorkspaceId) -> Result<(), WorkspaceError> {
        const STEP: &str = "remove an archive";
        match unlinkat(&self.directory.top, name_of(workspace), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error).during(STEP),
        }
        self.known().remove(&workspace);
        Ok(())
    }

    /// The name of the file of one.
    pub fn file_name(workspace: WorkspaceId) -> String {
        name_of(workspace)
    }

    /// A path for a temporary file beside those that are being written. It is removed at the next
    /// start.
    pub fn spool(&self, name: &str) -> PathBuf {
        self.directory.path().join("new").join(name)
    }

    /// The directory itself.
    pub(crate) fn top(&self) -> &OwnedFd {
        &self.directory.top
    }

    /// Forgets one that was moved away.
    pub(crate) fn forget(&self, workspace: WorkspaceId) {
        self.known().remove(&workspace);
    }

    /// Opens the compressed file of one; none if it does not exist. It can be read to its end also
    /// if it is removed meanwhile.
    pub fn open_file(&self, workspace: WorkspaceId) -> Result<Option<File>, WorkspaceError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(&self.directory.top, name_of(workspace), flags, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            file => Ok(Some(file.during("open an archive")?.into())),
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Archived>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An archive that is being written. Dropped before it is finished, nothing of it stays.
pub struct ArchiveWriter {
    archives: Archives,
    workspace: WorkspaceId,
    aside: String,
    encoder: Option<Encoder<'static, GuardedFile>>,
}

impl fmt::Debug for ArchiveWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveWriter").field("workspace", &self.workspace).finish_non_exhaustive()
    }
}

impl ArchiveWriter {
    /// Completes it: done when it is durable and has its name.
    pub fn finish(mut self) -> Result<Archived, WorkspaceError> {
        const STEP: &str = "finish an archive";
        let encoder =
            self.encoder.take().ok_or_else(|| io::Error::other("the archive is finished already"));
        let file = encoder.and_then(Encoder::finish).during(STEP)?.file;
        self.archives.give_name(&file, &self.aside, self.workspace).during(STEP)
    }
}

impl Write for ArchiveWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.encoder {
            Some(encoder) => encoder.write(bytes),
            None => Err(io::Error::other("the archive is finished already")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for ArchiveWriter {
    fn drop(&mut self) {
        // A finished file has been renamed, so this finds nothing.
        let _ = unlinkat(&self.archives.directory.new, self.aside.as_str(), AtFlags::empty());
    }
}

/// The bytes of an archive, as they were packed.
pub struct ArchiveReader {
    decoder: Decoder<'static, BufReader<File>>,
}

impl fmt::Debug for ArchiveReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveReader").finish_non_exhaustive()
    }
}

impl ArchiveReader {
    pub(crate) fn of(file: OwnedFd) -> io::Result<Self> {
        Ok(Self { decoder: Decoder::new(File::from(file))? })
    }
}

impl Read for ArchiveReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|error| match error.raw_os_error() {
            Some(_) => error,
            // An error that is not the disk's means that the archive is damaged.
            None => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
        })
    }
}

/// Compresses to a file, with a checksum that shows damage.
pub(crate) fn encoder(file: GuardedFile) -> io::Result<Encoder<'static, GuardedFile>> {
    let mut encoder = Encoder::new(file, LEVEL)?;
    encoder.include_checksum(true)?;
    Ok(encoder)
}

/// A file whose writes fail if too little of the disk would stay free.
pub(crate) struct GuardedFile {
    pub(crate) file: File,
    spared_bytes: u64,
    /// What may be written before the next check.
    sure: u64,
}

impl GuardedFile {
    pub(crate) fn create(
        directory: &WriteOnceDir,
        aside: &str,
        spared_bytes: u64,
    ) -> io::Result<Self> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&directory.new, aside, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { file: File::from(file), spared_bytes, sure: 0 })
    }
}

impl Write for GuardedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.sure < bytes.len() as u64 {
            let found = fstatvfs(&self.file)?;
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            if free < self.spared_bytes.saturating_add(STRIDE) {
                let cause = "less of the disk would stay free than is configured";
                return Err(io::Error::new(io::ErrorKind::StorageFull, cause));
            }
            self.sure = STRIDE;
        }
        let written = self.file.write(bytes)?;
        self.sure = self.sure.saturating_sub(written as u64);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

pub(crate) fn name_of(workspace: WorkspaceId) -> String {
    format!("{workspace}{ENDING}")
}

fn workspace_of(name: &str) -> Option<WorkspaceId> {
    let id: WorkspaceId = name.strip_suffix(ENDING)?.parse().ok()?;
    (name_of(id) == name).then_some(id)
}

fn archived(found: &rustix::fs::Stat) -> Archived {
    Archived { bytes: found.st_size.cast_unsigned(), made_at_s: found.st_mtime }
}
