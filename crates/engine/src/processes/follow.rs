//! Reading logs: a part of one, or all of it as it comes. Whoever reads slowly misses what is kept no
//! more, and is told so by the offsets.

use std::collections::VecDeque;
use std::sync::Arc;

use model::Refusal;

use super::asked::{LogPage, LogPiece, LogQuery, LogWanted};
use super::live::Live;
use super::log::{Seen, cut, end_of, takes};

/// The most that is told at once.
pub(super) const PAGE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// What a follower takes at once.
const TAKEN_BYTES: usize = 1024 * 1024;

/// A log that is followed. Dropped, it is over; the process runs on.
pub struct LogFollow {
    live: Arc<Live>,
    wanted: LogWanted,
    next: u64,
    taken: VecDeque<LogPiece>,
}

impl LogFollow {
    pub(super) fn new(live: Arc<Live>, wanted: LogWanted, offset: u64) -> Self {
        Self { live, wanted, next: offset, taken: VecDeque::new() }
    }

    /// The next piece; none when the process is over and everything was told. A piece that begins
    /// past the end of the one before tells that what lay between is kept no more, or was of the
    /// other output. Giving it up in the middle loses nothing.
    pub async fn next(&mut self) -> Result<Option<LogPiece>, Refusal> {
        loop {
            while let Some(piece) = self.taken.pop_front() {
                self.next = end_of(&piece);
                if takes(self.wanted, &piece) {
                    return Ok(Some(piece));
                }
            }
            match self.live.log.look(self.next, TAKEN_BYTES) {
                Seen::Pieces(pieces) => self.taken = pieces.into(),
                Seen::Nothing => self.live.log.grown(self.next).await,
                Seen::Over => return Ok(None),
            }
        }
    }
}

/// Part of a log that is in memory.
pub(super) fn page(live: &Live, query: LogQuery) -> LogPage {
    let max_bytes = query.max_bytes.min(PAGE_BYTES_MAX);
    let over = live.log.is_over();
    let extent = live.log.extent();
    let from = query.offset.unwrap_or_else(|| live.log.tail(query.wanted, max_bytes));
    let mut page = LogPage { next_offset: from, first: extent.first, over, ..LogPage::default() };
    let mut left = max_bytes;
    'full: while let Seen::Pieces(pieces) = live.log.look(page.next_offset, TAKEN_BYTES) {
        for piece in pieces {
            if !takes(query.wanted, &piece) {
                page.next_offset = end_of(&piece);
                continue;
            }
            if left == 0 {
                break 'full;
            }
            let piece = cut(&piece, piece.offset, piece.offset + left);
            left -= piece.bytes.len() as u64;
            page.next_offset = end_of(&piece);
            page.pieces.push(piece);
        }
    }
    page.more = page.next_offset < live.log.extent().end;
    page
}
