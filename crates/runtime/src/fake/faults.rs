//! Faults that a test asks for: the next call of an operation fails, hangs, is slow, or kills its
//! sandbox. Nothing happens that was not asked for.

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::RuntimeError;

/// What a runtime or sandbox can be asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Making a sandbox.
    Launch,
    /// Binding settings.
    Claim,
    /// Proving that the guest answers.
    Ping,
    /// Starting a program.
    Exec,
    /// Opening a file for reading.
    ReadFile,
    /// Beginning to write a file.
    WriteFile,
    /// Anything else with files.
    Files,
    /// Connecting to a port, listing ports or programs.
    Ports,
    /// Freezing.
    Freeze,
    /// Thawing.
    Thaw,
    /// Flushing its workspace.
    Sync,
    /// Making a used sandbox fresh.
    Wipe,
    /// Proving that nothing of a use is left.
    Prove,
    /// Arming, changing, reading or disarming a network.
    Network,
    /// Removing a sandbox.
    Kill,
    /// Listing instances.
    List,
    /// Removing what an earlier run left.
    Reap,
}

impl Operation {
    pub(crate) const fn step(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Claim => "claim",
            Self::Ping => "ping",
            Self::Exec => "exec",
            Self::ReadFile => "read a file",
            Self::WriteFile => "write a file",
            Self::Files => "use files",
            Self::Ports => "use ports",
            Self::Freeze => "freeze",
            Self::Thaw => "thaw",
            Self::Sync => "sync",
            Self::Wipe => "wipe",
            Self::Network => "use the network",
            Self::Prove => "prove",
            Self::Kill => "kill",
            Self::List => "list",
            Self::Reap => "reap orphans",
        }
    }
}

/// What goes wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this.
    Fail(RuntimeError),
    /// It is not done until it is cancelled or its deadline passes.
    Hang,
    /// It takes so much longer.
    Delay(Duration),
    /// The sandbox dies at this moment.
    Die {
        /// For want of memory.
        out_of_memory: bool,
    },
}

/// Faults still to come, in order.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    queue: VecDeque<(Operation, Fault)>,
}

impl Faults {
    pub(crate) fn push(&mut self, operation: Operation, fault: Fault) {
        self.queue.push_back((operation, fault));
    }

    /// The next fault for an operation, if there is one.
    pub(crate) fn take(&mut self, operation: Operation) -> Option<Fault> {
        let at = self.queue.iter().position(|(of, _)| *of == operation)?;
        self.queue.remove(at).map(|(_, fault)| fault)
    }
}
