//! The protocol of a harness without I/O and without a clock: it turns turns into lines, and lines
//! into what happened.

use std::time::Duration;

use model::TurnId;

use crate::binding::Binding;
use crate::error::HarnessError;
use crate::link::{HarnessEnd, HarnessEvent};

/// The meaning of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Nothing that matters now.
    Nothing,
    /// An event of the turn.
    Event(HarnessEvent),
    /// A line for the logs.
    Log(String),
    /// The turn has ended.
    Ended(HarnessEnd),
    /// The harness broke its protocol and cannot be trusted any more.
    Broken(String),
}

/// The protocol of a harness, and the state of the conversation.
pub(crate) trait Protocol: Send {
    /// Begins a turn: the line to send.
    fn begin(
        &mut self,
        turn: TurnId,
        input: &str,
        config: Option<&str>,
    ) -> Result<String, HarnessError>;

    /// The meaning of a line during a turn.
    fn on_line(&mut self, line: &str) -> Meaning;

    /// The meaning of a line while there is no turn. Only `Nothing`, `Log` and `Broken`.
    fn on_line_between_turns(&mut self, line: &str) -> Meaning;

    /// After how much silence to call `on_silence`; `None` if silence has no meaning.
    fn silence_timeout(&self) -> Option<Duration>;

    /// The meaning of that silence.
    fn on_silence(&mut self) -> Meaning;

    /// How long the next turn has to wait for the end of an earlier one; `None` if nothing is due.
    fn settle_timeout(&self) -> Option<Duration>;

    /// The line that stops the turn.
    fn cancel(&self) -> String;

    /// The line that binds it to a session; `None` if it takes no binding after its start.
    fn bind(&self, binding: &Binding) -> Result<Option<String>, HarnessError>;

    /// Whether a line confirms the binding.
    fn is_bound(&self, line: &str) -> bool;
}
