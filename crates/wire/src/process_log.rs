//! What processes write: in parts, as it comes, and on terminals.

use serde::{Deserialize, Serialize};

use crate::exec::Output;
use crate::problem::Problem;
use crate::process::{Process, TerminalSize};
use crate::session::LogStream;
use crate::time::Time;

/// Part of what a process wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ProcessLog {
    /// What it wrote, in order.
    pub pieces: Vec<LogPiece>,
    /// Where to go on.
    pub next_offset: u64,
    /// The first byte that is still kept.
    pub first_offset: u64,
    /// Whether there is more right now.
    pub more: bool,
    /// Whether the process is over.
    pub over: bool,
}

/// What a process wrote at once to one of its outputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LogPiece {
    /// Where it begins.
    pub offset: u64,
    /// Where to go on after it.
    pub next_offset: u64,
    /// To which of the two.
    pub stream: LogStream,
    /// When.
    pub at: Time,
    /// What.
    #[serde(flatten)]
    pub output: Output,
}

/// One step of a log that is followed, as an event of a stream or as a line. The last one is `exit` or
/// `error`; a stream that ends without either was cut off and can be taken up where it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ProcessEvent {
    /// It wrote something.
    Output(LogPiece),
    /// It is over, and everything that it wrote was told.
    Exit {
        /// How it ended.
        process: Box<Process>,
    },
    /// It cannot be told on.
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

/// What is said in texts on a terminal over a WebSocket. Bytes are the terminal's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum TerminalWord {
    /// By the client: the terminal has another size now.
    Resize(TerminalSize),
    /// By the server, first: the process.
    Process(Box<Process>),
    /// By the server, last: how the process ended.
    Exit(Box<Process>),
    /// By the server, last: why there is nothing more to see.
    Error(Box<Problem>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_on_a_terminal_are_named_by_their_key() {
        let resize = TerminalWord::Resize(TerminalSize { rows: 24, columns: 80 });
        let text = r#"{"resize":{"rows":24,"columns":80}}"#;
        assert_eq!(serde_json::to_string(&resize).unwrap(), text);
        assert_eq!(serde_json::from_str::<TerminalWord>(text).unwrap(), resize);
    }
}
