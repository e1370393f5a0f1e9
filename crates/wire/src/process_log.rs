//! The output of processes: in pages, as a stream, and on terminals.

use serde::{Deserialize, Serialize};

use crate::exec::Output;
use crate::problem::Problem;
use crate::process::{Process, TerminalSize};
use crate::session::LogStream;
use crate::time::Time;

/// A page of a process's output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProcessLog {
    /// The output, in order.
    pub pieces: Vec<LogPiece>,
    /// The offset of the next page.
    pub next_offset: u64,
    /// The first byte that is still stored.
    pub first_offset: u64,
    /// Whether more output is available now.
    pub more: bool,
    /// Whether the process has ended.
    pub over: bool,
}

/// One chunk of a process's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LogPiece {
    /// Its offset.
    pub offset: u64,
    /// The offset after it.
    pub next_offset: u64,
    /// The stream: `stdout` or `stderr`.
    pub stream: LogStream,
    /// When.
    pub at: Time,
    /// What.
    #[serde(flatten)]
    pub output: Output,
}

/// One event of a followed log, in an event stream or as a JSON line. The last one is `exit` or
/// `error`; a stream without either was cut off and can be resumed at the last offset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ProcessEvent {
    /// The process wrote output.
    Output(LogPiece),
    /// The process ended, and all its output was sent.
    Exit {
        /// How it ended.
        process: Box<Process>,
    },
    /// The stream failed.
    Error {
        /// Why.
        problem: Box<Problem>,
    },
}

impl ProcessEvent {
    /// The name of the event in a stream: its `type`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Output(_) => "output",
            Self::Exit { .. } => "exit",
            Self::Error { .. } => "error",
        }
    }
}

/// Text messages on a terminal's WebSocket. Binary messages are the bytes of the terminal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum TerminalWord {
    /// From the client: the new size of the terminal.
    Resize(TerminalSize),
    /// From the server, first: the process.
    Process(Box<Process>),
    /// From the server, last: how the process ended.
    Exit(Box<Process>),
    /// From the server, last: why the terminal closed.
    Error(Box<Problem>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_messages_are_tagged_by_their_key() {
        let resize = TerminalWord::Resize(TerminalSize { rows: 24, columns: 80 });
        let text = r#"{"resize":{"rows":24,"columns":80}}"#;
        assert_eq!(serde_json::to_string(&resize).unwrap(), text);
        assert_eq!(serde_json::from_str::<TerminalWord>(text).unwrap(), resize);
    }
}
