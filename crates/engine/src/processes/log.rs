//! What a process wrote, as far as it is in memory: the last pieces of both outputs, in the order in
//! which they came, without a gap. Whoever reads slowly holds nobody up: what is forgotten here is
//! passed over, and the offsets tell so.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use model::Wall;
use model::process::LogExtent;
use tokio::sync::Notify;

use super::asked::{LogPiece, LogWanted};

/// What is kept in memory of one process.
const RECENT_BYTES_MAX: usize = 1024 * 1024;
/// What a piece costs besides what it says.
const PIECE_BYTES: usize = 64;

/// The log of a process that runs, or ran a moment ago.
#[derive(Default)]
pub(crate) struct Log {
    state: Mutex<State>,
    /// Something was added, or it is over.
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// The last pieces, without a gap.
    recent: VecDeque<LogPiece>,
    recent_bytes: usize,
    extent: LogExtent,
    over: bool,
}

/// What [`Log::look`] finds from an offset on.
pub(super) enum Seen {
    /// The next pieces.
    Pieces(Vec<LogPiece>),
    /// Nothing yet.
    Nothing,
    /// Nothing, and nothing will come.
    Over,
}

impl Log {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what was written to one of the outputs.
    pub(super) fn add(&self, at: Wall, stderr: bool, bytes: Bytes) {
        let mut state = self.state();
        let extent = &mut state.extent;
        let offset = extent.end;
        extent.end += bytes.len() as u64;
        if stderr {
            extent.stderr_bytes += bytes.len() as u64;
        } else {
            extent.stdout_bytes += bytes.len() as u64;
        }
        state.recent_bytes += bytes.len() + PIECE_BYTES;
        state.recent.push_back(LogPiece { offset, stderr, at, bytes });
        while state.recent_bytes > RECENT_BYTES_MAX
            && state.recent.len() > 1
            && let Some(oldest) = state.recent.pop_front()
        {
            state.recent_bytes -= oldest.bytes.len() + PIECE_BYTES;
        }
        state.extent.first = state.recent.front().map_or(state.extent.end, |piece| piece.offset);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Nothing comes any more.
    pub(super) fn close(&self) {
        self.state().over = true;
        self.changed.notify_waiters();
    }

    pub(super) fn extent(&self) -> LogExtent {
        self.state().extent
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().over
    }

    /// Pieces from an offset on, of both outputs, until there are so many bytes.
    pub(super) fn look(&self, offset: u64, max_bytes: usize) -> Seen {
        let state = self.state();
        if offset >= state.extent.end {
            return if state.over { Seen::Over } else { Seen::Nothing };
        }
        let first = state.recent.partition_point(|piece| end_of(piece) <= offset);
        let mut pieces = Vec::new();
        let mut bytes = 0;
        for piece in state.recent.range(first..) {
            if bytes >= max_bytes {
                break;
            }
            let piece = cut(piece, offset, u64::MAX);
            bytes += piece.bytes.len();
            pieces.push(piece);
        }
        Seen::Pieces(pieces)
    }

    /// The offset from which on there are at most so many bytes of what is wanted.
    pub(super) fn tail(&self, wanted: LogWanted, max_bytes: u64) -> u64 {
        let state = self.state();
        tail_of(state.recent.iter(), wanted, max_bytes).unwrap_or(state.extent.end)
    }

    /// Waits until there is something after an offset, or nothing will come.
    pub(super) async fn grown(&self, offset: u64) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state();
                if state.extent.end > offset || state.over {
                    return;
                }
            }
            changed.await;
        }
    }
}

/// One past the last byte of a piece.
pub(super) fn end_of(piece: &LogPiece) -> u64 {
    piece.offset + piece.bytes.len() as u64
}

/// The part of a piece that lies between two offsets.
pub(super) fn cut(piece: &LogPiece, from: u64, to: u64) -> LogPiece {
    let begin = from.clamp(piece.offset, end_of(piece));
    let end = to.clamp(begin, end_of(piece));
    let within = |offset: u64| (offset - piece.offset) as usize;
    let bytes = piece.bytes.slice(within(begin)..within(end));
    LogPiece { offset: begin, bytes, ..*piece }
}

/// Whether a piece is of what is wanted.
pub(super) const fn takes(wanted: LogWanted, piece: &LogPiece) -> bool {
    match wanted {
        LogWanted::Both => true,
        LogWanted::Stdout => !piece.stderr,
        LogWanted::Stderr => piece.stderr,
    }
}

/// Where the last `max_bytes` of what is wanted begin; nothing if there is none of it.
pub(super) fn tail_of<'p>(
    pieces: impl DoubleEndedIterator<Item = &'p LogPiece>,
    wanted: LogWanted,
    max_bytes: u64,
) -> Option<u64> {
    let mut left = max_bytes;
    let mut from = None;
    for piece in pieces.rev().filter(|piece| takes(wanted, piece)) {
        if left == 0 {
            break;
        }
        let taken = left.min(piece.bytes.len() as u64);
        left -= taken;
        from = Some(end_of(piece) - taken);
    }
    from
}
