//! Turns in progress: everything the engine has of one (`live`), its pieces (`log`), its followers
//! (`follow`), and the task that lets a harness work on it (`runner`). The kernel decides when a
//! turn begins and ends, and publishes both; this module never does either by itself.

mod follow;
mod live;
mod log;
mod runner;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernel::{Kernel, Published};
use model::lifecycle::{SessionChange, TurnOutcome};
use model::{LifecycleEvent, SessionId, TurnChange, TurnEnd, TurnId, TurnPiece, TurnStart, Wall};
use serde_json::{Value, json};

use crate::instance_ends::EndWatch;
use crate::metrics::Metrics;

pub use self::follow::TurnFollow;
pub(crate) use self::live::Live;
pub(crate) use self::runner::{begin, stop};

/// The memory that messages may take before a harness has them. Those of one key take at most half
/// of what those of others leave, so that each key finds room.
const WAITING_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Why a turn cannot be requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnRefused {
    Known,
    TooMuch,
}

/// The turns that are in progress or queued, and ended ones while a task still runs them.
#[derive(Default)]
pub(crate) struct Turns {
    all: Mutex<BTreeMap<TurnId, Arc<Live>>>,
}

/// What a decision says about turns: committed with it, and shown after that.
#[derive(Default)]
pub(crate) struct TurnUpdates {
    pub(crate) changes: Vec<TurnChange>,
    /// Pieces that are shown after the commit.
    decided: Vec<(Arc<Live>, u64)>,
    ended: Vec<(Arc<Live>, SessionId, TurnEnd)>,
    stored: Option<(Arc<Live>, u64)>,
    /// The bytes of the pieces.
    pub(crate) bytes: usize,
}

impl Turns {
    fn all(&self) -> MutexGuard<'_, BTreeMap<TurnId, Arc<Live>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a turn that is about to be requested, unless its id is known, or queued messages
    /// take too much memory.
    pub(crate) fn expect(&self, live: &Arc<Live>) -> Result<(), TurnRefused> {
        let mut all = self.all();
        if all.contains_key(&live.turn) {
            return Err(TurnRefused::Known);
        }
        let (mut own, mut of_others) = (live.waiting_bytes(), 0);
        for other in all.values() {
            let of = if other.tenant == live.tenant { &mut own } else { &mut of_others };
            *of += other.waiting_bytes();
        }
        if own > WAITING_BYTES_MAX.saturating_sub(of_others) / 2 {
            return Err(TurnRefused::TooMuch);
        }
        all.insert(live.turn, Arc::clone(live));
        Ok(())
    }

    /// Removes a turn that was refused.
    pub(crate) fn forget(&self, turn: TurnId) {
        self.all().remove(&turn);
    }

    pub(crate) fn live(&self, turn: TurnId) -> Option<Arc<Live>> {
        self.all().get(&turn).cloned()
    }

    /// The kernel gives a turn to a harness in this instance.
    pub(crate) fn enters(&self, turn: TurnId, end_watch: EndWatch) {
        if let Some(live) = self.live(turn) {
            live.enters(end_watch);
        }
    }

    /// Whether no turn is in progress.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Removes a turn of which nothing is left, but not another one that has its id by now.
    fn forget_finished(&self, live: &Arc<Live>) {
        let mut all = self.all();
        if live.is_finished() && all.get(&live.turn).is_some_and(|known| Arc::ptr_eq(known, live)) {
            all.remove(&live.turn);
        }
    }

    /// Applies the first of these events of the kernel to turns.
    pub(crate) fn apply(
        &self,
        news: &mut TurnUpdates,
        at: Wall,
        events: &[Published],
        kernel: &Kernel,
    ) {
        let Some((Published { event, .. }, later)) = events.split_first() else { return };
        match event {
            LifecycleEvent::TurnStarted { turn, sandbox_id, generation, .. } => {
                let start = TurnStart { at, sandbox: *sandbox_id, generation: *generation };
                news.changes.push(TurnChange::Started { turn: *turn, start });
                if let Some(live) = self.live(*turn) {
                    news.add_decided(live, at, event);
                }
            }
            LifecycleEvent::TurnEnded { session, turn, outcome } => {
                self.apply_end(news, at, (*session, *turn), *outcome);
            }
            LifecycleEvent::SandboxActive { session: Some(session), .. }
            | LifecycleEvent::SandboxTerminated { session: Some(session), .. } => {
                // A turn that ends in the same decision is not in progress any more.
                let turn = ended_later(*session, later).or_else(|| kernel.turn_of(*session));
                if let Some(live) = turn.and_then(|turn| self.live(turn)) {
                    news.add_decided(live, at, event);
                }
            }
            LifecycleEvent::SessionChanged { session, change: SessionChange::Forked } => {
                if let Some(from) = kernel.session(*session).and_then(|view| view.parent) {
                    news.changes.push(TurnChange::Forked { from, to: *session });
                }
            }
            LifecycleEvent::SandboxActive { session: None, .. }
            | LifecycleEvent::SandboxTerminated { session: None, .. }
            | LifecycleEvent::StateLost { .. }
            | LifecycleEvent::WorkspaceDurable { .. }
            | LifecycleEvent::SessionChanged { .. }
            | LifecycleEvent::SandboxFrozen { .. }
            | LifecycleEvent::SandboxWakefulness { .. }
            | LifecycleEvent::SandboxState { .. }
            | LifecycleEvent::PoolHealth { .. } => {}
        }
    }

    fn apply_end(
        &self,
        news: &mut TurnUpdates,
        at: Wall,
        (session, turn): (SessionId, TurnId),
        outcome: TurnOutcome,
    ) {
        let Some(live) = self.live(turn) else {
            // A turn of an earlier run, of which it is unknown how far it came.
            let end = TurnEnd { at, outcome, seq: 0, result: None, error: None };
            news.changes.push(TurnChange::Ended { turn, end });
            return;
        };
        let changes = live.log.close(at, outcome);
        if let Some(TurnChange::Ended { end, .. }) = changes.last() {
            news.ended.push((live, session, end.clone()));
        }
        news.changes.extend(changes);
    }

    /// A decision is committed: shows what it says about turns. Returns the turn whose next pieces
    /// may be stored now.
    pub(crate) fn show(&self, metrics: &Metrics, news: TurnUpdates) -> Option<Arc<Live>> {
        let mut unsaved = None;
        if let Some((live, seq)) = news.stored {
            live.log.stored(seq);
            unsaved = Some(live);
        }
        for (live, seq) in news.decided {
            live.log.written(seq);
        }
        for (live, session, end) in news.ended {
            metrics.turn_ended(end.outcome, live.began.elapsed());
            live.log.ended(end_piece(session, live.turn, &end, 0));
            live.end_shown();
            self.forget_finished(&live);
        }
        unsaved
    }
}

impl TurnUpdates {
    /// Adds a requested turn.
    pub(crate) fn add_requested(&mut self, turn: TurnChange) {
        if let TurnChange::Put(record) = &turn {
            self.bytes = record.input.len();
        }
        self.changes.push(turn);
    }

    /// Adds an event of the kernel as a piece of a turn: committed with the decision, and shown
    /// after.
    fn add_decided(&mut self, live: Arc<Live>, at: Wall, event: &LifecycleEvent) {
        let (name, data) = lifecycle(event);
        self.bytes += data.len();
        if let Some((change, seq)) = live.log.decided(at, name, data) {
            self.changes.push(change);
            self.decided.push((live, seq));
        }
    }

    /// The pieces of a turn that are not stored yet, unless some are just being stored.
    pub(crate) fn unsaved(live: &Arc<Live>) -> Option<Self> {
        let (change, seq) = live.log.take_unsaved()?;
        let bytes = match &change {
            TurnChange::Pieces { pieces, .. } => pieces.iter().map(|piece| piece.data.len()).sum(),
            TurnChange::Put(_)
            | TurnChange::Started { .. }
            | TurnChange::Ended { .. }
            | TurnChange::Forked { .. } => 0,
        };
        let stored = Some((Arc::clone(live), seq));
        Some(Self { changes: vec![change], stored, bytes, ..Self::default() })
    }
}

/// The first turn of a session that one of these events ends.
fn ended_later(of: SessionId, later: &[Published]) -> Option<TurnId> {
    later.iter().find_map(|one| {
        let LifecycleEvent::TurnEnded { session, turn, .. } = &one.event else { return None };
        (*session == of).then_some(*turn)
    })
}

/// An event of the kernel as a piece of a turn.
fn lifecycle(event: &LifecycleEvent) -> (&'static str, Arc<str>) {
    let body = event.clone().with_times(wire::Time::from);
    let data = serde_json::to_string(&body).unwrap_or_default();
    (body.name(), data.into())
}

/// The last piece of a turn. A follower that has seen up to `after` gets a higher number. The
/// result of the harness is forwarded as it is, never parsed: it may be large and unusual.
pub(crate) fn end_piece(session: SessionId, turn: TurnId, end: &TurnEnd, after: u64) -> TurnPiece {
    let result = end.result.as_deref().unwrap_or("null");
    let error = turn_error(end);
    let data = format!(
        r#"{{"type":"turn_ended","session":"{session}","turn":"{turn}","outcome":"{}","result":{result},"error":{error}}}"#,
        end.outcome.as_str(),
    );
    let (seq, name) = (end.seq.max(after.saturating_add(1)), "turn_ended".into());
    TurnPiece { seq, at: end.at, name, data: data.into() }
}

/// The error of a turn, as its last piece reports it; null if it has none.
pub fn turn_error(end: &TurnEnd) -> Value {
    let reported = end.error.as_deref().and_then(|text| serde_json::from_str(text).ok());
    reported.unwrap_or_else(|| default_error(end.outcome))
}

/// The error of a turn whose harness reported none.
fn default_error(outcome: TurnOutcome) -> Value {
    let (code, message) = match outcome {
        TurnOutcome::Completed => return Value::Null,
        TurnOutcome::Failed => ("turn_failed", "the harness reported an error"),
        TurnOutcome::Aborted => ("aborted", "the turn was aborted"),
        TurnOutcome::TimedOut => ("turn_timeout", "the turn took longer than its template allows"),
        TurnOutcome::SandboxCrashed => {
            ("sandbox_crashed", "the sandbox died; the next message gets another one")
        }
        TurnOutcome::Oom => ("oom", "the sandbox ran out of memory"),
        TurnOutcome::DiskLimit => ("disk_limit", "the sandbox wrote too much to its workspace"),
        TurnOutcome::Interrupted => {
            ("interrupted", "the server stopped or was restarted; send the message again")
        }
        TurnOutcome::Expired => ("expired", "the session reached its deadline"),
        TurnOutcome::NotStarted => ("not_started", "no sandbox could be had for the turn"),
    };
    json!({ "code": code, "message": message })
}

#[cfg(test)]
mod tests {
    use model::KeyId;

    use super::*;

    #[test]
    fn messages_of_one_key_leave_memory_for_those_of_another() {
        let (turns, message) = (Turns::default(), Arc::<str>::from("x".repeat(8 << 20)));
        let expect = |key, number| {
            let turn = TurnId::from_u128(number);
            turns.expect(&Live::new(turn, KeyId::from_u128(key), Arc::clone(&message)))
        };
        let of_eve = (0..40).filter(|number| expect(1, *number).is_ok()).count();
        assert_eq!(of_eve, 16, "half of 256 MiB");
        let of_ada = (100..140).filter(|number| expect(2, *number).is_ok()).count();
        assert_eq!(of_ada, 8, "half of the rest");
        assert!(expect(3, 200).is_ok());
        turns.forget(TurnId::from_u128(0));
        assert!(expect(1, 41).is_err(), "others have more by now");
    }
}
