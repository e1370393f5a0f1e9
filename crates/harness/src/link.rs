//! A harness as callers use it: given turns, bound, dropped. Its kind makes no difference from here
//! on.

use std::sync::Arc;
use std::time::Duration;

use model::TurnId;

use crate::binding::Binding;
use crate::early_bridge::EarlyBridge;
use crate::error::{FailureCode, HarnessError, HarnessErrorCode};
use crate::held_harness::HeldHarness;
use crate::program_turn::{ProgramHarness, ProgramTurn};
use crate::shell::{Shell, ShellTurn};

/// One of the two outputs of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// An event of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HarnessEvent {
    /// Text that was written.
    Output {
        /// Where.
        stream: Stream,
        /// What.
        text: String,
    },
    /// A message of the harness, as JSON in one line.
    Message(Arc<str>),
    /// The turn has ended; the last event.
    Ended(HarnessEnd),
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HarnessEnd {
    /// The harness has completed it.
    Completed {
        /// Its result, as JSON in one line.
        result: Option<Arc<str>>,
    },
    /// The harness reported an error, died, broke its protocol or sent too much.
    Failed {
        /// Why, for branching.
        code: FailureCode,
        /// Why, for people.
        message: String,
    },
    /// The sandbox has ended.
    SandboxGone,
}

/// The outcome of a cancel. In each case nothing of the turn runs any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancelled {
    /// The turn ended by itself, and the harness can take the next one.
    Ended(HarnessEnd),
    /// It was killed. A harness with a program has to be started again.
    Killed,
    /// The sandbox has ended.
    SandboxGone,
}

/// A harness in a sandbox. When the last one is dropped, its program is killed: it is not asked to
/// end, since it may be killed with its sandbox at any time.
#[derive(Clone)]
pub struct HarnessLink(pub(crate) Arc<Kind>);

pub(crate) enum Kind {
    Shell(Shell),
    Program(Arc<ProgramHarness>),
    Early(EarlyBridge),
}

impl HarnessLink {
    /// Binds it to a session from now on, and gives the harness that takes its turns.
    pub async fn bind(self, binding: &Binding) -> Result<Self, HarnessError> {
        match &*self.0 {
            Kind::Shell(shell) => shell.bind(binding),
            Kind::Program(harness) => harness.bind(binding).await?,
            Kind::Early(bridge) => {
                return Ok(Self(Arc::new(Kind::Program(bridge.bind(binding).await?))));
            }
        }
        Ok(self)
    }

    /// Whether it can be bound to a session with these settings. Another one has to be started if
    /// not.
    pub fn can_bind(&self, binding: &Binding) -> bool {
        match &*self.0 {
            Kind::Shell(_) | Kind::Program(_) => true,
            Kind::Early(_) => EarlyBridge::fits(binding),
        }
    }

    /// Whether it can be used without a session.
    pub fn works_unbound(&self) -> bool {
        match &*self.0 {
            Kind::Shell(_) | Kind::Program(_) => true,
            Kind::Early(_) => false,
        }
    }

    /// Gives it a turn: the input and the configuration are JSON. One turn at a time.
    pub async fn turn(
        &self,
        turn: TurnId,
        input: &str,
        config: Option<&str>,
    ) -> Result<Turn, HarnessError> {
        match &*self.0 {
            Kind::Shell(shell) => {
                let begun = shell.turn(input).await?;
                Ok(TurnKind::Shell(Box::new(begun)))
            }
            Kind::Program(harness) => {
                let begun = ProgramTurn::begin(harness, turn, input, config).await?;
                Ok(TurnKind::Program(Box::new(begun)))
            }
            Kind::Early(_) => Err(unbound()),
        }
        .map(Turn)
    }

    /// Gives its program to a caller that uses it directly. When the hold is dropped, the program
    /// is killed.
    pub async fn hold(&self) -> Result<HeldHarness, HarnessError> {
        match &*self.0 {
            Kind::Shell(_) => {
                let cause = "the shell harness has no program to hold";
                Err(HarnessError::new(HarnessErrorCode::NotStarted, cause))
            }
            Kind::Program(harness) => harness.hold().await,
            Kind::Early(_) => Err(unbound()),
        }
    }

    /// Whether it can take turns, as far as is known.
    pub fn is_alive(&self) -> bool {
        match &*self.0 {
            Kind::Shell(shell) => shell.is_alive(),
            Kind::Program(harness) => harness.is_alive(),
            Kind::Early(bridge) => bridge.is_alive(),
        }
    }
}

fn unbound() -> HarnessError {
    let cause = "the bridge has no session yet";
    HarnessError::new(HarnessErrorCode::NotStarted, cause)
}

/// All are sent between tasks.
const _: () = {
    const fn travels<T: Send>() {}
    travels::<HarnessLink>();
    travels::<Turn>();
    travels::<HeldHarness>();
};

/// A turn of a harness. If it is dropped before its end, what it runs is killed; a harness with a
/// program then has to be started again.
pub struct Turn(TurnKind);

enum TurnKind {
    Shell(Box<ShellTurn>),
    Program(Box<ProgramTurn>),
}

impl Turn {
    /// The next event. Dropping the wait loses nothing. Must not be called after the end.
    pub async fn next(&mut self) -> HarnessEvent {
        match &mut self.0 {
            TurnKind::Shell(turn) => turn.next().await,
            TurnKind::Program(turn) => turn.next().await,
        }
    }

    /// Asks it to stop; what is left after the grace is killed with its whole tree. Returns when
    /// nothing of it runs.
    pub async fn cancel(&mut self, grace: Duration) -> Cancelled {
        self.cancel_into(grace, |_| {}).await
    }

    /// The same, but passes on its events until then.
    pub async fn cancel_into(
        &mut self,
        grace: Duration,
        mut take: impl FnMut(HarnessEvent) + Send,
    ) -> Cancelled {
        match &mut self.0 {
            TurnKind::Shell(turn) => turn.cancel(grace, &mut take).await,
            TurnKind::Program(turn) => turn.cancel(grace, &mut take).await,
        }
    }
}
