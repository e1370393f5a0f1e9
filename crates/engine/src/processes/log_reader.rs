//! Reads logs: a page, or everything as it comes, from memory, disk or store, wherever it is. A
//! slow reader misses bytes that were deleted, and sees that from the offsets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::{ProcessRecord, Refusal};
use tokio::time::timeout;

use super::live::Live;
use super::log::files::LogDirectory;
use super::log::{Seen, cut, end_of, frames, tail_of, takes};
use super::log_writer;
use super::requests::{LogPage, LogPiece, LogQuery, OutputSelection};
use super::table::Entry;
use crate::core::{Core, unavailable};

/// The largest page.
const PAGE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// How much is read at once.
const TAKEN_BYTES: usize = 1024 * 1024;
/// How long unsaved output may take to reach the disk.
const DISK_PATIENCE: Duration = Duration::from_secs(5);

/// Where a log is.
enum Source {
    /// In memory, and earlier bytes on the disk.
    Live(Arc<Live>),
    /// On the disk alone.
    Disk(Arc<ProcessRecord>),
    /// Stored with the record: it was small.
    Here(Vec<LogPiece>),
}

/// What comes next.
enum Next {
    Pieces(Vec<LogPiece>),
    Nothing,
    Ended,
}

/// Reads one log.
struct Reader {
    core: Arc<Core>,
    source: Source,
}

impl Reader {
    async fn of(core: &Arc<Core>, entry: Entry) -> Result<Self, Refusal> {
        let core = Arc::clone(core);
        let record = match entry {
            Entry::Live(live) => return Ok(Self { core, source: Source::Live(live) }),
            Entry::Ended(record) => record,
        };
        let stored = core.store.process_log(record.sandbox, record.number).await;
        let stored = stored.map_err(|error| unavailable(&error.to_string()))?;
        let source = match stored {
            Some(bytes) => Source::Here(frames::decode(&Bytes::from(bytes)).pieces),
            None => Source::Disk(record),
        };
        Ok(Self { core, source })
    }

    /// Pieces from an offset on.
    async fn next(&self, offset: u64) -> Next {
        let read = match &self.source {
            Source::Here(pieces) => {
                let after = pieces.iter().filter(|piece| end_of(piece) > offset);
                after.map(|piece| cut(piece, offset, u64::MAX)).collect()
            }
            Source::Disk(record) => self.read_back(record, offset).await,
            Source::Live(live) => match live.log.look(offset, TAKEN_BYTES) {
                Seen::Pieces(pieces) => return Next::Pieces(pieces),
                Seen::Nothing => return Next::Nothing,
                Seen::Ended => return Next::Ended,
                Seen::OnDisk => {
                    let found = self.read_back(&live.record(), offset).await;
                    if !found.is_empty() {
                        return Next::Pieces(found);
                    }
                    // The disk no longer has it: what is in memory comes next.
                    return match live.log.look(live.log.first_in_memory(), TAKEN_BYTES) {
                        Seen::Pieces(pieces) => Next::Pieces(pieces),
                        Seen::OnDisk | Seen::Nothing => Next::Nothing,
                        Seen::Ended => Next::Ended,
                    };
                }
            },
        };
        if read.is_empty() { Next::Ended } else { Next::Pieces(read) }
    }

    async fn read_back(&self, record: &ProcessRecord, offset: u64) -> Vec<LogPiece> {
        let (sandbox, number) = (record.sandbox, record.number);
        self.on_disk(move |log_directory| {
            log_directory.read(sandbox, number, offset, TAKEN_BYTES as u64)
        })
        .await
    }

    /// Asks the disk. What the disk cannot read counts as deleted.
    async fn on_disk<T: Default + Send + 'static>(
        &self,
        ask: impl FnOnce(&LogDirectory) -> T + Send + 'static,
    ) -> T {
        match self.core.processes.shared_log_directory() {
            Some(log_directory) => {
                tasks::spawn_blocking(move || ask(&log_directory)).await.unwrap_or_default()
            }
            None => T::default(),
        }
    }

    /// Where the last bytes of the wanted output begin.
    async fn tail(&self, wanted: OutputSelection, max_bytes: u64) -> u64 {
        let record = match &self.source {
            Source::Here(pieces) => {
                let end = pieces.last().map_or(0, end_of);
                return tail_of(pieces.iter(), wanted, max_bytes).unwrap_or(end);
            }
            Source::Live(live) => {
                if let Some(offset) = live.log.tail(wanted, max_bytes) {
                    return offset;
                }
                // Then all of it is on the disk.
                let _ = timeout(DISK_PATIENCE, log_writer::save_all(&self.core, live)).await;
                live.record()
            }
            Source::Disk(record) => ProcessRecord::clone(record),
        };
        let (sandbox, number) = (record.sandbox, record.number);
        let found = self
            .on_disk(move |log_directory| log_directory.tail(sandbox, number, wanted, max_bytes));
        found.await.unwrap_or(record.log.end)
    }

    /// The first byte that exists, one past the last, and whether more may come.
    async fn extent(&self) -> (u64, u64, bool) {
        match &self.source {
            Source::Live(live) => {
                let over = live.log.has_ended();
                let extent = live.log.extent();
                (extent.first, extent.end, over)
            }
            Source::Here(pieces) => {
                let first = pieces.first().map_or(0, |piece| piece.offset);
                (first, pieces.last().map_or(0, end_of), true)
            }
            Source::Disk(record) => {
                let (sandbox, number) = (record.sandbox, record.number);
                let found =
                    self.on_disk(move |log_directory| log_directory.extent(sandbox, number)).await;
                let kept = found.map_or((record.log.end, record.log.end), |found| {
                    (found.first, found.end.max(record.log.end))
                });
                (kept.0, kept.1, true)
            }
        }
    }
}

/// A page of a log.
pub(super) async fn page(
    core: &Arc<Core>,
    entry: Entry,
    query: LogQuery,
) -> Result<LogPage, Refusal> {
    let reader = Reader::of(core, entry).await?;
    let max_bytes = query.max_bytes.min(PAGE_BYTES_MAX);
    let (first, _, over) = reader.extent().await;
    let from = match query.offset {
        Some(offset) => offset,
        None => reader.tail(query.wanted, max_bytes).await,
    };
    let mut page = LogPage { next_offset: from, first, over, ..LogPage::default() };
    let mut left = max_bytes;
    'full: while let Next::Pieces(pieces) = reader.next(page.next_offset).await {
        for piece in pieces {
            if !takes(query.wanted, &piece) {
                page.next_offset = end_of(&piece);
                continue;
            }
            if left == 0 {
                break 'full;
            }
            let piece = cut(&piece, piece.offset, piece.offset.saturating_add(left));
            left -= piece.bytes.len() as u64;
            page.next_offset = end_of(&piece);
            page.pieces.push(piece);
        }
    }
    page.more = page.next_offset < reader.extent().await.1;
    Ok(page)
}

/// A followed log. Dropping it ends the following; the process runs on.
pub struct LogFollow {
    reader: Reader,
    wanted: OutputSelection,
    next: u64,
    taken: VecDeque<LogPiece>,
}

impl LogFollow {
    pub(super) async fn new(
        core: &Arc<Core>,
        entry: Entry,
        wanted: OutputSelection,
        offset: u64,
    ) -> Result<Self, Refusal> {
        let reader = Reader::of(core, entry).await?;
        if let Source::Live(live) = &reader.source {
            live.log.followed(true);
        }
        Ok(Self { reader, wanted, next: offset, taken: VecDeque::new() })
    }

    /// The next piece; none when the process has ended and everything was returned. A piece that
    /// begins past the end of the one before means that the bytes between were deleted, or belong
    /// to the other output. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<LogPiece>, Refusal> {
        loop {
            while let Some(piece) = self.taken.pop_front() {
                self.next = end_of(&piece);
                if takes(self.wanted, &piece) {
                    return Ok(Some(piece));
                }
            }
            match self.reader.next(self.next).await {
                Next::Pieces(pieces) => self.taken = pieces.into(),
                Next::Ended => return Ok(None),
                Next::Nothing => {
                    if let Source::Live(live) = &self.reader.source {
                        live.log.grown(self.next).await;
                    }
                }
            }
        }
    }
}

impl Drop for LogFollow {
    fn drop(&mut self) {
        if let Source::Live(live) = &self.reader.source {
            live.log.followed(false);
        }
    }
}
