//! The harness of a sandbox, spoken with line by line.

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::tungstenite::Message;
use wire::harness::{HARNESS_LINE_BYTES_MAX, HarnessClosed};

use crate::boxed;
use crate::error::ClientError;
use crate::sandbox::Handle;
use crate::web_socket::Socket;

impl Handle {
    /// Speaks with the harness of the sandbox, which is ready then. Nobody else does meanwhile.
    #[boxed]
    pub async fn hold_harness(&self) -> Result<HeldHarness, ClientError> {
        let extra = self.client.patience().control;
        let socket = self.client.web_socket(self.at().part("harness"), extra).await?;
        let (to, from) = socket.split();
        Ok(HeldHarness { says: HarnessSays { from, over: None }, hears: HarnessHears { to } })
    }
}

/// A harness that is held. Dropped, its program ends.
///
/// A harness may wait until it is heard before it hears more: whoever says much listens meanwhile.
#[derive(Debug)]
pub struct HeldHarness {
    /// What it says.
    pub says: HarnessSays,
    /// What is said to it.
    pub hears: HarnessHears,
}

/// What a harness says.
pub struct HarnessSays {
    from: SplitStream<Socket>,
    over: Option<HarnessClosed>,
}

/// What is said to a harness.
pub struct HarnessHears {
    to: SplitSink<Socket, Message>,
}

/// What is heard of a harness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// A line, without its end.
    Line(String),
    /// Nothing more will be said, and why.
    Closed(HarnessClosed),
}

impl HarnessSays {
    /// What is said next. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<Said, ClientError> {
        if let Some(closed) = &self.over {
            return Ok(Said::Closed(closed.clone()));
        }
        loop {
            let Some(message) = self.from.next().await else {
                return Err(ClientError::cut("the harness was cut off without a word"));
            };
            match message.map_err(ClientError::cut)? {
                Message::Text(text) => return Ok(Said::Line(text.as_str().to_owned())),
                Message::Close(Some(frame)) => {
                    let closed = HarnessClosed::read(frame.code.into(), frame.reason.as_str());
                    self.over = Some(closed.clone());
                    return Ok(Said::Closed(closed));
                }
                Message::Close(None) => {
                    return Err(ClientError::cut("the harness was closed without a word"));
                }
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }
}

impl HarnessHears {
    /// Says a line. Dropped, it may have been said.
    #[boxed]
    pub async fn say(&mut self, line: &str) -> Result<(), ClientError> {
        if line.contains('\n') || line.len() > HARNESS_LINE_BYTES_MAX {
            let cause =
                format!("a line has no line break and at most {HARNESS_LINE_BYTES_MAX} bytes");
            return Err(ClientError::invalid(cause));
        }
        self.to.send(Message::Text(line.into())).await.map_err(ClientError::cut)
    }
}

impl std::fmt::Debug for HarnessSays {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HarnessSays").field("over", &self.over).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for HarnessHears {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HarnessHears").finish_non_exhaustive()
    }
}
