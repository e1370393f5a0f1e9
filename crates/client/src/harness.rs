//! A connection to the harness of a sandbox, line by line.

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::tungstenite::Message;
use wire::harness::{HARNESS_LINE_BYTES_MAX, HarnessClosed};

use crate::boxed;
use crate::error::ClientError;
use crate::sandbox::Handle;
use crate::web_socket::Socket;

impl Handle {
    /// Connects to the harness of the sandbox, which is ready then. The connection is exclusive.
    #[boxed]
    pub async fn connect_harness(&self) -> Result<HarnessConnection, ClientError> {
        let extra = self.client.patience().control;
        let socket = self.client.web_socket(self.at().part("harness"), extra).await?;
        let (to, from) = socket.split();
        Ok(HarnessConnection {
            reader: HarnessReader { from, ended: None },
            writer: HarnessWriter { to },
        })
    }
}

/// A connection to a harness. Dropping it ends the harness.
///
/// A harness may stop reading until its output is read: read while you write much.
#[derive(Debug)]
pub struct HarnessConnection {
    /// The output of the harness.
    pub reader: HarnessReader,
    /// The input of the harness.
    pub writer: HarnessWriter,
}

/// Reads the output of a harness.
pub struct HarnessReader {
    from: SplitStream<Socket>,
    ended: Option<HarnessClosed>,
}

/// Writes the input of a harness.
pub struct HarnessWriter {
    to: SplitSink<Socket, Message>,
}

/// Output of a harness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HarnessOutput {
    /// A line, without its end.
    Line(String),
    /// The harness has ended, and why.
    Closed(HarnessClosed),
}

impl HarnessReader {
    /// The next output. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<HarnessOutput, ClientError> {
        if let Some(closed) = &self.ended {
            return Ok(HarnessOutput::Closed(closed.clone()));
        }
        loop {
            let Some(message) = self.from.next().await else {
                return Err(ClientError::cut(
                    "the connection to the harness ended without a close message",
                ));
            };
            match message.map_err(ClientError::cut)? {
                Message::Text(text) => return Ok(HarnessOutput::Line(text.as_str().to_owned())),
                Message::Close(Some(frame)) => {
                    let closed = HarnessClosed::read(frame.code.into(), frame.reason.as_str());
                    self.ended = Some(closed.clone());
                    return Ok(HarnessOutput::Closed(closed));
                }
                Message::Close(None) => {
                    return Err(ClientError::cut("the server closed the harness without a reason"));
                }
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}

impl HarnessWriter {
    /// Sends a line. If this future is dropped, the line may have been sent.
    #[boxed]
    pub async fn send(&mut self, line: &str) -> Result<(), ClientError> {
        if line.contains('\n') || line.len() > HARNESS_LINE_BYTES_MAX {
            let cause = format!(
                "a line must have no line break and at most {HARNESS_LINE_BYTES_MAX} bytes"
            );
            return Err(ClientError::invalid(cause));
        }
        self.to.send(Message::Text(line.into())).await.map_err(ClientError::cut)
    }
}

impl std::fmt::Debug for HarnessReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HarnessReader").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for HarnessWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HarnessWriter").finish_non_exhaustive()
    }
}
