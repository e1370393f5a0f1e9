//! Keep-alive of a WebSocket: pings the client now and then, and gives the connection up when
//! nothing came back for too long. Time in which the server does not read does not count as
//! silence.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at};

/// How often the client is pinged, and how many pings it may miss.
const PING: Duration = Duration::from_secs(15);
const MISSED_MAX: u32 = 3;

/// Decides when to ping, and when the client is gone.
pub struct WsKeepalive {
    beat: Interval,
    missed: u32,
    activity: watch::Receiver<()>,
}

/// Records that the client sent something.
pub struct PeerActivity(watch::Sender<()>);

impl WsKeepalive {
    /// Both halves.
    pub fn new() -> (Self, PeerActivity) {
        let (heard, activity) = watch::channel(());
        let mut beat = interval_at(Instant::now() + PING, PING);
        // After a delay the client is pinged once, and has time to answer.
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        (Self { beat, missed: 0, activity }, PeerActivity(heard))
    }

    /// Done when it is time to ping; false if the client is gone.
    pub async fn next_ping(&mut self) -> bool {
        self.beat.tick().await;
        self.missed =
            if self.activity.has_changed().unwrap_or(false) { 0 } else { self.missed + 1 };
        self.activity.mark_unchanged();
        self.missed <= MISSED_MAX
    }
}

impl PeerActivity {
    /// The client sent something.
    pub fn note(&self) {
        self.0.send_replace(());
    }

    /// Does something during which the server does not read.
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
    async fn ws_keepalive_does_not_give_up_right_after_a_delay() {
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
    async fn ws_keepalive_gives_up_a_silent_client_but_not_a_busy_one() {
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
