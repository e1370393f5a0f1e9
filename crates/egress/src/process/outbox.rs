//! What goes to the server without being asked for: events, in batches, and numbers. It must never
//! wait, and never grow without end.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::control::{Channel, EVENTS_PER_PACKET, FromEgress, Letter, ProcessCounts};
use crate::event::{EVENTS_WAITING_MAX, EgressEvent};

/// How long events wait for others. The first after a pause does not.
const BATCH_EVERY: Duration = Duration::from_millis(50);
/// How often numbers are sent if they changed.
const COUNTS_EVERY: Duration = Duration::from_secs(1);
/// The most bytes of a text in an event.
const TEXT_BYTES_MAX: usize = 320;

#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Mutex<Vec<EgressEvent>>,
    /// Held from taking events until they are sent: they arrive in order.
    sending: tokio::sync::Mutex<()>,
    some: Notify,
    pub connections: AtomicU64,
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub failed: AtomicU64,
    pub names_allowed: AtomicU64,
    pub names_refused: AtomicU64,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    pub dropped: AtomicU64,
    /// How often a new connection waited for a limit of its sandbox, of its key, of the process.
    pub waits_of_sandbox: AtomicU64,
    pub waits_of_key: AtomicU64,
    pub waits_of_process: AtomicU64,
}

impl Outbox {
    /// Takes an event, if there is room.
    pub(super) fn put(&self, mut event: EgressEvent) {
        for text in [&mut event.rule, &mut event.reason].into_iter().flatten() {
            shorten(text);
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= EVENTS_WAITING_MAX {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        waiting.push(event);
        drop(waiting);
        self.some.notify_one();
    }

    fn take(&self) -> Vec<EgressEvent> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The first of a kind.
    #[cfg(test)]
    pub(super) fn take_first(&self, kind: crate::EventKind) -> Option<EgressEvent> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let at = waiting.iter().position(|event| event.kind == kind)?;
        Some(waiting.remove(at))
    }

    fn counts(&self) -> ProcessCounts {
        let of = |number: &AtomicU64| number.load(Relaxed);
        ProcessCounts {
            connections: of(&self.connections),
            accepted: of(&self.accepted),
            refused: of(&self.refused),
            failed: of(&self.failed),
            names_allowed: of(&self.names_allowed),
            names_refused: of(&self.names_refused),
            sent: of(&self.sent),
            received: of(&self.received),
            dropped_events: of(&self.dropped),
            waits_of_sandbox: of(&self.waits_of_sandbox),
            waits_of_key: of(&self.waits_of_key),
            waits_of_process: of(&self.waits_of_process),
        }
    }

    /// Sends events until the server is gone.
    pub(super) async fn send_events(&self, channel: &Channel) -> io::Result<()> {
        loop {
            self.some.notified().await;
            self.flush(channel).await?;
            tokio::time::sleep(BATCH_EVERY).await;
        }
    }

    /// Sends the events that wait. When it returns, all that were put before are sent.
    pub(super) async fn flush(&self, channel: &Channel) -> io::Result<()> {
        let _alone = self.sending.lock().await;
        let events = self.take();
        for batch in events.chunks(EVENTS_PER_PACKET) {
            channel.send(&Letter::new(&FromEgress::Events(batch.to_vec()))?, &[]).await?;
        }
        Ok(())
    }

    /// Sends numbers until the server is gone.
    pub(super) async fn send_counts(&self, channel: &Channel) -> io::Result<()> {
        let mut last = ProcessCounts::default();
        loop {
            tokio::time::sleep(COUNTS_EVERY).await;
            let counts = self.counts();
            if counts != last {
                last = counts;
                channel.send(&Letter::new(&FromEgress::Counts(counts))?, &[]).await?;
            }
        }
    }
}

fn shorten(text: &mut String) {
    let mut end = TEXT_BYTES_MAX;
    if text.len() > end {
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
}
