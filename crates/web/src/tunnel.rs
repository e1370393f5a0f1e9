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

/// How long a client may take to switch protocols.
const AGREED_WITHIN: Duration = Duration::from_secs(10);
/// How long one direction may be silent after the other has ended.
const HALF_OPEN: Duration = Duration::from_mins(5);
const READ_BYTES: usize = 64 * 1024;

/// A tunnel before it is opened.
pub struct Tunnel {
    /// The shared state.
    pub app: App,
    /// The caller.
    pub caller: Caller,
    /// The use that lasts as long as the tunnel.
    pub used: Use,
    /// Its slot among the long-lived connections of the key.
    pub slot: LongLivedSlot,
}

impl Tunnel {
    /// Forwards bytes, in its own task, once both sides have switched protocols.
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
                tracing::debug!("the client of a tunnel did not switch protocols");
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
            // Both ends know how it ended, so it is not logged.
            () = both_ways(client, inside) => {}
            refusal = self.used.wait_for_end() => {
                tracing::debug!(cause = %refusal, "a tunnel was closed because its sandbox ended");
            }
            // A dropped sender means a stop, too.
            _ = stops.wait_for(|stops| *stops) => {}
            () = revoked(&self.app, self.caller) => {}
        }
        drop(self.slot);
    }
}

/// Forwards bytes both ways. When one direction has ended, the other continues while bytes move.
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
    // A peer that is gone needs no shutdown.
    let _ = to.shutdown().await;
    ended.send_replace(true);
}

/// Done when the key is no longer valid.
pub async fn revoked(app: &App, caller: Caller) {
    KeyWatch::new(caller.key).ended(app).await;
}

/// The client's side of the upgrade, if the request has one.
pub fn client_of(request: &mut Request) -> Option<OnUpgrade> {
    request.extensions_mut().remove::<OnUpgrade>()
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn half_open_tunnel_ends_when_it_is_silent() {
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
