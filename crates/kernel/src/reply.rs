//! What callers get to know. A request is answered at once, or it is [`Reply::Pending`] and the
//! answer follows as a notice.

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
    /// It was heard, and there is nothing to say.
    Noted,
    /// The answer will follow.
    Pending,
    /// A sandbox was handed out.
    CheckedOut(CheckedOut),
    /// A lease lasts until then.
    Renewed {
        /// When it ends.
        expires_at: Wall,
    },
    /// A use may begin.
    Granted(Grant),
    /// What keeps a sandbox awake.
    Wakefulness(WakeReport),
    /// A sandbox is frozen or thawed.
    Frozen {
        /// Whether it is frozen now.
        frozen: bool,
    },
    /// It is gone.
    Gone,
    /// A session has a sandbox.
    SessionReady(SessionReady),
    /// A turn was started.
    TurnStarted(SessionReady),
    /// A turn will start when those before it are over.
    TurnQueued {
        /// The turn.
        turn: TurnId,
    },
    /// An abort is over.
    Aborted {
        /// Whether there was a turn to abort.
        turn: Option<TurnId>,
        /// Whether the sandbox lives on.
        sandbox_kept: bool,
    },
    /// A session is set aside.
    Paused,
    /// A session is stopped.
    Stopped,
    /// A session is over.
    Ended,
    /// The files of a workspace can be read.
    Readable {
        /// Where they are in use, if they are.
        instance: Option<InstanceId>,
        /// Whether the guest of that runs, and may be asked for what the host cannot reach.
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
    /// What was launched for it.
    pub instance: InstanceId,
    /// When the lease ends unless renewed.
    pub expires_at: Wall,
    /// How it was come by.
    pub path: CheckoutPath,
    /// How often the sandbox was used before.
    pub uses: u32,
}

/// How a checkout came by its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CheckoutPath {
    /// One was idle.
    Fast,
    /// One was started for it at once.
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
    /// What was launched for it.
    pub instance: InstanceId,
    /// What processes started by this use get.
    pub settings: Option<Arc<ClaimSettings>>,
    /// Files of its session that were lost before, if no answer has reported that yet.
    pub lost: Option<Loss>,
}

/// Files of a session were lost, and the answer that this comes with has to say so.
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
    /// What was launched for it.
    pub instance: InstanceId,
    /// How it came by it.
    pub cause: ActiveCause,
    /// Why files were lost, if no answer has reported that yet.
    pub state_lost: Option<TerminatedReason>,
}

impl SessionReady {
    /// What the answer that this is part of has to report.
    pub fn lost(&self) -> Option<Loss> {
        let (session, generation) = (self.session, self.generation);
        self.state_lost.map(|reason| Loss { session, generation, reason })
    }
}

/// What keeps a sandbox awake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WakeReport {
    /// Whether anything does.
    pub wakefulness: Wakefulness,
    /// When its processes will no longer do so.
    pub scheduled_stop_at: Option<Wall>,
    /// The processes that do.
    pub processes: Vec<KeptProcess>,
    /// What programs wrote to the scale file.
    pub scale: u32,
    /// Why it rests, or does not.
    pub because: RestCause,
}

/// Why a sandbox rests, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RestCause {
    /// It is frozen.
    Frozen,
    /// It has no processes.
    Cold,
    /// It is being started, handed out or ended.
    Moving,
    /// It is used.
    InUse,
    /// Something of its own keeps it awake.
    KeptAwake,
    /// Its runtime cannot freeze.
    CannotFreeze,
    /// It is not used, and nothing keeps it awake.
    Quiet,
}

impl RestCause {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Frozen => "it is frozen until it is used",
            Self::Cold => "it has no processes until it is used",
            Self::Moving => "it is being started, handed out or ended",
            Self::InUse => "a turn, command, stream or connection is in progress",
            Self::KeptAwake => "a process with keepAlive or the scale file keeps it awake",
            Self::CannotFreeze => "its runtime cannot freeze",
            Self::Quiet => "nobody uses it and nothing keeps it awake",
        }
    }
}

/// A process that keeps its sandbox awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptProcess {
    /// Its id.
    pub process: ProcessId,
    /// When it was started.
    pub started_at: Wall,
    /// When it is killed; 0 is never.
    pub timeout_ms: u64,
}
