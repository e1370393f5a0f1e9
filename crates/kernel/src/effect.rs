//! What the kernel wants done. Effects are imperative and idempotent by their id; each ends in
//! exactly one of done, failed or timed out, and a completion that is late or repeated is
//! harmless. The interpreter decides nothing: whatever it needs to know is in the effect.
//!
//! Effects on one instance, or on one workspace, are carried out in the order in which they are
//! given: an interpreter that has given up on one that timed out still makes sure that it can do
//! nothing any more before the next one begins. So a kill ends a launch that hangs, and the
//! deletion of a workspace a copy into it, or an archive of it. Starting a program again is like a
//! use: it goes on beside the others, and is given up when its process is over.

use std::sync::Arc;

use model::{
    ClaimSettings, EffectId, EndCause, Generation, InstanceId, Mono, ProcessEnd, ProcessId,
    Refusal, RequestId, SandboxId, SessionId, Template, TurnId, Wall, WorkspaceId,
};

use crate::reply::Reply;

/// One thing to do, by when.
#[derive(Debug, Clone)]
pub struct Effect {
    /// Its id, which its completion names.
    pub id: EffectId,
    /// When it counts as timed out. The kernel sees to that by itself; the interpreter stops
    /// trying then.
    pub deadline: Mono,
    /// What to do.
    pub action: Action,
}

/// What to do.
#[derive(Debug, Clone)]
pub enum Action {
    /// Start a sandbox, and be done when guest and harness are ready.
    Launch(Box<Launch>),
    /// Bind settings to a warm sandbox in one step, replacing whatever was bound, and prove that
    /// it answers.
    Claim {
        /// Which.
        instance: InstanceId,
        /// What to bind.
        settings: Option<Arc<ClaimSettings>>,
        /// When it will end, for runtimes that keep a clock of their own.
        expires_at: Option<Wall>,
    },
    /// Run a trivial command to its end.
    Probe {
        /// Which.
        instance: InstanceId,
    },
    /// Kill every process of the use and empty every writable place.
    Wipe {
        /// Which.
        instance: InstanceId,
    },
    /// Prove from outside that nothing of the use is left and that it answers.
    Prove {
        /// Which.
        instance: InstanceId,
    },
    /// Stop all its processes from running.
    Freeze {
        /// Which.
        instance: InstanceId,
    },
    /// Let its processes run again.
    Thaw {
        /// Which.
        instance: InstanceId,
    },
    /// Stop all its processes from running for a moment, so that its files can be copied. This is
    /// no rest: [`Action::LetRun`] follows within about a second.
    HoldStill {
        /// Which.
        instance: InstanceId,
    },
    /// Let the processes run again of a sandbox that was held still, or may have been.
    LetRun {
        /// Which.
        instance: InstanceId,
    },
    /// Give a turn to the harness.
    StartTurn {
        /// Where.
        instance: InstanceId,
        /// Of which session.
        session: SessionId,
        /// Which.
        turn: TurnId,
    },
    /// Kill everything that a turn started, and be done when it is.
    StopTurn {
        /// Where.
        instance: InstanceId,
        /// Which.
        turn: TurnId,
    },
    /// Kill a process and its descendants.
    KillProcess {
        /// Where.
        instance: InstanceId,
        /// Which.
        process: ProcessId,
    },
    /// Start the program of a process again. When the kernel says meanwhile that the process is over,
    /// this is given up, and nothing that it started may go on.
    RestartProcess {
        /// Where.
        instance: InstanceId,
        /// Which.
        process: ProcessId,
        /// For which time, from 1.
        attempt: u32,
    },
    /// Make the workspace durable as it is now.
    Persist {
        /// Where.
        instance: InstanceId,
        /// Which.
        workspace: WorkspaceId,
        /// Whether its guest runs, and may be asked for files that the host cannot reach.
        guest_awake: bool,
    },
    /// Remove a sandbox and everything that was made for it. Done means that nothing is left;
    /// that it never existed is done too.
    Kill {
        /// Which.
        instance: InstanceId,
        /// The workspace that goes with it; none if the files stay.
        workspace: Option<WorkspaceId>,
    },
    /// Copy one workspace into a new one, all or nothing.
    CopyWorkspace {
        /// From.
        from: WorkspaceId,
        /// Where it is in use right now, if it is.
        instance: Option<InstanceId>,
        /// Whether the guest of that runs, and may be asked for files that the host cannot reach.
        guest_awake: bool,
        /// Into.
        to: WorkspaceId,
        /// What the sandbox is made from that will start on it.
        template: Arc<Template>,
    },
    /// Put a workspace that nothing uses into an archive and take it away from where it is, all or
    /// nothing. That it is in its archive already is done too. A start on it meanwhile comes
    /// first.
    ArchiveWorkspace {
        /// Which.
        workspace: WorkspaceId,
    },
    /// Delete a workspace. That it never existed is done too.
    DeleteWorkspace {
        /// Which.
        workspace: WorkspaceId,
    },
}

/// What is needed to start a sandbox.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The label of what is made.
    pub instance: InstanceId,
    /// The sandbox it is for.
    pub sandbox: SandboxId,
    /// Its generation.
    pub generation: Generation,
    /// What it is made from.
    pub template: Arc<Template>,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// Whether that workspace exists already and must be found with its contents.
    pub restore: bool,
    /// What to bind to it before anything starts in it.
    pub settings: Option<Arc<ClaimSettings>>,
}

/// A word to a caller that waits. Given only after the journal of its decision is durable.
#[derive(Debug, Clone)]
pub enum Notice {
    /// The answer to a request that was pending.
    Answer {
        /// Which.
        request: RequestId,
        /// The answer.
        result: Result<Reply, Refusal>,
    },
    /// What was in progress in an instance until now is over: it is being removed, or wiped for its
    /// next user. Each user of an instance gets this once, whatever the cause; a caller that is
    /// using it gets the refusal [`crate::use_broken`].
    InstanceOver {
        /// Which.
        instance: InstanceId,
        /// Why.
        cause: EndCause,
    },
    /// The program of a process failed, and is started again after a pause.
    ProcessRests {
        /// The sandbox that it is in.
        sandbox: SandboxId,
        /// Which.
        process: ProcessId,
        /// The exit code of its program, if that ended by itself.
        exit_code: Option<i32>,
        /// For which time it is started again, from 1.
        attempt: u32,
        /// Of how many; no bound if not given.
        of: Option<u32>,
    },
    /// A process is over for good. What still runs of it is ended.
    ProcessOver {
        /// The sandbox that it was in.
        sandbox: SandboxId,
        /// Which.
        process: ProcessId,
        /// How and why.
        end: ProcessEnd,
        /// Whether it kept its sandbox awake until it ended by itself.
        keeps_alive: bool,
    },
    /// What a sandbox's scale file is to count besides what was written to it.
    HoldsChanged {
        /// Where.
        instance: InstanceId,
        /// How many processes keep it awake.
        processes: u32,
        /// As of which note about the file.
        seen: u64,
    },
    /// Nothing is left: the server may exit.
    ShutdownComplete,
}
