//! Bytes both ways between a client and a port inside a sandbox, once both have agreed on something
//! else than HTTP. It lasts for as long as either end, the sandbox, the key and the server do, and
//! counts as activity meanwhile.

use std::time::Duration;

use axum::extract::Request;
use bytes::BytesMut;
use engine::{Caller, Use};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split,
};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::key_watch::KeyWatch;
use crate::long_lived::LongLivedSlot;

/// How long a client may take to go over to what was agreed on.
const AGREED_WITHIN: Duration = Duration::from_secs(10);
/// How long one direction may be silent after the other has ended.
const HALF_OPEN: Duration = Duration::from_mins(5);
const READ_BYTES: usize = 64 * 1024;

/// What ends a tunnel besides its two ends.
pub struct Tunnel {
    /// What every handler knows.
    pub app: App,
    /// Who asks.
    pub caller: Caller,
    /// The use that lasts as long as the tunnel.
    pub used: Use,
    /// The place among what one key may have open.
    pub slot: LongLivedSlot,
}

impl Tunnel {
    /// Passes bytes on, in a task of its own, once both have gone over.
    pub fn open<F, S>(self, client: OnUpgrade, inside: F)
    where
        F: Future<Output = Option<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        tasks::spawn(async move {
            let both = async { tokio::join!(client, inside) };
            if let Ok((Ok(client), Some(inside))) = timeout(AGREED_WITHIN, both).await {
                self.pass(TokioIo::new(client), inside).await;
            } else {
                tracing::debug!("a tunnel was agreed on and did not begin");
            }
        });
    }

    async fn pass(
        self,
        client: impl AsyncRead + AsyncWrite + Unpin,
        inside: impl AsyncRead + AsyncWrite + Unpin,
    ) {
        let mut stops = self.app.stopping.clone();
        tokio::select! {
            // How it ended is known to both ends, and of no interest to anybody else.
            () = both_ways(client, inside) => {}
            refusal = self.used.broken() => tracing::debug!(cause = %refusal, "a tunnel broke"),
            // That nobody will say so any more is a stop too.
            _ = stops.wait_for(|stops| *stops) => {}
            () = revoked(&self.app, self.caller) => {}
        }
        drop(self.slot);
    }
}

/// Passes bytes both ways. When one direction has come to its end, the other goes on for as long as
/// anything moves in it.
async fn both_ways(
    client: impl AsyncRead + AsyncWrite + Unpin,
    inside: impl AsyncRead + AsyncWrite + Unpin,
) {
    let ((mut from_client, mut to_client), (mut from_inside, mut to_inside)) =
        (split(client), split(inside));
    let (ended, ends) = watch::channel(false);
    tokio::join!(
        one_way(&mut from_client, &mut to_inside, &ended, ends.clone()),
        one_way(&mut from_inside, &mut to_client, &ended, ends),
    );
}

async fn one_way<R: AsyncRead, W: AsyncWrite>(
    from: &mut ReadHalf<R>,
    to: &mut WriteHalf<W>,
    ended: &watch::Sender<bool>,
    mut ends: watch::Receiver<bool>,
) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        let alone = async {
            // The sender is here for as long as this is.
            let _ = ends.wait_for(|ended| *ended).await;
            sleep(HALF_OPEN).await;
        };
        let read = tokio::select! {
            read = from.read_buf(&mut buffer) => read,
            () = alone => Ok(0),
        };
        if !matches!(read, Ok(1..)) || to.write_all_buf(&mut buffer).await.is_err() {
            break;
        }
    }
    // Who is gone need not be told.
    let _ = to.shutdown().await;
    ended.send_replace(true);
}

/// Done when the key works no more.
pub async fn revoked(app: &App, caller: Caller) {
    KeyWatch::new(caller.key).ended(app).await;
}

/// What a client goes over with, if it can.
pub fn client_of(request: &mut Request) -> Option<OnUpgrade> {
    request.extensions_mut().remove::<OnUpgrade>()
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_half_open_lasts_only_while_something_moves() {
        let ((mut person, client), (inside, mut program)) = (duplex(64), duplex(64));
        let passing = tokio::spawn(both_ways(client, inside));
        person.write_all(b"hi").await.unwrap();
        let mut heard = [0; 2];
        program.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"hi");
        sleep(Duration::from_hours(10)).await;
        assert!(!passing.is_finished(), "both are there, and may be silent");
        person.shutdown().await.unwrap();
        sleep(HALF_OPEN / 2).await;
        program.write_all(b"still").await.unwrap();
        let mut heard = [0; 5];
        person.read_exact(&mut heard).await.unwrap();
        let began = Instant::now();
        passing.await.unwrap();
        assert_eq!(began.elapsed().as_secs(), HALF_OPEN.as_secs());
    }
}
