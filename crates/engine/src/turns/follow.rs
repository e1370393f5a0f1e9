//! Follows a turn from any piece on: stored pieces are read back, new ones are sent as they arrive,
//! and the end is the last. A slow follower holds up no one else.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kernel::Event;
use model::{Refusal, RequestId, SessionId, TurnId, TurnPiece};
use tokio::time::{Instant, timeout_at};

use super::end_piece;
use super::live::Live;
use super::log::Seen;
use crate::core::{Core, unavailable};

/// How many pieces are read back at once.
const PAGE: u32 = 256;
/// How long the end of a turn of an earlier run may take to be stored.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(10);

/// A follower of a turn.
pub struct TurnFollow {
    core: Arc<Core>,
    session: SessionId,
    turn: TurnId,
    live: Option<Arc<Live>>,
    after: u64,
    read: VecDeque<TurnPiece>,
    ended: bool,
    /// The request that started the turn, if its client is the follower.
    client: Option<RequestId>,
}

impl TurnFollow {
    pub(crate) fn new(core: &Arc<Core>, session: SessionId, turn: TurnId, after: u64) -> Self {
        let core = Arc::clone(core);
        let live = core.turns.live(turn);
        let (read, ended, client) = (VecDeque::new(), false, None);
        Self { core, session, turn, live, after, read, ended, client }
    }

    /// The follower is the client that started the turn, which may have to end with that client.
    pub(crate) fn of_client(mut self, request: RequestId) -> Self {
        self.client = Some(request);
        self
    }

    /// Looks once more whether the turn is in progress.
    pub(crate) fn look_again(mut self) -> Self {
        if self.live.is_none() {
            self.live = self.core.turns.live(self.turn);
        }
        self
    }

    /// The turn.
    pub const fn turn(&self) -> TurnId {
        self.turn
    }

    /// The next piece; the last one is `turn_ended`. None after it, or if the server stops.
    pub async fn next(&mut self) -> Result<Option<TurnPiece>, Refusal> {
        loop {
            if self.ended {
                return Ok(None);
            }
            if let Some(piece) = self.take_read() {
                return Ok(Some(piece));
            }
            let Some(live) = self.live.clone() else { return self.next_stored().await };
            let changed = live.log.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match live.log.look(self.after) {
                Seen::Piece(piece) => {
                    self.after = piece.seq;
                    return Ok(Some(piece));
                }
                Seen::Ended(end) => {
                    self.ended = true;
                    return Ok(Some(end));
                }
                // Pieces that retention deleted are skipped.
                Seen::Stored if !self.read_back().await? => self.after += 1,
                Seen::Stored => {}
                Seen::Nothing => {
                    let mut stopped = self.core.stopped.subscribe();
                    tokio::select! {
                        biased;
                        () = changed => {}
                        _ = stopped.wait_for(|stopped| *stopped) => {
                            // Pieces that came before the stop are sent before the end of the
                            // stream.
                            self.ended = matches!(live.log.look(self.after), Seen::Nothing);
                        }
                    }
                }
            }
        }
    }

    /// Reads the next pieces from the store; false if there are none.
    async fn read_back(&mut self) -> Result<bool, Refusal> {
        let pieces = self.core.store.pieces(self.turn, self.after, PAGE).await;
        self.read = pieces.map_err(|error| unavailable(&error.to_string()))?.into();
        Ok(!self.read.is_empty())
    }

    fn take_read(&mut self) -> Option<TurnPiece> {
        let piece = self.read.pop_front();
        self.after = piece.as_ref().map_or(self.after, |piece| piece.seq);
        piece
    }

    /// The next piece of a turn that has ended, or that the end of an earlier run interrupted.
    async fn next_stored(&mut self) -> Result<Option<TurnPiece>, Refusal> {
        if self.read_back().await? {
            return Ok(self.take_read());
        }
        let deadline = Instant::now() + RECOVERY_PATIENCE;
        let mut written = self.core.last_event.subscribe();
        loop {
            let record = self.core.store.turn(self.turn).await;
            let record = record.map_err(|error| unavailable(&error.to_string()))?;
            self.ended = record.is_none();
            let Some(record) = record else { return Ok(None) };
            if let Some(end) = &record.end {
                // Pieces may have been stored since the last look.
                if self.read_back().await? {
                    return Ok(self.take_read());
                }
                self.ended = true;
                return Ok(Some(end_piece(self.session, self.turn, end, self.after)));
            }
            if !timeout_at(deadline, written.changed()).await.is_ok_and(|changed| changed.is_ok()) {
                return Err(unavailable("the end of the turn is not stored yet"));
            }
        }
    }
}

impl Drop for TurnFollow {
    fn drop(&mut self) {
        if let Some(request) = self.client.take()
            && !self.ended
        {
            self.core.notify(Event::ClientGone { request });
        }
    }
}
