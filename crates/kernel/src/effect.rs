//! What the kernel wants done. Effects are imperative and idempotent by their id. Each ends in
//! exactly one of done, failed or timed out, and a late or repeated completion is harmless. The
//! interpreter decides nothing: the effect contains everything it needs.
//!
//! Effects on one instance, or on one workspace, are carried out in the order in which they are
//! given. An interpreter that gave up on an effect that timed out makes sure that it can do nothing
//! any more before the next one begins. So a kill ends a launch that hangs, and the deletion of a
//! workspace ends a copy into it or an archive of it. The restart of a program is like a use: it
//! runs beside the others, and the interpreter gives it up when its process has ended.

use std::sync::Arc;

use model::{
    ClaimSettings, EffectId, EndCause, Generation, InstanceId, Mono, ProcessEnd, ProcessId,
    Refusal, RequestId, SandboxId, SessionId, Template, TurnId, Wall, WorkspaceId,
};

use crate::reply::Reply;

/// One action, with its deadline.
#[derive(Debug, Clone)]
pub struct Effect {
    /// Its id, which its completion names.
    pub id: EffectId,
    /// When it counts as timed out. The kernel watches this itself; the interpreter stops trying
    /// then.
    pub deadline: Mono,
    /// What to do.
    pub action: Action,
}

/// What to do.
#[derive(Debug, Clone)]
pub enum Action {
    /// Launch an instance. Done when guest and harness are ready.
    Launch(Box<Launch>),
    /// Bind settings to a warm sandbox in one step, replacing what was bound, and check that it
    /// answers.
    Claim {
        /// Which.
        instance: InstanceId,
        /// What to bind.
        settings: Option<Arc<ClaimSettings>>,
        /// When it will end, for runtimes that keep a clock of their own.
        expires_at: Option<Wall>,
    },
    /// Run a trivial command to its end, to see whether the sandbox answers.
    Probe {
        /// Which.
        instance: InstanceId,
    },
    /// Kill every process of the last user and empty everything writable.
    Wipe {
        /// Which.
        instance: InstanceId,
    },
    /// Check from outside that nothing of the last user is left, and that the sandbox answers.
    Prove {
        /// Which.
        instance: InstanceId,
    },
    /// Freeze all its processes.
    Freeze {
        /// Which.
        instance: InstanceId,
    },
    /// Thaw its processes.
    Thaw {
        /// Which.
        instance: InstanceId,
    },
    /// Quiesce: freeze all its processes for the moment of a copy of its files. [`Action::Unquiesce`]
    /// follows within about a second.
    Quiesce {
        /// Which.
        instance: InstanceId,
    },
    /// Release the processes of a sandbox that is quiesced, or may be.
    Unquiesce {
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
    /// Kill everything that a turn started. Done when all of it has ended.
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
    /// Restart the program of a process. If the kernel reports the end of the process meanwhile,
    /// the interpreter gives this up, and nothing that it started may go on.
    RestartProcess {
        /// Where.
        instance: InstanceId,
        /// Which.
        process: ProcessId,
        /// The number of the restart, from 1.
        attempt: u32,
    },
    /// Save the workspace as it is now.
    Persist {
        /// Where.
        instance: InstanceId,
        /// Which.
        workspace: WorkspaceId,
        /// Whether its guest runs and can send files that the host cannot reach.
        guest_awake: bool,
    },
    /// Remove an instance and everything that was made for it. Done when nothing is left, also if
    /// it never existed.
    Kill {
        /// Which.
        instance: InstanceId,
        /// The workspace to delete with it; none if the files stay.
        workspace: Option<WorkspaceId>,
    },
    /// Copy one workspace into a new one, all or nothing.
    CopyWorkspace {
        /// From.
        from: WorkspaceId,
        /// The instance that uses it right now, if any.
        instance: Option<InstanceId>,
        /// Whether the guest of that instance runs and can send files that the host cannot reach.
        guest_awake: bool,
        /// Into.
        to: WorkspaceId,
        /// The template of the sandbox that will start on the copy.
        template: Arc<Template>,
    },
    /// Archive a workspace that nothing uses and delete the workspace, all or nothing. Done also if
    /// it is already archived. A launch on it meanwhile comes first.
    ArchiveWorkspace {
        /// Which.
        workspace: WorkspaceId,
    },
    /// Delete a workspace. Done also if it never existed.
    DeleteWorkspace {
        /// Which.
        workspace: WorkspaceId,
    },
}

/// What a launch needs.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The id of the new instance.
    pub instance: InstanceId,
    /// The sandbox it is for.
    pub sandbox: SandboxId,
    /// Its generation.
    pub generation: Generation,
    /// Its template.
    pub template: Arc<Template>,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// Whether the workspace exists and its files must be restored.
    pub restore: bool,
    /// The settings to bind before anything starts in it.
    pub settings: Option<Arc<ClaimSettings>>,
}

/// What the interpreter delivers to callers, after the journal of the decision is durable.
#[derive(Debug, Clone)]
pub enum Notice {
    /// The answer to a request that was pending.
    Answer {
        /// Which.
        request: RequestId,
        /// The answer.
        result: Result<Reply, Refusal>,
    },
    /// An instance has ended for its user: it is being removed, or wiped for the next one. Each
    /// user of an instance gets this once, whatever the cause; a use in progress is refused with
    /// [`crate::interrupted_use_refusal`].
    InstanceEnded {
        /// Which.
        instance: InstanceId,
        /// Why.
        cause: EndCause,
    },
    /// The program of a process failed, and is restarted after a pause.
    ProcessRestartScheduled {
        /// The sandbox that it is in.
        sandbox: SandboxId,
        /// Which.
        process: ProcessId,
        /// The exit code of its program, if it exited.
        exit_code: Option<i32>,
        /// The number of the restart, from 1.
        attempt: u32,
        /// The limit on restarts, if there is one.
        of: Option<u32>,
    },
    /// A process has ended for good. The interpreter kills what still runs of it.
    ProcessOver {
        /// The sandbox that it was in.
        sandbox: SandboxId,
        /// Which.
        process: ProcessId,
        /// How and why.
        end: ProcessEnd,
        /// Whether it kept its sandbox alive until it ended by itself.
        keeps_alive: bool,
    },
    /// What the scale file of a sandbox counts besides what programs wrote to it.
    KeepAliveCountChanged {
        /// Where.
        instance: InstanceId,
        /// How many processes keep it alive.
        processes: u32,
        /// The number of the last report about the file that this includes.
        seen: u64,
    },
    /// The shutdown is complete: the server may exit.
    ShutdownComplete,
}
