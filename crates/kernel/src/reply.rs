//! Answers to callers. A request is answered at once, or it is [`Reply::Pending`] and the answer
//! follows as a notice.

use std::sync::Arc;

use model::lifecycle::ActiveCause;
use model::state::Wakefulness;
use model::{
    ClaimSettings, Generation, InstanceId, LeaseId, ProcessId, SandboxId, SessionId,
    TerminatedReason, TurnId, Wall,
};

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// The event was accepted; there is nothing else to answer.
    Noted,
    /// The answer follows as a notice.
    Pending,
    /// A sandbox was handed out.
    CheckedOut(CheckedOut),
    /// A lease was renewed.
    Renewed {
        /// When it ends.
        expires_at: Wall,
    },
    /// A use may begin.
    Granted(Grant),
    /// What keeps a sandbox alive.
    Wakefulness(KeepAliveReport),
    /// A sandbox is frozen or thawed.
    Frozen {
        /// Whether it is frozen now.
        frozen: bool,
    },
    /// The sandbox or pool is gone.
    Gone,
    /// A session has a sandbox.
    SessionReady(SessionReady),
    /// A turn was started.
    TurnStarted(SessionReady),
    /// A turn will start when those before it have ended.
    TurnQueued {
        /// The turn.
        turn: TurnId,
    },
    /// An abort is complete.
    Aborted {
        /// The turn that was aborted, if there was one.
        turn: Option<TurnId>,
        /// Whether the sandbox was kept.
        sandbox_kept: bool,
    },
    /// A session is paused.
    Paused,
    /// A session is stopped.
    Stopped,
    /// A session has ended.
    Ended,
    /// The files of a workspace can be read.
    Readable {
        /// The instance that uses them, if any.
        instance: Option<InstanceId>,
        /// Whether the guest of that instance runs and can send files that the host cannot reach.
        guest_awake: bool,
    },
    /// A session was made from another.
    Forked {
        /// The new one.
        session: SessionId,
    },
}

/// A sandbox under a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedOut {
    /// The lease.
    pub lease: LeaseId,
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its generation.
    pub generation: Generation,
    /// Its instance.
    pub instance: InstanceId,
    /// When the lease ends unless renewed.
    pub expires_at: Wall,
    /// How it got the sandbox.
    pub path: CheckoutPath,
    /// How often the sandbox was used before.
    pub uses: u32,
}

/// How a checkout got its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CheckoutPath {
    /// One was idle.
    Fast,
    /// One was launched for it at once.
    Overflow,
    /// It had to wait.
    Blocked,
}

/// Permission to use a sandbox, until the use is reported as ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its generation.
    pub generation: Generation,
    /// Its instance.
    pub instance: InstanceId,
    /// The settings for processes that this use starts.
    pub settings: Option<Arc<ClaimSettings>>,
    /// State loss of its session that no answer has reported yet.
    pub lost: Option<Loss>,
}

/// A state loss that the answer must report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// The session.
    pub session: SessionId,
    /// The generation of the sandbox that the answer is about.
    pub generation: Generation,
    /// Why they were lost.
    pub reason: TerminatedReason,
}

/// A session with its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionReady {
    /// The session.
    pub session: SessionId,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// Its generation.
    pub generation: Generation,
    /// Its instance.
    pub instance: InstanceId,
    /// How it got the sandbox.
    pub cause: ActiveCause,
    /// Why files were lost, if no answer has reported that yet.
    pub state_lost: Option<TerminatedReason>,
}

impl SessionReady {
    /// The state loss that the answer must report.
    pub fn lost(&self) -> Option<Loss> {
        let (session, generation) = (self.session, self.generation);
        self.state_lost.map(|reason| Loss { session, generation, reason })
    }
}

/// What keeps a sandbox alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeepAliveReport {
    /// Whether anything does.
    pub wakefulness: Wakefulness,
    /// When its processes will stop doing so.
    pub scheduled_stop_at: Option<Wall>,
    /// The processes that do.
    pub processes: Vec<KeepAliveProcess>,
    /// The counter of the scale file.
    pub scale: u32,
    /// Why it is frozen, or not.
    pub because: FreezeStatus,
}

/// Why a sandbox is frozen, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FreezeStatus {
    /// It is frozen.
    Frozen,
    /// It is cold.
    Cold,
    /// It is being launched, handed out or ended.
    Moving,
    /// It is in use.
    InUse,
    /// A process or the scale file keeps it alive.
    KeptAwake,
    /// Its runtime cannot freeze.
    CannotFreeze,
    /// It is idle, and nothing keeps it alive.
    Quiet,
}

impl FreezeStatus {
    /// As a text for users.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Frozen => "the sandbox is frozen until it is used",
            Self::Cold => "the sandbox is cold: it has no processes until it is used",
            Self::Moving => "the sandbox is being launched, handed out or ended",
            Self::InUse => "a turn, command, stream or connection is in progress",
            Self::KeptAwake => "a process with keepAlive or the scale file keeps the sandbox awake",
            Self::CannotFreeze => "the runtime of the sandbox cannot freeze",
            Self::Quiet => "the sandbox is idle and nothing keeps it alive",
        }
    }
}

/// A process that keeps its sandbox alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAliveProcess {
    /// Its id.
    pub process: ProcessId,
    /// When it was started.
    pub started_at: Wall,
    /// Its time limit; 0 is none.
    pub timeout_ms: u64,
}
