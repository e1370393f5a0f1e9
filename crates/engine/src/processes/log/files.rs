//! Logs on the disk: one directory per process, with files of a bounded size named by their first
//! offset. The oldest go first, and offsets do not change. All of it blocks: never call it on a
//! thread that serves requests. A file that is missing or cannot be read means that this part of
//! the log was deleted, never anything worse.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::process::LogExtent;
use model::{ProcessRecord, SandboxId};
use tokio::time::Instant;

use super::{Unsaved, end_of, frames, tail_of, takes};
use crate::processes::requests::{LogPiece, OutputSelection};

/// Into how many files a log is cut, at most.
const FILES_MAX: u64 = 16;
const FILE_BYTES_MIN: u64 = 64 * 1024;
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// How often the directory of a new file is created, if other tasks remove it meanwhile.
const MAKE_ATTEMPTS_MAX: u32 = 100;
/// How long nothing is written after a write failed.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// The suffix of the files.
const SUFFIX: &str = ".log";

/// Where logs are on the disk, and how much may be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessLogs {
    /// The directory.
    pub directory: PathBuf,
    /// The most of one process.
    pub each_bytes: u64,
    /// The most of all processes together.
    pub all_bytes: u64,
}

/// The directory of all logs.
pub(crate) struct LogDirectory {
    settings: ProcessLogs,
    usage: Mutex<LogUsage>,
}

/// The disk space of logs.
#[derive(Default)]
struct LogUsage {
    bytes: u64,
    /// By owner: the key, or the sandbox where the key is no longer known.
    of: BTreeMap<u128, Share>,
}

/// The share of one owner.
#[derive(Default)]
struct Share {
    bytes: u64,
    /// Logs of ended processes, and the size of each.
    ended: BTreeMap<(SandboxId, u64), u64>,
}

impl LogUsage {
    fn add(&mut self, whose: u128, bytes: u64) {
        self.bytes += bytes;
        self.of.entry(whose).or_default().bytes += bytes;
    }

    fn subtract(&mut self, whose: u128, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(share) = self.of.get_mut(&whose) {
            share.bytes = share.bytes.saturating_sub(bytes);
            if share.bytes == 0 && share.ended.is_empty() {
                self.of.remove(&whose);
            }
        }
    }

    /// The owner of the log of an ended process.
    fn owner(&self, place: (SandboxId, u64)) -> Option<u128> {
        let found = self.of.iter().find(|(_, share)| share.ended.contains_key(&place));
        found.map(|(whose, _)| *whose)
    }

    /// Whether an owner has more than an equal share.
    fn has_much(&self, whose: u128, all_bytes: u64) -> bool {
        let fair = all_bytes / (self.of.len() as u64).max(1);
        self.of.get(&whose).is_some_and(|share| share.bytes > fair)
    }

    /// The log to delete next: the oldest of the owner with the largest share above an equal one.
    fn next_to_go(&self, all_bytes: u64) -> Option<(SandboxId, u64)> {
        if self.bytes <= all_bytes {
            return None;
        }
        let much = self
            .of
            .iter()
            .filter(|(whose, share)| !share.ended.is_empty() && self.has_much(**whose, all_bytes));
        let (_, most) = much.max_by_key(|(_, share)| share.bytes)?;
        most.ended.keys().next().copied()
    }
}

impl LogDirectory {
    /// Creates the directory, and counts what is there.
    pub(crate) fn open(settings: ProcessLogs) -> io::Result<Self> {
        make_directory(&settings.directory)?;
        let log_directory = Self { settings, usage: Mutex::default() };
        for (sandbox, number) in log_directory.places()? {
            let bytes = log_directory.size(sandbox, number);
            let mut usage = log_directory.usage();
            usage.add(sandbox.as_u128(), bytes);
            let share = usage.of.entry(sandbox.as_u128()).or_default();
            share.ended.insert((sandbox, number), bytes);
        }
        Ok(log_directory)
    }

    fn usage(&self) -> MutexGuard<'_, LogUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The size of a log.
    fn size(&self, sandbox: SandboxId, number: u64) -> u64 {
        let files = fs::read_dir(self.place(sandbox, number)).into_iter().flatten().flatten();
        files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
    }

    /// The writer of a log.
    pub(crate) fn writer(&self, record: &ProcessRecord) -> LogWriter {
        LogWriter {
            directory: self.place(record.sandbox, record.number),
            place: (record.sandbox, record.number),
            whose: record.tenant.as_u128(),
            file: None,
            files: VecDeque::new(),
            failed_at: None,
        }
    }

    /// The process of a log has ended: from now on the log may be deleted to make room.
    pub(crate) fn ended(&self, record: &ProcessRecord) {
        let place = (record.sandbox, record.number);
        let bytes = self.size(place.0, place.1);
        let mut usage = self.usage();
        let share = usage.of.entry(record.tenant.as_u128()).or_default();
        share.ended.insert(place, bytes);
    }

    /// Removes a log.
    pub(crate) fn remove(&self, sandbox: SandboxId, number: u64) {
        let place = (sandbox, number);
        let bytes = self.size(sandbox, number);
        let removed = fs::remove_dir_all(self.place(sandbox, number)).is_ok();
        if removed {
            // The directory goes with its last log.
            let _ = fs::remove_dir(self.of_sandbox(sandbox));
        }
        let mut usage = self.usage();
        if let Some(whose) = usage.owner(place) {
            if let Some(share) = usage.of.get_mut(&whose) {
                share.ended.remove(&place);
            }
            if removed {
                usage.subtract(whose, bytes);
            }
        }
    }

    /// Makes room: the owner with the largest share loses its oldest log, so that no owner can
    /// displace the logs of others.
    fn make_room(&self) {
        loop {
            let next = self.usage().next_to_go(self.settings.all_bytes);
            let Some((sandbox, number)) = next else { return };
            self.remove(sandbox, number);
        }
    }

    /// Whether a log that is being written must get shorter.
    fn is_full_for(&self, whose: u128) -> bool {
        let usage = self.usage();
        usage.bytes > self.settings.all_bytes && usage.has_much(whose, self.settings.all_bytes)
    }

    /// Reads a log from an offset on, up to so many bytes.
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

    /// Where the last `max_bytes` of the wanted output begin.
    pub(crate) fn tail(
        &self,
        sandbox: SandboxId,
        number: u64,
        wanted: OutputSelection,
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

    /// The extent of a log by its files; none if there are none.
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
    place: (SandboxId, u64),
    whose: u128,
    file: Option<fs::File>,
    /// The first offset and the size of each file.
    files: VecDeque<(u64, u64)>,
    /// When a write last failed.
    failed_at: Option<Instant>,
}

impl LogWriter {
    /// Whether the last write failed.
    pub(in crate::processes) const fn has_failed(&self) -> bool {
        self.failed_at.is_some()
    }

    /// Writes pieces, and returns the first byte that exists. What could not be written is lost,
    /// and so is what comes within a second after that.
    pub(in crate::processes) fn append(
        &mut self,
        log_directory: &LogDirectory,
        unsaved: &Unsaved,
    ) -> io::Result<u64> {
        if self.failed_at.is_some_and(|at| at.elapsed() < FAILURE_PAUSE) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let written = self.try_append(log_directory, unsaved);
        self.failed_at = written.is_err().then(Instant::now);
        written
    }

    fn try_append(&mut self, log_directory: &LogDirectory, unsaved: &Unsaved) -> io::Result<u64> {
        let Some(first) = unsaved.pieces.first() else { return Ok(self.first()) };
        let each = log_directory.settings.each_bytes;
        let file_bytes = (each / FILES_MAX).clamp(FILE_BYTES_MIN, FILE_BYTES_MAX);
        if self.files.back().is_none_or(|(_, bytes)| *bytes >= file_bytes) {
            self.file = None;
        }
        let mut bytes = Vec::new();
        frames::encode(&unsaved.pieces, unsaved.stdout_bytes, &mut bytes);
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.next_file(log_directory, first.offset)?,
        };
        if let Err(error) = file.write_all(&bytes) {
            // No half of a piece may stay, or what follows it could not be read.
            let good = self.files.back().map_or(0, |(_, size)| *size);
            if file.set_len(good).is_ok() {
                self.file = Some(file);
            }
            return Err(error);
        }
        self.file = Some(file);
        if let Some((_, size)) = self.files.back_mut() {
            *size += bytes.len() as u64;
        }
        log_directory.usage().add(self.whose, bytes.len() as u64);
        log_directory.make_room();
        while self.files.len() > 1
            && (self.bytes() > each
                || self.files.len() as u64 > 2 * FILES_MAX
                || log_directory.is_full_for(self.whose))
        {
            self.drop_oldest(log_directory);
        }
        Ok(self.first())
    }

    fn next_file(&mut self, log_directory: &LogDirectory, first: u64) -> io::Result<fs::File> {
        if self.files.is_empty() {
            // Left by a process that had this number and was never stored.
            log_directory.remove(self.place.0, self.place.1);
        }
        let file = self.make_file(first)?;
        self.files.push_back((first, 0));
        Ok(file)
    }

    /// Creates a file and its directories. Removing the last other log of a sandbox also removes
    /// the directory of the sandbox, maybe just after it was created for this one.
    fn make_file(&self, first: u64) -> io::Result<fs::File> {
        let mut made = Err(io::ErrorKind::NotFound.into());
        for _ in 0..MAKE_ATTEMPTS_MAX {
            made = make_directory(&self.directory)
                .and_then(|()| create(&path_of(&self.directory, first)));
            match &made {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(_) | Err(_) => break,
            }
        }
        made
    }

    fn drop_oldest(&mut self, log_directory: &LogDirectory) {
        let Some((first, bytes)) = self.files.pop_front() else { return };
        if fs::remove_file(path_of(&self.directory, first)).is_ok() {
            log_directory.usage().subtract(self.whose, bytes);
        }
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }

    fn first(&self) -> u64 {
        self.files.front().map_or(0, |(first, _)| *first)
    }
}

/// The files of a log with their first offsets, in order.
fn files_of(directory: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let first = name(&entry)?.strip_suffix(SUFFIX)?.parse().ok()?;
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
    directory.join(format!("{first:020}{SUFFIX}"))
}

fn name(entry: &fs::DirEntry) -> Option<String> {
    entry.file_name().into_string().ok()
}

/// What programs write must not be readable by other users.
fn make_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn create(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u128 = 1;
    const BOB: u128 = 2;

    fn sandbox(id: u128) -> SandboxId {
        SandboxId::from_u128(id)
    }

    #[test]
    fn process_logs_of_the_largest_owner_go_first_running_or_ended() {
        let mut usage = LogUsage::default();
        usage.add(BOB, 10);
        usage.of.entry(BOB).or_default().ended.insert((sandbox(2), 1), 10);
        assert_eq!(usage.next_to_go(100), None, "there is room");
        usage.add(ALICE, 200);
        assert_eq!(
            usage.next_to_go(100),
            None,
            "all logs of the first owner are being written, and the second has little"
        );
        assert!(usage.has_much(ALICE, 100) && !usage.has_much(BOB, 100));
        usage.of.entry(ALICE).or_default().ended.insert((sandbox(1), 7), 5);
        usage.of.entry(ALICE).or_default().ended.insert((sandbox(1), 3), 5);
        assert_eq!(usage.next_to_go(100), Some((sandbox(1), 3)));
        assert_eq!(usage.owner((sandbox(2), 1)), Some(BOB));
    }

    #[test]
    fn process_log_counters_never_go_below_zero() {
        let mut usage = LogUsage::default();
        usage.add(ALICE, 10);
        usage.subtract(ALICE, 25);
        usage.subtract(BOB, 1);
        assert_eq!((usage.bytes, usage.of.len()), (0, 0));
    }

    #[test]
    fn process_log_begins_while_the_last_other_log_of_its_sandbox_is_removed() {
        let directory = std::env::temp_dir().join(format!("shoal-logs-{}", std::process::id()));
        let (each_bytes, all_bytes) = (1 << 20, 1 << 20);
        let logs = ProcessLogs { directory: directory.clone(), each_bytes, all_bytes };
        let log_directory = LogDirectory::open(logs).unwrap();
        let made = std::thread::scope(|scope| {
            let workers = [1, 2].map(|first: u64| {
                let log_directory = &log_directory;
                scope.spawn(move || {
                    (0..500).all(|_| {
                        let place = (sandbox(1), first);
                        let directory = log_directory.place(place.0, place.1);
                        let writer = LogWriter {
                            directory,
                            place,
                            whose: ALICE,
                            file: None,
                            files: VecDeque::new(),
                            failed_at: None,
                        };
                        let made = writer.make_file(0).is_ok();
                        log_directory.remove(place.0, place.1);
                        made
                    })
                })
            });
            workers.map(|worker| worker.join().unwrap())
        });
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(made, [true, true]);
    }
}
