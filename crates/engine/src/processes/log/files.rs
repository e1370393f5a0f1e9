//! Logs on the disk: a directory per process, in it files of a bounded size that are named by the
//! first offset in them. The oldest go first, and offsets stay what they are. All of it blocks:
//! never on a thread that others wait for. That a file is gone or cannot be read means that this
//! part of the log is kept no more, never anything worse.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use model::SandboxId;
use model::process::LogExtent;

use super::{Unsaved, end_of, frames, tail_of, takes};
use crate::processes::asked::{LogPiece, LogWanted};

/// Into how many files a log is cut, at most.
const FILES_MAX: u64 = 16;
const FILE_BYTES_MIN: u64 = 64 * 1024;
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// How the names of the files end.
const ENDING: &str = ".log";

/// Where logs are kept on the disk, and how much of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessLogs {
    /// The directory.
    pub directory: PathBuf,
    /// The most that is kept of one process.
    pub each_bytes: u64,
    /// The most that is kept of all processes together.
    pub all_bytes: u64,
}

/// The directory of all logs.
pub(crate) struct Shelf {
    settings: ProcessLogs,
    /// What all logs take.
    bytes: AtomicU64,
    /// Those whose processes are over.
    over: Mutex<BTreeMap<SandboxId, Over>>,
}

/// The logs of a sandbox whose processes are over.
#[derive(Default)]
struct Over {
    bytes: u64,
    /// What each takes, by number.
    logs: BTreeMap<u64, u64>,
}

impl Shelf {
    /// Makes the directory, and looks what is there.
    pub(crate) fn open(settings: ProcessLogs) -> io::Result<Self> {
        make_directory(&settings.directory)?;
        let shelf = Self { settings, bytes: AtomicU64::new(0), over: Mutex::default() };
        for (sandbox, number) in shelf.places()? {
            shelf.bytes.fetch_add(shelf.size(sandbox, number), Ordering::Relaxed);
            shelf.ended(sandbox, number);
        }
        Ok(shelf)
    }

    fn over(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Over>> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_sandbox(&self, sandbox: SandboxId) -> PathBuf {
        self.settings.directory.join(sandbox.to_string())
    }

    fn place(&self, sandbox: SandboxId, number: u64) -> PathBuf {
        self.of_sandbox(sandbox).join(number.to_string())
    }

    /// Every log that is there.
    pub(crate) fn places(&self) -> io::Result<Vec<(SandboxId, u64)>> {
        let mut found = Vec::new();
        for sandbox in fs::read_dir(&self.settings.directory)?.flatten() {
            let Some(id) = name(&sandbox).and_then(|name| name.parse().ok()) else { continue };
            let Ok(logs) = fs::read_dir(sandbox.path()) else { continue };
            let numbers = logs.flatten().filter_map(|log| name(&log)?.parse().ok());
            found.extend(numbers.map(|number| (id, number)));
        }
        Ok(found)
    }

    /// What a log takes.
    fn size(&self, sandbox: SandboxId, number: u64) -> u64 {
        let files = fs::read_dir(self.place(sandbox, number)).into_iter().flatten().flatten();
        files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
    }

    /// A log of which something is to be written.
    pub(crate) fn writer(&self, sandbox: SandboxId, number: u64) -> LogWriter {
        LogWriter { directory: self.place(sandbox, number), file: None, files: VecDeque::new() }
    }

    /// The process of a log is over: from now on it may go when there is too much.
    pub(crate) fn ended(&self, sandbox: SandboxId, number: u64) {
        let bytes = self.size(sandbox, number);
        let mut over = self.over();
        let of = over.entry(sandbox).or_default();
        of.bytes += bytes;
        of.bytes -= of.logs.insert(number, bytes).unwrap_or(0);
    }

    /// Removes a log.
    pub(crate) fn remove(&self, sandbox: SandboxId, number: u64) {
        let mut over = self.over();
        if let Some(of) = over.get_mut(&sandbox) {
            of.bytes -= of.logs.remove(&number).unwrap_or(0);
            if of.logs.is_empty() {
                over.remove(&sandbox);
            }
        }
        drop(over);
        let bytes = self.size(sandbox, number);
        if fs::remove_dir_all(self.place(sandbox, number)).is_ok() {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        // It goes with the last of them.
        let _ = fs::remove_dir(self.of_sandbox(sandbox));
    }

    /// Makes room: the sandbox that has most of it loses its oldest log, so that nobody can take
    /// those of others away.
    fn make_room(&self) {
        while self.is_full() {
            let oldest = {
                let over = self.over();
                let most = over.iter().max_by_key(|(_, of)| of.bytes);
                most.and_then(|(sandbox, of)| Some((*sandbox, *of.logs.keys().next()?)))
            };
            let Some((sandbox, number)) = oldest else { return };
            self.remove(sandbox, number);
        }
    }

    fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.settings.all_bytes
    }

    /// Reads a log from an offset on, until there are so many bytes.
    pub(crate) fn read(
        &self,
        sandbox: SandboxId,
        number: u64,
        offset: u64,
        max_bytes: u64,
    ) -> Vec<LogPiece> {
        let files = files_of(&self.place(sandbox, number));
        let from = files.partition_point(|(first, _)| *first <= offset).saturating_sub(1);
        let mut found = Vec::new();
        let mut bytes = 0;
        for (_, path) in &files[from..] {
            for piece in contents(path).pieces {
                if end_of(&piece) <= offset {
                    continue;
                }
                if bytes >= max_bytes {
                    return found;
                }
                let piece = super::cut(&piece, offset, u64::MAX);
                bytes += piece.bytes.len() as u64;
                found.push(piece);
            }
        }
        found
    }

    /// Where the last `max_bytes` of what is wanted begin.
    pub(crate) fn tail(
        &self,
        sandbox: SandboxId,
        number: u64,
        wanted: LogWanted,
        max_bytes: u64,
    ) -> Option<u64> {
        let mut left = max_bytes;
        let mut from = None;
        for (_, path) in files_of(&self.place(sandbox, number)).iter().rev() {
            let pieces = contents(path).pieces;
            let Some(offset) = tail_of(pieces.iter(), wanted, left) else { continue };
            from = Some(offset);
            let of_wanted = pieces.iter().filter(|piece| takes(wanted, piece));
            let bytes: u64 = of_wanted.map(|piece| piece.bytes.len() as u64).sum();
            left = left.saturating_sub(bytes);
            if left == 0 {
                break;
            }
        }
        from
    }

    /// What the files of a log say of it; nothing if there are none.
    pub(crate) fn extent(&self, sandbox: SandboxId, number: u64) -> Option<LogExtent> {
        let files = files_of(&self.place(sandbox, number));
        let (first, _) = files.first()?;
        let whole = files.iter().rev().map(|(_, path)| contents(path));
        let last = whole.into_iter().find(|found| !found.pieces.is_empty())?;
        Some(LogExtent { first: *first, ..last.extent })
    }
}

/// Writes one log.
pub(crate) struct LogWriter {
    directory: PathBuf,
    file: Option<fs::File>,
    /// The first offset and the size of each.
    files: VecDeque<(u64, u64)>,
}

impl LogWriter {
    /// Writes pieces, and says which is the first byte that is kept. What could not be written is
    /// lost, and the next pieces are tried again.
    pub(in crate::processes) fn append(
        &mut self,
        shelf: &Shelf,
        unsaved: &Unsaved,
    ) -> io::Result<u64> {
        let written = self.try_append(shelf, unsaved);
        if written.is_err() {
            // What is in the middle of a piece is not gone on with.
            self.file = None;
        }
        written
    }

    fn try_append(&mut self, shelf: &Shelf, unsaved: &Unsaved) -> io::Result<u64> {
        let Some(first) = unsaved.pieces.first() else { return Ok(self.first()) };
        let each = shelf.settings.each_bytes;
        let file_bytes = (each / FILES_MAX).clamp(FILE_BYTES_MIN, FILE_BYTES_MAX);
        if self.files.back().is_none_or(|(_, bytes)| *bytes >= file_bytes) {
            self.file = None;
        }
        let mut bytes = Vec::new();
        frames::encode(&unsaved.pieces, unsaved.stdout_bytes, &mut bytes);
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.next_file(first.offset)?,
        };
        file.write_all(&bytes)?;
        self.file = Some(file);
        if let Some((_, size)) = self.files.back_mut() {
            *size += bytes.len() as u64;
        }
        shelf.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        shelf.make_room();
        while self.files.len() > 1 && (self.bytes() > each || shelf.is_full()) {
            self.drop_oldest(shelf);
        }
        Ok(self.first())
    }

    fn next_file(&mut self, first: u64) -> io::Result<fs::File> {
        make_directory(&self.directory)?;
        let file = create(&path_of(&self.directory, first))?;
        self.files.push_back((first, 0));
        Ok(file)
    }

    fn drop_oldest(&mut self, shelf: &Shelf) {
        let Some((first, bytes)) = self.files.pop_front() else { return };
        if fs::remove_file(path_of(&self.directory, first)).is_ok() {
            shelf.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }

    fn first(&self) -> u64 {
        self.files.front().map_or(0, |(first, _)| *first)
    }
}

/// The files of a log with the first offset in each, in order.
fn files_of(directory: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let first = name(&entry)?.strip_suffix(ENDING)?.parse().ok()?;
            Some((first, entry.path()))
        })
        .collect();
    files.sort_unstable();
    files
}

fn contents(path: &Path) -> frames::Decoded {
    fs::read(path).map(|bytes| frames::decode(&Bytes::from(bytes))).unwrap_or_default()
}

fn path_of(directory: &Path, first: u64) -> PathBuf {
    directory.join(format!("{first:020}{ENDING}"))
}

fn name(entry: &fs::DirEntry) -> Option<String> {
    entry.file_name().into_string().ok()
}

/// What programs write is for nobody else's eyes.
fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn create(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}
