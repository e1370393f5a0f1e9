//! Bytes both ways between a client and a port inside a sandbox, once both have agreed on something
//! else than HTTP. It lasts for as long as either end, the sandbox, the key and the server do, and
//! counts as activity meanwhile.

use std::time::Duration;

use axum::extract::Request;
use engine::{Caller, Use};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::key_watch::KeyWatch;

/// How long a client may take to go over to what was agreed on.
const AGREED_WITHIN: Duration = Duration::from_secs(10);
/// How often it is looked whether the key still works.
const LOOK: Duration = Duration::from_secs(6);

/// What ends a tunnel besides its two ends.
pub(crate) struct Tunnel {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) used: Use,
}

impl Tunnel {
    /// Passes bytes on, in a task of its own, once both have gone over.
    pub(crate) fn open<F, S>(self, client: OnUpgrade, inside: F)
    where
        F: Future<Output = Option<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        tokio::spawn(async move {
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
        mut client: impl AsyncRead + AsyncWrite + Unpin,
        mut inside: impl AsyncRead + AsyncWrite + Unpin,
    ) {
        let mut stops = self.app.stopping.clone();
        tokio::select! {
            // How it ended is known to both ends, and of no interest to anybody else.
            _ = copy_bidirectional(&mut client, &mut inside) => {}
            refusal = self.used.broken() => tracing::debug!(cause = %refusal, "a tunnel broke"),
            // That nobody will say so any more is a stop too.
            _ = stops.wait_for(|stops| *stops) => {}
            () = revoked(&self.app, self.caller) => {}
        }
    }
}

/// Done when the key works no more.
pub(crate) async fn revoked(app: &App, caller: Caller) {
    let mut key = KeyWatch::new(caller.key);
    while key.works(app) {
        sleep(LOOK).await;
    }
}

/// What a client goes over with, if it can.
pub(crate) fn client_of(request: &mut Request) -> Option<OnUpgrade> {
    request.extensions_mut().remove::<OnUpgrade>()
}
