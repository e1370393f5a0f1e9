//! A terminal in a sandbox, over a WebSocket.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::tungstenite::Message;
use wire::{Process, TerminalSize, TerminalWord};

use crate::boxed;
use crate::error::ClientError;
use crate::query::Target;
use crate::sandbox::Handle;
use crate::web_socket::Socket;

/// What to open.
#[derive(Debug, Clone, Default)]
pub struct TerminalRequest {
    /// A command line for the shell; an interactive shell if not given.
    pub command: Option<String>,
    /// Where it starts.
    pub cwd: Option<String>,
    /// The name of the process.
    pub name: Option<String>,
    /// Whether it runs on after the connection has ended.
    pub keep: bool,
}

impl Handle {
    /// Opens a terminal with a shell or another program in it.
    #[boxed]
    pub async fn open_terminal(
        &self,
        request: &TerminalRequest,
        size: TerminalSize,
    ) -> Result<Terminal, ClientError> {
        let target = self
            .at()
            .part("terminal")
            .maybe("rows", Some(size.rows))
            .maybe("columns", Some(size.columns))
            .maybe("command", request.command.as_ref())
            .maybe("cwd", request.cwd.as_ref())
            .maybe("name", request.name.as_ref())
            .maybe("keep", request.keep.then_some(true));
        self.connect(target).await
    }

    /// Attaches to the input and output of a running process.
    #[boxed]
    pub async fn attach(&self, process: &str) -> Result<Terminal, ClientError> {
        self.connect(self.at().part("processes").part(process).part("attach")).await
    }

    async fn connect(&self, target: Target) -> Result<Terminal, ClientError> {
        let socket = self.client.web_socket(target, Duration::ZERO).await?;
        Ok(Terminal { socket, ended: false })
    }
}

/// An open terminal. Dropping it closes the connection.
pub struct Terminal {
    socket: Socket,
    ended: bool,
}

/// An event of a terminal.
#[derive(Debug, Clone, PartialEq)]
pub enum TerminalEvent {
    /// The process; always the first event.
    Process(Box<Process>),
    /// Bytes for the screen.
    Bytes(bytes::Bytes),
    /// The process has ended.
    Exit(Box<Process>),
}

impl Terminal {
    /// The next event; none after the end. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<Option<TerminalEvent>, ClientError> {
        while !self.ended {
            let Some(message) = self.socket.next().await else {
                self.ended = true;
                return Err(ClientError::cut(
                    "the connection to the terminal ended without a close message",
                ));
            };
            match message.map_err(ClientError::cut)? {
                Message::Binary(bytes) => return Ok(Some(TerminalEvent::Bytes(bytes))),
                Message::Text(text) => {
                    let word = serde_json::from_str(text.as_str()).map_err(ClientError::cut)?;
                    match word {
                        TerminalWord::Process(process) => {
                            return Ok(Some(TerminalEvent::Process(process)));
                        }
                        TerminalWord::Exit(process) => {
                            self.ended = true;
                            return Ok(Some(TerminalEvent::Exit(process)));
                        }
                        TerminalWord::Error(problem) => {
                            self.ended = true;
                            return Err(ClientError::Problem(problem));
                        }
                        TerminalWord::Resize(_) => {}
                    }
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
                Message::Close(_) => {
                    self.ended = true;
                    return Err(ClientError::cut("the server closed the terminal"));
                }
            }
        }
        Ok(None)
    }

    /// Sends input.
    pub async fn write(&mut self, bytes: impl Into<bytes::Bytes>) -> Result<(), ClientError> {
        self.socket.send(Message::Binary(bytes.into())).await.map_err(ClientError::cut)
    }

    /// Changes its size.
    #[boxed]
    pub async fn resize(&mut self, size: TerminalSize) -> Result<(), ClientError> {
        let word = serde_json::to_string(&TerminalWord::Resize(size));
        let word = word.map_err(|error| ClientError::invalid(error.to_string()))?;
        self.socket.send(Message::Text(word.into())).await.map_err(ClientError::cut)
    }
}

impl std::fmt::Debug for Terminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Terminal").field("ended", &self.ended).finish_non_exhaustive()
    }
}
