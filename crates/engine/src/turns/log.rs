//! The pieces of a turn in progress. Followers see what the harness says at once; the store follows
//! behind, by at most [`PIECES_BEHIND_MAX`] pieces, and a harness that is further ahead waits for
//! it. What the kernel decided about the turn is committed with that decision, and followers see it
//! only after the commit. Stored pieces may be dropped here. A log is closed once, by the decision
//! that ends its turn; nothing is added after that.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::lifecycle::TurnOutcome;
use model::turn::PIECES_BEHIND_MAX;
use model::{TurnChange, TurnEnd, TurnId, TurnPiece, Wall};
use tokio::sync::Notify;

/// Stored pieces that stay in memory, so that followers need not read them back.
const RECENT_BYTES_MAX: usize = 128 * 1024;
/// How far a turn may be ahead of the store.
const BEHIND_BYTES_MAX: usize = 1024 * 1024;
/// The most that is kept of one turn. Later pieces are dropped, and one piece says so.
pub(crate) const TURN_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The memory of a piece besides its data.
const PIECE_BYTES: usize = 64;

/// The pieces of a turn.
pub(crate) struct TurnLog {
    turn: TurnId,
    log: Mutex<Log>,
    /// A piece was added or stored, or the turn has ended.
    pub(crate) changed: Notify,
}

#[derive(Default)]
struct Log {
    last_seq: u64,
    /// The last pieces, without a gap.
    recent: VecDeque<TurnPiece>,
    recent_bytes: usize,
    /// All pieces up to this number are stored.
    stored_seq: u64,
    /// Of `recent`, those up to this number are stored or being stored.
    sent_seq: u64,
    saving: bool,
    /// The numbers of pieces by decisions that are not committed yet. Nothing from the first of
    /// them on is shown.
    unwritten: VecDeque<u64>,
    behind_bytes: usize,
    given_bytes: usize,
    cut: bool,
    result: Option<Arc<str>>,
    error: Option<Arc<str>>,
    closed: bool,
    /// The last piece, once it may be shown.
    end: Option<TurnPiece>,
}

/// What [`TurnLog::look`] finds after a number.
pub(crate) enum Seen {
    /// The next piece.
    Piece(TurnPiece),
    /// The next piece is in the store by now.
    Stored,
    /// Nothing yet.
    Nothing,
    /// The turn has ended, and this was its end.
    Ended(TurnPiece),
}

impl TurnLog {
    pub(crate) fn new(turn: TurnId) -> Self {
        Self { turn, log: Mutex::default(), changed: Notify::new() }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether so much is not stored yet that the harness must wait.
    fn is_ahead(&self) -> bool {
        let log = self.log();
        !log.closed
            && (log.last_seq - log.stored_seq >= PIECES_BEHIND_MAX / 2
                || log.behind_bytes >= BEHIND_BYTES_MAX)
    }

    /// Waits until there is room for more.
    pub(crate) async fn room(&self) {
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

    /// Adds a piece and shows it; false if the turn has ended. When a turn has said too much, the
    /// rest is dropped, except pieces with `counts` false.
    pub(crate) fn add(&self, at: Wall, name: &str, data: Arc<str>, counts: bool) -> bool {
        let mut log = self.log();
        if log.closed || counts && log.cut {
            return !log.closed;
        }
        if counts && log.given_bytes + data.len() + PIECE_BYTES > TURN_BYTES_MAX {
            log.cut = true;
            let data = format!(
                r#"{{"code":"output_truncated","message":"the turn said more than {TURN_BYTES_MAX} bytes; the rest is dropped"}}"#
            );
            log.push(at, "error", data.into());
        } else {
            log.push(at, name, data);
        }
        drop(log);
        self.changed.notify_waiters();
        true
    }

    /// Adds what the kernel decided about the turn: returns what is committed with that decision,
    /// and the number for [`Self::written`] after it. Nothing if the turn has ended.
    pub(crate) fn decided(
        &self,
        at: Wall,
        name: &str,
        data: Arc<str>,
    ) -> Option<(TurnChange, u64)> {
        let mut log = self.log();
        if log.closed {
            return None;
        }
        log.push(at, name, data);
        let last = log.last_seq;
        log.unwritten.push_back(last);
        self.unsaved(&mut log)
    }

    /// The decision of a piece is committed: the piece is shown from now on.
    pub(crate) fn written(&self, seq: u64) {
        let mut log = self.log();
        while log.unwritten.front().is_some_and(|first| *first <= seq) {
            log.unwritten.pop_front();
        }
        log.stored_seq = log.stored_seq.max(seq);
        log.forget_stored();
        drop(log);
        self.changed.notify_waiters();
    }

    /// The result of the turn.
    pub(crate) fn set_result(&self, result: Arc<str>) {
        self.log().result = Some(result);
    }

    /// The error of the turn, as JSON.
    pub(crate) fn set_error(&self, error: Arc<str>) {
        self.log().error.get_or_insert(error);
    }

    /// What to store next, if nothing is being stored at the moment.
    pub(crate) fn take_unsaved(&self) -> Option<(TurnChange, u64)> {
        let mut log = self.log();
        if log.saving || log.closed {
            return None;
        }
        let taken = self.unsaved(&mut log)?;
        log.saving = true;
        Some(taken)
    }

    fn unsaved(&self, log: &mut Log) -> Option<(TurnChange, u64)> {
        let (sent, last) = (log.sent_seq, log.last_seq);
        if sent == last {
            return None;
        }
        let pieces: Vec<_> = log.recent.iter().filter(|piece| piece.seq > sent).cloned().collect();
        log.sent_seq = last;
        Some((TurnChange::Pieces { turn: self.turn, pieces }, last))
    }

    /// Everything up to this number is stored.
    pub(crate) fn stored(&self, seq: u64) {
        let mut log = self.log();
        log.saving = false;
        log.stored_seq = log.stored_seq.max(seq);
        log.forget_stored();
        drop(log);
        self.changed.notify_waiters();
    }

    /// The decision that ends the turn: returns what is committed with it. Nothing is added after
    /// it.
    pub(crate) fn close(&self, at: Wall, outcome: TurnOutcome) -> Vec<TurnChange> {
        let mut log = self.log();
        log.closed = true;
        let pieces = self.unsaved(&mut log).map(|(change, _)| change);
        let end = TurnEnd {
            at,
            outcome,
            seq: log.last_seq + 1,
            result: log.result.clone(),
            error: log.error.clone(),
        };
        drop(log);
        self.changed.notify_waiters();
        pieces.into_iter().chain([TurnChange::Ended { turn: self.turn, end }]).collect()
    }

    /// The end is committed: it may be shown.
    pub(crate) fn ended(&self, end: TurnPiece) {
        let mut log = self.log();
        log.stored_seq = log.last_seq;
        log.end = Some(end);
        log.forget_stored();
        drop(log);
        self.changed.notify_waiters();
    }

    /// Waits until the turn has ended, whether or not followers see it yet.
    pub(crate) async fn closed(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.log().closed {
                return;
            }
            changed.await;
        }
    }

    /// The next piece after a number.
    pub(crate) fn look(&self, after: u64) -> Seen {
        let log = self.log();
        if after >= log.shown_seq() {
            return log.end.clone().map_or(Seen::Nothing, Seen::Ended);
        }
        let first = log.recent.front().map_or(u64::MAX, |piece| piece.seq);
        match after.checked_sub(first.saturating_sub(1)) {
            Some(index) if first != u64::MAX => log
                .recent
                .get(index as usize)
                .map_or(Seen::Stored, |piece| Seen::Piece(piece.clone())),
            Some(_) | None => Seen::Stored,
        }
    }
}

impl Log {
    /// The last piece that may be shown.
    fn shown_seq(&self) -> u64 {
        self.unwritten.front().map_or(self.last_seq, |first| first - 1)
    }

    fn push(&mut self, at: Wall, name: &str, data: Arc<str>) {
        self.last_seq += 1;
        let bytes = data.len() + PIECE_BYTES;
        self.given_bytes += bytes;
        self.behind_bytes += bytes;
        self.recent_bytes += bytes;
        self.recent.push_back(TurnPiece { seq: self.last_seq, at, name: name.into(), data });
    }

    fn forget_stored(&mut self) {
        let stored = self.stored_seq;
        let behind = self.recent.iter().filter(|piece| piece.seq > stored);
        self.behind_bytes = behind.map(|piece| piece.data.len() + PIECE_BYTES).sum();
        while self.recent_bytes > RECENT_BYTES_MAX
            && let Some(oldest) = self.recent.front()
            && oldest.seq <= stored
        {
            self.recent_bytes -= oldest.data.len() + PIECE_BYTES;
            self.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Arc<TurnLog> {
        Arc::new(TurnLog::new(TurnId::NIL))
    }

    fn seqs(change: &TurnChange) -> Vec<u64> {
        match change {
            TurnChange::Pieces { pieces, .. } => pieces.iter().map(|piece| piece.seq).collect(),
            TurnChange::Put(_)
            | TurnChange::Started { .. }
            | TurnChange::Ended { .. }
            | TurnChange::Forked { .. } => panic!("{change:?}"),
        }
    }

    fn seen(live: &TurnLog, after: u64) -> &'static str {
        match live.look(after) {
            Seen::Piece(piece) => {
                assert_eq!(piece.seq, after + 1);
                "piece"
            }
            Seen::Stored => "stored",
            Seen::Nothing => "nothing",
            Seen::Ended(_) => "ended",
        }
    }

    #[test]
    fn turn_pieces_are_shown_at_once_and_each_is_stored_once() {
        let live = live();
        assert_eq!(seen(&live, 0), "nothing");
        assert!(live.add(Wall(1), "output", "1".into(), true));
        assert_eq!(seen(&live, 0), "piece");
        let (first, upto) = live.take_unsaved().unwrap();
        assert_eq!((seqs(&first), upto), (vec![1], 1));
        assert!(live.add(Wall(1), "output", "2".into(), true));
        assert!(live.take_unsaved().is_none(), "one batch at a time");
        live.stored(1);
        let (second, upto) = live.take_unsaved().unwrap();
        assert_eq!((seqs(&second), upto), (vec![2], 2));
        assert!(live.add(Wall(1), "result", "3".into(), false));
        live.set_result("3".into());
        let ends = live.close(Wall(2), TurnOutcome::Completed);
        assert_eq!(seqs(&ends[0]), [3]);
        let TurnChange::Ended { end, .. } = &ends[1] else { panic!("{ends:?}") };
        assert_eq!((end.seq, end.result.as_deref()), (4, Some("3")));
        assert!(!live.add(Wall(3), "output", "late".into(), true), "nothing after the end");
        assert_eq!(seen(&live, 3), "nothing", "an end is shown when it is stored");
        live.ended(TurnPiece { seq: 4, at: Wall(2), name: "turn_ended".into(), data: "".into() });
        assert_eq!((seen(&live, 0), seen(&live, 3)), ("piece", "ended"));
    }

    #[test]
    fn turn_decision_is_shown_after_its_commit_also_if_the_turn_has_ended() {
        let live = live();
        let (active, first) = live.decided(Wall(1), "sandbox_active", "{}".into()).unwrap();
        let (started, second) = live.decided(Wall(1), "turn_started", "{}".into()).unwrap();
        assert_eq!((seqs(&active), seqs(&started)), (vec![1], vec![2]));
        assert!(live.take_unsaved().is_none(), "both are committed with their decisions");
        assert_eq!(seen(&live, 0), "nothing");
        live.written(first);
        assert_eq!((seen(&live, 0), seen(&live, 1)), ("piece", "nothing"));
        let ends = live.close(Wall(2), TurnOutcome::SandboxCrashed);
        let TurnChange::Ended { end, .. } = &ends[0] else { panic!("{ends:?}") };
        assert_eq!((ends.len(), end.seq), (1, 3));
        assert!(
            live.decided(Wall(2), "sandbox_active", "{}".into()).is_none(),
            "the turn has ended"
        );
        live.written(second);
        assert_eq!((seen(&live, 1), seen(&live, 2)), ("piece", "nothing"));
        live.ended(TurnPiece { seq: 3, at: Wall(2), name: "turn_ended".into(), data: "".into() });
        assert_eq!((seen(&live, 1), seen(&live, 2)), ("piece", "ended"));
    }

    #[test]
    fn turn_log_drops_stored_pieces_when_they_are_many_and_no_others() {
        let live = live();
        let long: Arc<str> = "x".repeat(1000).into();
        for _ in 0..400 {
            assert!(live.add(Wall(1), "output", Arc::clone(&long), true));
        }
        assert_eq!(seen(&live, 0), "piece", "nothing is stored yet");
        let (_, upto) = live.take_unsaved().unwrap();
        live.stored(upto);
        assert_eq!((seen(&live, 0), seen(&live, 399)), ("stored", "piece"));
        let recent = live.log().recent_bytes;
        assert!(recent <= RECENT_BYTES_MAX, "{recent}");
    }

    #[test]
    fn turn_output_that_is_too_large_is_cut_and_reported_once() {
        let live = live();
        let long: Arc<str> = "x".repeat(TURN_BYTES_MAX / 4).into();
        for _ in 0..10 {
            assert!(live.add(Wall(1), "output", Arc::clone(&long), true));
        }
        assert!(live.add(Wall(1), "result", "{}".into(), false));
        let names: Vec<_> = live.log().recent.iter().map(|piece| piece.name.to_string()).collect();
        assert_eq!(names, ["output", "output", "output", "error", "result"]);
    }

    #[tokio::test]
    async fn turn_log_makes_the_harness_wait_while_the_store_is_far_behind() {
        let live = live();
        for _ in 0..PIECES_BEHIND_MAX / 2 {
            live.room().await;
            assert!(live.add(Wall(1), "output", "1".into(), true));
        }
        assert!(live.is_ahead());
        let (_, upto) = live.take_unsaved().unwrap();
        let waits = tokio::spawn({
            let live = Arc::clone(&live);
            async move { live.room().await }
        });
        tokio::task::yield_now().await;
        live.stored(upto);
        waits.await.unwrap();
    }
}
