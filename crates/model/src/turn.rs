//! Turns as they are stored: the message, the pieces of the answer, and how it ended.
//! A piece is sent to followers before it is stored; an end is stored before it is sent.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{Generation, KeyId, SandboxId, SessionId, TurnId};
use crate::lifecycle::TurnOutcome;
use crate::time::Wall;

/// The most pieces of a turn that may be sent and not stored yet. The end of a turn that a crash
/// interrupted is numbered past them, so that no number means two things.
pub const PIECES_BEHIND_MAX: u64 = 1_024;

/// One message to a session, and what became of it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// Its id.
    pub id: TurnId,
    /// Its place in the history of all sessions, given by the store; 0 until then.
    #[serde(default)]
    pub number: u64,
    /// Its session.
    pub session: SessionId,
    /// The key that the session belongs to.
    pub tenant: KeyId,
    /// The message, as JSON.
    pub input: Arc<str>,
    /// When it was sent.
    pub created_at: Wall,
    /// Where and when it was given to the harness.
    pub started: Option<TurnStart>,
    /// How it ended.
    pub end: Option<TurnEnd>,
}

/// Where and when a turn was given to the harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnStart {
    /// When.
    pub at: Wall,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its generation.
    pub generation: Generation,
}

/// How a turn ended.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// When.
    pub at: Wall,
    /// How.
    pub outcome: TurnOutcome,
    /// The number that its end has after those of its pieces.
    pub seq: u64,
    /// The result from the harness, as JSON.
    pub result: Option<Arc<str>>,
    /// What went wrong, in words.
    pub error: Option<Arc<str>>,
}

/// One piece of what a turn gave, in the order of their numbers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnPiece {
    /// Its number in its turn, from 1.
    pub seq: u64,
    /// When it came.
    pub at: Wall,
    /// Its kind: the name of an event in the turn's stream.
    pub name: Arc<str>,
    /// Its contents, as JSON.
    pub data: Arc<str>,
}

/// A change of the stored turns. Part of a transaction with the decision it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnChange {
    /// A turn was accepted.
    Put(TurnRecord),
    /// A turn gave these, which come after all that it gave before.
    Pieces {
        /// Which turn.
        turn: TurnId,
        /// What.
        pieces: Vec<TurnPiece>,
    },
    /// A turn was given to the harness.
    Started {
        /// Which.
        turn: TurnId,
        /// Where and when.
        start: TurnStart,
    },
    /// A turn ended. A turn that had already ended stays as it is.
    Ended {
        /// Which.
        turn: TurnId,
        /// How. Its number counts if it is above 0; else it is past everything that may have been
        /// sent: [`PIECES_BEHIND_MAX`] and one more after the last piece that is stored.
        end: TurnEnd,
    },
    /// A session begins with the history of another: its ended turns, under new ids.
    Forked {
        /// Whose.
        from: SessionId,
        /// The new one. If it has turns already, nothing is done.
        to: SessionId,
    },
}

impl fmt::Debug for TurnRecord {
    /// The message may be secret: only its size is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnRecord")
            .field("id", &self.id)
            .field("number", &self.number)
            .field("session", &self.session)
            .field("input_bytes", &self.input.len())
            .field("started", &self.started)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TurnEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnEnd")
            .field("at", &self.at)
            .field("outcome", &self.outcome)
            .field("seq", &self.seq)
            .field("result_bytes", &self.result.as_ref().map(|result| result.len()))
            .field("error", &self.error)
            .finish()
    }
}

impl fmt::Debug for TurnPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnPiece")
            .field("seq", &self.seq)
            .field("name", &self.name)
            .field("data_bytes", &self.data.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_input_is_never_printed() {
        let said: Arc<str> = Arc::from("\"hunter2\"");
        let end = TurnEnd {
            at: Wall(3),
            outcome: TurnOutcome::Completed,
            seq: 2,
            result: Some(Arc::clone(&said)),
            error: None,
        };
        let piece =
            TurnPiece { seq: 1, at: Wall(2), name: Arc::from("message"), data: Arc::clone(&said) };
        let record = TurnRecord {
            id: TurnId::NIL,
            number: 0,
            session: SessionId::NIL,
            tenant: KeyId::NIL,
            input: said,
            created_at: Wall(1),
            started: None,
            end: Some(end),
        };
        let shown = format!("{record:?} {piece:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        let read: TurnRecord =
            serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(read, record);
    }
}
