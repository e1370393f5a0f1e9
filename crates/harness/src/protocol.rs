//! What a harness and its host say to each other, without saying it: a language turns turns into
//! lines, and lines into what happened. No I/O, no clock.

use std::time::Duration;

use model::TurnId;

use crate::binding::Binding;
use crate::error::HarnessError;
use crate::link::{HarnessEnd, HarnessEvent};

/// What a line meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Nothing that matters now.
    Nothing,
    /// A piece of the turn.
    Event(HarnessEvent),
    /// A line for the logs.
    Log(String),
    /// The turn is over.
    Ended(HarnessEnd),
    /// The harness is not to be trusted any more.
    Broken(String),
}

/// The language of a harness, and how far the conversation got.
pub(crate) trait Protocol: Send {
    /// Begins a turn: what to say.
    fn begin(
        &mut self,
        turn: TurnId,
        input: &str,
        config: Option<&str>,
    ) -> Result<String, HarnessError>;

    /// What a line means during a turn.
    fn on_line(&mut self, line: &str) -> Meaning;

    /// What a line means while there is no turn. Only `Nothing`, `Log` and `Broken`.
    fn on_line_between_turns(&mut self, line: &str) -> Meaning;

    /// How long silence has a meaning from now on; none: it has none.
    fn silence_timeout(&self) -> Option<Duration>;

    /// What it means that nothing was heard for so long.
    fn on_silence(&mut self) -> Meaning;

    /// What to say to stop the turn.
    fn cancel(&self) -> String;

    /// What to say to bind it to a session; none if it takes no binding after its start.
    fn bind(&self, binding: &Binding) -> Result<Option<String>, HarnessError>;

    /// Whether a line says that it is bound.
    fn is_bound(&self, line: &str) -> bool;
}
