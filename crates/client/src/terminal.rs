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
    /// A line for the shell; a shell itself if not given.
    pub command: Option<String>,
    /// Where it starts.
    pub cwd: Option<String>,
    /// What the process is called.
    pub name: Option<String>,
    /// Whether it runs on when the connection is over.
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

    /// The input and output of a process that is there already.
    #[boxed]
    pub async fn attach(&self, process: &str) -> Result<Terminal, ClientError> {
        self.connect(self.at().part("processes").part(process).part("attach")).await
    }

    async fn connect(&self, target: Target) -> Result<Terminal, ClientError> {
        let socket = self.client.web_socket(target, Duration::ZERO).await?;
        Ok(Terminal { socket, over: false })
    }
}

/// A terminal that is open. Dropped, the connection is over.
pub struct Terminal {
    socket: Socket,
    over: bool,
}

/// What comes out of a terminal.
#[derive(Debug, Clone, PartialEq)]
pub enum Shown {
    /// What process it is: the first thing that is said.
    Process(Box<Process>),
    /// Bytes for the screen.
    Bytes(bytes::Bytes),
    /// The process is over.
    Exit(Box<Process>),
}

impl Terminal {
    /// What comes next; none after the end. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<Option<Shown>, ClientError> {
        while !self.over {
            let Some(message) = self.socket.next().await else {
                self.over = true;
                return Err(ClientError::cut("the terminal was closed without a word"));
            };
            match message.map_err(ClientError::cut)? {
                Message::Binary(bytes) => return Ok(Some(Shown::Bytes(bytes))),
                Message::Text(text) => {
                    let word = serde_json::from_str(text.as_str()).map_err(ClientError::cut)?;
                    match word {
                        TerminalWord::Process(process) => return Ok(Some(Shown::Process(process))),
                        TerminalWord::Exit(process) => {
                            self.over = true;
                            return Ok(Some(Shown::Exit(process)));
                        }
                        TerminalWord::Error(problem) => {
                            self.over = true;
                            return Err(ClientError::Problem(problem));
                        }
                        TerminalWord::Resize(_) => {}
                    }
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
                Message::Close(_) => {
                    self.over = true;
                    return Err(ClientError::cut("the terminal was closed"));
                }
            }
        }
        Ok(None)
    }

    /// Types something.
    pub async fn write(&mut self, bytes: impl Into<bytes::Bytes>) -> Result<(), ClientError> {
        self.socket.send(Message::Binary(bytes.into())).await.map_err(ClientError::cut)
    }

    /// Gives it another size.
    #[boxed]
    pub async fn resize(&mut self, size: TerminalSize) -> Result<(), ClientError> {
        let word = serde_json::to_string(&TerminalWord::Resize(size));
        let word = word.map_err(|error| ClientError::invalid(error.to_string()))?;
        self.socket.send(Message::Text(word.into())).await.map_err(ClientError::cut)
    }
}

impl std::fmt::Debug for Terminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Terminal").field("over", &self.over).finish_non_exhaustive()
    }
}
