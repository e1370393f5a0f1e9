//! A harness as its users hold it: given turns, bound, dropped. Which kind it is makes no difference
//! from here on.

use std::sync::Arc;
use std::time::Duration;

use model::TurnId;

use crate::binding::Binding;
use crate::error::{FailureCode, HarnessError, HarnessErrorCode};
use crate::held_harness::Held;
use crate::program_turn::{ProgramHarness, ProgramTurn};
use crate::shell::{Shell, ShellTurn};

/// One of the two outputs of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// What it says.
    Stdout,
    /// What it says about errors.
    Stderr,
}

impl Stream {
    /// The word used on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// What happens in a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HarnessEvent {
    /// Text that was written.
    Output {
        /// Where.
        stream: Stream,
        /// What.
        text: String,
    },
    /// Something that the harness says, as JSON in one line.
    Message(Arc<str>),
    /// It is over; the last event.
    Ended(HarnessEnd),
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HarnessEnd {
    /// The harness is done with it.
    Completed {
        /// What it gave as the result, as JSON in one line.
        result: Option<Arc<str>>,
    },
    /// The harness said that it failed, died, broke its protocol or said too much.
    Failed {
        /// Why, for branching.
        code: FailureCode,
        /// Why, for people.
        message: String,
    },
    /// The sandbox is over.
    SandboxGone,
}

/// What came of a cancel. In each case nothing of the turn runs any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancelled {
    /// It ended by itself, and the harness can be given the next turn.
    Ended(HarnessEnd),
    /// It was killed. A harness with a program has to be started again.
    Killed,
    /// The sandbox is over.
    SandboxGone,
}

/// A harness in a sandbox. When the last one is dropped, its program is killed: nobody asks it to
/// end, since it may be killed with its sandbox at any time.
#[derive(Clone)]
pub struct HarnessLink(pub(crate) Arc<Kind>);

pub(crate) enum Kind {
    Shell(Shell),
    Program(Arc<ProgramHarness>),
}

impl HarnessLink {
    /// Tells it which session it works for from now on.
    pub async fn bind(&self, binding: &Binding) -> Result<(), HarnessError> {
        match &*self.0 {
            Kind::Shell(shell) => {
                shell.bind(binding);
                Ok(())
            }
            Kind::Program(harness) => harness.bind(binding).await,
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
        }
        .map(Turn)
    }

    /// Gives it to somebody who speaks with its program directly. Whoever has it keeps it: when it is
    /// let go, the program is killed.
    pub async fn hold(&self) -> Result<Held, HarnessError> {
        match &*self.0 {
            Kind::Shell(_) => {
                let cause = "the shell is no program to speak with";
                Err(HarnessError::new(HarnessErrorCode::NotStarted, cause))
            }
            Kind::Program(harness) => harness.hold().await,
        }
    }

    /// Whether it is there to be given turns, as far as is known.
    pub fn is_alive(&self) -> bool {
        match &*self.0 {
            Kind::Shell(shell) => shell.is_alive(),
            Kind::Program(harness) => harness.is_alive(),
        }
    }
}

/// All go from task to task.
const _: () = {
    const fn travels<T: Send>() {}
    travels::<HarnessLink>();
    travels::<Turn>();
    travels::<Held>();
};

/// A turn that a harness has. Dropped before its end, what it runs is killed; a harness with a
/// program has to be started again then.
pub struct Turn(TurnKind);

enum TurnKind {
    Shell(Box<ShellTurn>),
    Program(Box<ProgramTurn>),
}

impl Turn {
    /// What happens next. Dropping the wait loses nothing. After the end nothing more may be asked.
    pub async fn next(&mut self) -> HarnessEvent {
        match &mut self.0 {
            TurnKind::Shell(turn) => turn.next().await,
            TurnKind::Program(turn) => turn.next().await,
        }
    }

    /// Asks it to stop; what is left after the grace is killed with its whole tree. Done when
    /// nothing of it runs.
    pub async fn cancel(&mut self, grace: Duration) -> Cancelled {
        self.cancel_into(grace, |_| {}).await
    }

    /// The same; what it says until then is passed on.
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
