//! The output of a process that is in memory: the last pieces of both outputs, in the order in
//! which they came, without a gap. What is on the disk may be dropped here. A slow reader holds up
//! no one: deleted bytes are skipped, and the offsets show it.

pub(super) mod files;
pub(super) mod frames;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use model::Wall;
use model::process::LogExtent;
use tokio::sync::Notify;

use super::requests::{LogPiece, OutputSelection};

/// What stays in memory although it is on the disk, without and with a follower.
const TAIL_BYTES: usize = 64 * 1024;
const FOLLOWED_BYTES: usize = 1024 * 1024;
/// How much is written to the disk at once.
const SAVED_AT_ONCE: usize = 256 * 1024;
/// What may wait for the disk; a program with more waits a moment, and then loses the oldest.
const UNSAVED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// What may wait for the disk, of all logs together.
const ALL_UNSAVED_BYTES_MAX: usize = 256 * 1024 * 1024;
/// The memory of a piece besides its bytes.
const PIECE_BYTES: usize = 64;

/// The log of a process that runs, or ended a moment ago.
pub(crate) struct Log {
    state: Mutex<State>,
    /// Bytes of all logs that wait for the disk.
    all_unsaved: Arc<AtomicUsize>,
    /// A piece was added or saved, or the process has ended.
    changed: Notify,
}

struct State {
    /// Whether there is a disk for what does not stay here.
    has_disk: bool,
    /// The last pieces, without a gap.
    recent: VecDeque<LogPiece>,
    recent_bytes: usize,
    extent: LogExtent,
    /// Everything before this offset is on the disk, or lost.
    saved: u64,
    unsaved_bytes: usize,
    saving: bool,
    /// Part of it is on the disk.
    on_disk: bool,
    lost_bytes: u64,
    followers: usize,
    ended: bool,
}

/// What [`Log::look`] finds from an offset on.
pub(super) enum Seen {
    /// The next pieces.
    Pieces(Vec<LogPiece>),
    /// The next pieces are on the disk.
    OnDisk,
    /// Nothing yet.
    Nothing,
    /// Nothing, and nothing will come.
    Ended,
}

/// Pieces to save, and the length of the output before the first.
pub(super) struct Unsaved {
    pub(super) pieces: Vec<LogPiece>,
    pub(super) stdout_bytes: u64,
}

impl Log {
    pub(super) fn new(has_disk: bool, all_unsaved: Arc<AtomicUsize>) -> Self {
        let state = State {
            has_disk,
            recent: VecDeque::new(),
            recent_bytes: 0,
            extent: LogExtent::default(),
            saved: 0,
            unsaved_bytes: 0,
            saving: false,
            on_disk: false,
            lost_bytes: 0,
            followers: 0,
            ended: false,
        };
        Self { state: Mutex::new(state), all_unsaved, changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds bytes of one of the outputs. True if so much waits for the disk that it must be saved
    /// now, or the program must wait.
    pub(super) fn add(&self, at: Wall, stderr: bool, bytes: Bytes) -> bool {
        let mut state = self.state();
        let extent = &mut state.extent;
        let offset = extent.end;
        extent.end += bytes.len() as u64;
        if stderr {
            extent.stderr_bytes += bytes.len() as u64;
        } else {
            extent.stdout_bytes += bytes.len() as u64;
        }
        let cost = bytes.len() + PIECE_BYTES;
        state.recent_bytes += cost;
        state.recent.push_back(LogPiece { offset, stderr, at, bytes });
        if state.has_disk {
            state.unsaved_bytes += cost;
            self.all_unsaved.fetch_add(cost, Ordering::Relaxed);
        } else {
            state.saved = state.extent.end;
        }
        state.forget_saved();
        let due = !state.saving && state.unsaved_bytes >= SAVED_AT_ONCE || self.ahead(&state);
        drop(state);
        self.changed.notify_waiters();
        due
    }

    /// Nothing comes any more.
    pub(super) fn close(&self) {
        self.state().ended = true;
        self.changed.notify_waiters();
    }

    pub(super) fn extent(&self) -> LogExtent {
        self.state().extent
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// How many bytes could not be saved.
    pub(super) fn lost_bytes(&self) -> u64 {
        self.state().lost_bytes
    }

    /// Whether part of it is on the disk.
    pub(super) fn is_on_disk(&self) -> bool {
        self.state().on_disk
    }

    /// Whether so much waits for the disk that the program must wait.
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead(&self.state())
    }

    fn ahead(&self, state: &State) -> bool {
        state.unsaved_bytes >= UNSAVED_BYTES_MAX
            || state.unsaved_bytes >= SAVED_AT_ONCE
                && self.all_unsaved.load(Ordering::Relaxed) >= ALL_UNSAVED_BYTES_MAX
    }

    /// Whether nothing waits for the disk.
    pub(super) fn is_saved(&self) -> bool {
        let state = self.state();
        state.unsaved_bytes == 0 && !state.saving
    }

    /// So many bytes no longer wait.
    fn no_longer_waits(&self, state: &mut State, cost: usize) {
        state.unsaved_bytes -= cost;
        self.all_unsaved.fetch_sub(cost, Ordering::Relaxed);
    }

    /// Waits until some of what waits for the disk is saved.
    pub(super) async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.is_ahead() {
                return;
            }
            changed.await;
        }
    }

    /// Drops the oldest half of what waits for a slow disk. Returns how much.
    pub(super) fn lose(&self) -> u64 {
        let mut state = self.state();
        let target = state.unsaved_bytes / 2;
        let mut lost = 0;
        while state.unsaved_bytes > target
            && let Some(index) = state.first_unsaved()
        {
            let piece = &state.recent[index];
            let (bytes, end) = (piece.bytes.len(), end_of(piece));
            lost += bytes as u64;
            self.no_longer_waits(&mut state, bytes + PIECE_BYTES);
            state.saved = end;
        }
        state.lost_bytes += lost;
        state.forget_saved();
        lost
    }

    /// True for the task that saves it from now on, if there is enough; `all` also if it is little.
    pub(super) fn begin_saving(&self, all: bool) -> bool {
        let mut state = self.state();
        let enough = if all { 1 } else { SAVED_AT_ONCE };
        let begins = state.has_disk && !state.saving && state.unsaved_bytes >= enough;
        state.saving |= begins;
        begins
    }

    /// No task saves it any more.
    pub(super) fn end_saving(&self) {
        self.state().saving = false;
        self.changed.notify_waiters();
    }

    /// What to save next; nothing if it is too little.
    pub(super) fn take_unsaved(&self, all: bool) -> Option<Unsaved> {
        let state = self.state();
        let enough = if all { 1 } else { SAVED_AT_ONCE };
        let first = state.first_unsaved().filter(|_| state.unsaved_bytes >= enough);
        let first = first?;
        let mut bytes = 0;
        let pieces = state.recent.range(first..).take_while(|piece| {
            let room = bytes < SAVED_AT_ONCE;
            bytes += piece.bytes.len() + PIECE_BYTES;
            room
        });
        let pieces: Vec<LogPiece> = pieces.cloned().collect();
        let after = state.recent.range(first..).filter(|piece| !piece.stderr);
        let unsaved: u64 = after.map(|piece| piece.bytes.len() as u64).sum();
        Some(Unsaved { pieces, stdout_bytes: state.extent.stdout_bytes - unsaved })
    }

    /// What was taken is on the disk, where everything before `first` is gone; or it is lost.
    pub(super) fn saved(&self, unsaved: &Unsaved, first: Option<u64>) {
        let mut state = self.state();
        for piece in &unsaved.pieces {
            // It may have been dropped meanwhile.
            if end_of(piece) > state.saved {
                state.saved = end_of(piece);
                self.no_longer_waits(&mut state, piece.bytes.len() + PIECE_BYTES);
                if first.is_none() {
                    state.lost_bytes += piece.bytes.len() as u64;
                }
            }
        }
        if let Some(first) = first {
            state.on_disk = true;
            state.extent.first = first;
        }
        state.forget_saved();
        drop(state);
        self.changed.notify_waiters();
    }

    /// For a log that is not on the disk: the last pieces of at most so many bytes, and the length
    /// of the output before them.
    pub(super) fn last_pieces(&self, max_bytes: u64) -> Unsaved {
        let state = self.state();
        let from = tail_of(state.recent.iter(), OutputSelection::Both, max_bytes);
        let from = from.unwrap_or(state.extent.end);
        let kept = state.recent.iter().filter(|piece| end_of(piece) > from);
        let pieces: Vec<_> = kept.map(|piece| cut(piece, from, u64::MAX)).collect();
        let of_stdout = pieces.iter().filter(|piece| !piece.stderr);
        let bytes: u64 = of_stdout.map(|piece| piece.bytes.len() as u64).sum();
        Unsaved { pieces, stdout_bytes: state.extent.stdout_bytes - bytes }
    }

    /// Pieces of both outputs from an offset on, up to so many bytes.
    pub(super) fn look(&self, offset: u64, max_bytes: usize) -> Seen {
        let state = self.state();
        if offset >= state.extent.end {
            return if state.ended { Seen::Ended } else { Seen::Nothing };
        }
        let recent_first = state.recent.front().map_or(state.extent.end, |piece| piece.offset);
        if offset < recent_first && state.on_disk {
            return Seen::OnDisk;
        }
        let first = state.recent.partition_point(|piece| end_of(piece) <= offset);
        let mut bytes = 0;
        let fits = state.recent.range(first..).take_while(|piece| {
            let room = bytes < max_bytes;
            bytes += piece.bytes.len();
            room
        });
        Seen::Pieces(fits.map(|piece| cut(piece, offset, u64::MAX)).collect())
    }

    /// The first offset in memory.
    pub(super) fn first_in_memory(&self) -> u64 {
        let state = self.state();
        state.recent.front().map_or(state.extent.end, |piece| piece.offset)
    }

    /// The offset from which on there are at most so many bytes of the wanted output; none if more
    /// of it may be on the disk.
    pub(super) fn tail(&self, wanted: OutputSelection, max_bytes: u64) -> Option<u64> {
        let state = self.state();
        let of_wanted = state.recent.iter().filter(|piece| takes(wanted, piece));
        let bytes: u64 = of_wanted.map(|piece| piece.bytes.len() as u64).sum();
        let recent_first = state.recent.front().map_or(state.extent.end, |piece| piece.offset);
        if bytes < max_bytes && state.on_disk && state.extent.first < recent_first {
            return None;
        }
        Some(tail_of(state.recent.iter(), wanted, max_bytes).unwrap_or(state.extent.end))
    }

    /// Waits until there is something after an offset, or nothing will come.
    pub(super) async fn grown(&self, offset: u64) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state();
                if state.extent.end > offset || state.ended {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Waits until nothing is being saved.
    pub(super) async fn settled(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.state().saving {
                return;
            }
            changed.await;
        }
    }

    /// A follower came or went: with one, more stays in memory.
    pub(super) fn followed(&self, begins: bool) {
        let mut state = self.state();
        state.followers = if begins { state.followers + 1 } else { state.followers - 1 };
        state.forget_saved();
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let left = self.state().unsaved_bytes;
        self.all_unsaved.fetch_sub(left, Ordering::Relaxed);
    }
}

impl State {
    fn first_unsaved(&self) -> Option<usize> {
        let first = self.recent.partition_point(|piece| end_of(piece) <= self.saved);
        (first < self.recent.len()).then_some(first)
    }

    /// Drops what is on the disk, or has no disk to go to.
    fn forget_saved(&mut self) {
        let most = if self.followers > 0 || !self.has_disk { FOLLOWED_BYTES } else { TAIL_BYTES };
        while self.recent_bytes > most
            && let Some(oldest) = self.recent.front()
            && end_of(oldest) <= self.saved
            && self.recent.len() > 1
        {
            self.recent_bytes -= oldest.bytes.len() + PIECE_BYTES;
            self.recent.pop_front();
        }
        if !self.on_disk {
            self.extent.first = self.recent.front().map_or(self.extent.end, |piece| piece.offset);
        }
    }
}

/// One past the last byte of a piece.
pub(super) fn end_of(piece: &LogPiece) -> u64 {
    piece.offset + piece.bytes.len() as u64
}

/// The part of a piece between two offsets.
pub(super) fn cut(piece: &LogPiece, from: u64, to: u64) -> LogPiece {
    let begin = from.clamp(piece.offset, end_of(piece));
    let end = to.clamp(begin, end_of(piece));
    let within = |offset: u64| (offset - piece.offset) as usize;
    let bytes = piece.bytes.slice(within(begin)..within(end));
    LogPiece { offset: begin, bytes, ..*piece }
}

/// Whether a piece belongs to the wanted output.
pub(super) const fn takes(wanted: OutputSelection, piece: &LogPiece) -> bool {
    match wanted {
        OutputSelection::Both => true,
        OutputSelection::Stdout => !piece.stderr,
        OutputSelection::Stderr => piece.stderr,
    }
}

/// Where the last `max_bytes` of the wanted output begin; none if there is none of it.
pub(super) fn tail_of<'p>(
    pieces: impl DoubleEndedIterator<Item = &'p LogPiece>,
    wanted: OutputSelection,
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
