//! Whether somebody is at the other end of a WebSocket: asked now and then, and given up when nothing
//! was heard for too long. What we do not listen to is no silence.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at};

/// How often the other end is asked whether it is there, and how often it may not answer.
const PING: Duration = Duration::from_secs(15);
const MISSED_MAX: u32 = 3;

/// Says when to ask.
pub struct WsKeepalive {
    beat: Interval,
    missed: u32,
    activity: watch::Receiver<()>,
}

/// Says that something was heard.
pub struct PeerActivity(watch::Sender<()>);

impl WsKeepalive {
    /// Both halves.
    pub fn new() -> (Self, PeerActivity) {
        let (heard, activity) = watch::channel(());
        let mut beat = interval_at(Instant::now() + PING, PING);
        // Who was waited for is asked once, and has time to answer.
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        (Self { beat, missed: 0, activity }, PeerActivity(heard))
    }

    /// Done when it is time to ask; false if there is nobody to be asked.
    pub async fn next_ping(&mut self) -> bool {
        self.beat.tick().await;
        self.missed =
            if self.activity.has_changed().unwrap_or(false) { 0 } else { self.missed + 1 };
        self.activity.mark_unchanged();
        self.missed <= MISSED_MAX
    }
}

impl PeerActivity {
    /// Something was heard.
    pub fn note(&self) {
        self.0.send_replace(());
    }

    /// Does something during which nothing else is listened to.
    pub async fn while_busy<T>(&self, doing: impl Future<Output = T>) -> T {
        let mut doing = std::pin::pin!(doing);
        let mut beat = interval(PING / 2);
        loop {
            tokio::select! {
                biased;
                done = &mut doing => return done,
                _ = beat.tick() => self.note(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_was_not_asked_for_long_is_not_given_up_at_once() {
        let (mut keepalive, _heard) = WsKeepalive::new();
        sleep(PING * 10).await;
        let began = Instant::now();
        for _ in 0..MISSED_MAX {
            assert!(keepalive.next_ping().await);
        }
        assert!(!keepalive.next_ping().await);
        assert_eq!(
            began.elapsed(),
            PING * MISSED_MAX,
            "the first at once, the others in their time"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_given_up_and_being_busy_is_no_silence() {
        let (mut keepalive, heard) = WsKeepalive::new();
        heard.while_busy(sleep(PING * 10)).await;
        assert!(keepalive.next_ping().await);
        heard.note();
        assert!(keepalive.next_ping().await);
        for _ in 0..MISSED_MAX {
            assert!(keepalive.next_ping().await, "it may answer late");
        }
        assert!(!keepalive.next_ping().await);
        heard.note();
        assert!(keepalive.next_ping().await);
    }
}
