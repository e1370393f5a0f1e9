//! Looks for the next bytes for a moment before the process sleeps, while small messages go to and fro.
//! To sleep and to be woken costs more than such a message. It must never look for longer than a moment
//! after the last bytes, and not at all while bytes are rare or several connections are busy: then it
//! would only take the processors from others.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

/// Bytes that follow others so soon are part of an exchange.
const EXCHANGE_US: u64 = 100;
/// A longer piece is part of a stream, which has something to do anyway: its sender and its receiver
/// need the processors.
const SMALL_BYTES: usize = 8 << 10;
/// How long to look after the last bytes.
const LOOK_US: u64 = 40;

#[derive(Debug)]
pub(super) struct Linger {
    began: Instant,
    /// When bytes moved last.
    last_us: AtomicU64,
    /// On which connection that was.
    last_on: AtomicU64,
    /// Until when to look.
    until_us: AtomicU64,
    exchange: Notify,
}

impl Default for Linger {
    fn default() -> Self {
        let (last_us, last_on, until_us) = Default::default();
        Self { began: Instant::now(), last_us, last_on, until_us, exchange: Notify::new() }
    }
}

impl Linger {
    fn now_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// So many bytes moved on a connection.
    pub(super) fn moved(&self, connection: u64, bytes: usize) {
        let now_us = self.now_us();
        let last_us = self.last_us.swap(now_us, Relaxed);
        let is_other = self.last_on.swap(connection, Relaxed) != connection;
        let is_long = bytes > SMALL_BYTES;
        if is_long {
            self.last_us.store(0, Relaxed);
        }
        if is_other || is_long {
            self.until_us.store(0, Relaxed);
            return;
        }
        if now_us.saturating_sub(last_us) > EXCHANGE_US {
            return;
        }
        let is_looking = self.until_us.swap(now_us + LOOK_US, Relaxed) > now_us;
        if !is_looking {
            self.exchange.notify_one();
        }
    }

    /// Looks whenever there is an exchange. Each turn lets all other tasks run, and asks the kernel for
    /// what has come.
    pub(super) async fn look(&self) {
        loop {
            self.exchange.notified().await;
            while self.now_us() < self.until_us.load(Relaxed) {
                yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    fn looks(linger: &Linger) -> bool {
        linger.now_us() < linger.until_us.load(Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_exchange_of_small_pieces_is_looked_for_and_only_for_a_moment() {
        let linger = Linger::default();
        advance(Duration::from_secs(1)).await;
        linger.moved(1, 100);
        assert!(!looks(&linger), "the first bytes");
        advance(Duration::from_micros(EXCHANGE_US)).await;
        linger.moved(1, 100);
        assert!(looks(&linger), "the second ones, soon after");
        advance(Duration::from_micros(LOOK_US)).await;
        assert!(!looks(&linger), "a moment later");
        advance(Duration::from_millis(1)).await;
        linger.moved(1, 100);
        assert!(!looks(&linger), "bytes that come rarely");
        linger.moved(1, 100);
        assert!(looks(&linger));
        linger.moved(1, SMALL_BYTES + 1);
        assert!(!looks(&linger), "a stream");
        linger.moved(1, 100);
        assert!(!looks(&linger), "the end of a stream");
        linger.moved(1, 100);
        assert!(looks(&linger));
        for connection in [2, 1, 2, 1] {
            linger.moved(connection, 100);
            assert!(!looks(&linger), "several at the same time");
        }
    }

    #[tokio::test]
    async fn others_have_their_turns_meanwhile() {
        let linger = Linger::default();
        tokio::select! {
            biased;
            () = linger.look() => panic!("it never ends"),
            () = async {
                for _ in 0..1000 {
                    linger.moved(1, 1);
                    yield_now().await;
                }
            } => {}
        }
    }
}
