//! Ports inside a sandbox: which are open, and connections to them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wire::PortList;

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::inside::Inside;

const TCP: HeaderValue = HeaderValue::from_static("shoal-tcp");
const UPGRADES: HeaderValue = HeaderValue::from_static("upgrade");
/// The default wait for a port.
const WAIT: Duration = Duration::from_mins(1);

impl Inside {
    /// The open ports inside, after all of `wait_for` are open.
    #[boxed]
    pub async fn ports(
        &self,
        wait_for: &[u16],
        timeout: Option<Duration>,
    ) -> Result<PortList, ClientError> {
        let mut target = self.at().part("ports");
        for port in wait_for {
            target = target.with("wait_for", port.to_string());
        }
        let target = target.maybe("timeout_ms", timeout.map(|time| time.as_millis().max(1)));
        self.client.json(Call::get(target).may_take(timeout.unwrap_or(WAIT))).await
    }

    /// Connects to a port inside.
    #[boxed]
    pub async fn forward(&self, port: u16) -> Result<Forwarded, ClientError> {
        let mut call = Call::get(self.at().part("forward").part(&port.to_string()))
            .header(CONNECTION, UPGRADES)
            .header(UPGRADE, TCP);
        Ok(Forwarded(TokioIo::new(self.client.upgrade(&mut call).await?)))
    }
}

/// A connection to a port inside.
#[derive(Debug)]
pub struct Forwarded(TokioIo<Upgraded>);

impl AsyncRead for Forwarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Forwarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
