//! What the kernel hears of. Events are in the past tense: a request was made, an effect ended, an
//! instance died, time passed. Ids that callers choose arrive here, so that a repeated request is
//! recognised; nothing here is an order.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::lifecycle::TurnOutcome;
use model::process::RestartPolicy;
use model::record::OnDisconnect;
use model::template::RuntimeTraits;
use model::{
    ClaimSettings, Deadline, EffectId, ErrorCode, Generation, InstanceId, KeyId, KeyLimits,
    LeaseId, NetworkPolicy, ProcessId, RequestId, SandboxId, SessionId, Template, TemplateName,
    TurnId, UseId, WorkspaceId,
};

use crate::restart_policy::{EndRequest, ProgramEnd};

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A template was created, or replaced by another of the same name.
    TemplatePut {
        /// The template.
        template: Arc<Template>,
        /// What its runtime can do.
        traits: RuntimeTraits,
    },
    /// The sizes of a pool were changed.
    PoolResized {
        /// The pool.
        template: TemplateName,
        /// Warm sandboxes to keep ready.
        pool_size: u32,
        /// How many more may exist while in use.
        max_overflow: u32,
    },
    /// A drain of a pool was requested: it hands out nothing and keeps nothing idle.
    PoolDrained {
        /// The pool.
        template: TemplateName,
    },
    /// A drained pool was asked to resume.
    PoolResumed {
        /// The pool.
        template: TemplateName,
    },
    /// The removal of a pool and its template was requested. Answered when nothing of them is left.
    PoolDestroyed {
        /// The request to answer.
        request: RequestId,
        /// The pool.
        template: TemplateName,
        /// Whether leased sandboxes are killed too, and sessions may be left without a template.
        force: bool,
    },
    /// A checkout was requested.
    CheckoutRequested(Checkout),
    /// A lease was returned.
    LeaseReturned {
        /// The lease.
        lease: LeaseId,
    },
    /// A renewal of a lease was requested.
    LeaseRenewed {
        /// The lease.
        lease: LeaseId,
        /// How long it lasts from now; the template's value if not given.
        ttl_ms: Option<u64>,
    },
    /// An exec, file or port call was requested.
    UseRequested {
        /// The request to answer.
        request: RequestId,
        /// Where.
        target: UseTarget,
        /// Its id.
        use_id: UseId,
        /// What it is.
        kind: UseKind,
        /// How long to wait for a place if none is free; the node's value if not given.
        wait_ms: Option<u64>,
    },
    /// A use ended.
    UseEnded {
        /// Its id.
        use_id: UseId,
    },
    /// A process was started. A notice reports its end, exactly once.
    ProcessStarted(StartedProcess),
    /// The end of a process was requested, or a signal that may end it. The interpreter signals the
    /// program itself, if one runs.
    ProcessEndRequested {
        /// Where.
        instance: InstanceId,
        /// Its id.
        process: ProcessId,
        /// What was requested.
        asked: EndRequest,
    },
    /// The program of a process ended. A notice says what becomes of the process.
    ProgramEnded {
        /// Where.
        instance: InstanceId,
        /// The process.
        process: ProcessId,
        /// How.
        how: ProgramEnd,
    },
    /// Programs wrote to the scale file.
    ScaleWritten {
        /// Where.
        instance: InstanceId,
        /// The number of this report about the file.
        seq: u64,
        /// Its counter now.
        scale: u32,
        /// Whether a program wrote `=N`: from now on only this counter keeps the sandbox alive.
        drops: bool,
    },
    /// A stop was requested: the processes of a sandbox no longer keep it alive.
    StopRequested {
        /// Where.
        sandbox: SandboxId,
        /// After how long; 0 is now.
        after_ms: u64,
    },
    /// A freeze was requested.
    FreezeRequested {
        /// The request to answer.
        request: RequestId,
        /// Which.
        sandbox: SandboxId,
    },
    /// A thaw was requested.
    ThawRequested {
        /// The request to answer.
        request: RequestId,
        /// Which.
        sandbox: SandboxId,
    },
    /// The deletion of a sandbox was requested. Answered when it is gone.
    DeleteRequested {
        /// The request to answer.
        request: RequestId,
        /// Which.
        sandbox: SandboxId,
    },
    /// A new session was requested. Answered when it has a sandbox.
    SessionCreated {
        /// The request to answer.
        request: RequestId,
        /// Its id.
        session: SessionId,
        /// Its template.
        template: TemplateName,
        /// Its settings.
        settings: SessionSettings,
        /// How long to wait for a place if none is free; the node's value if not given.
        wait_ms: Option<u64>,
    },
    /// A message was sent. Answered when the turn has started.
    TurnRequested {
        /// The request to answer.
        request: RequestId,
        /// To which session.
        session: SessionId,
        /// Its id.
        turn: TurnId,
        /// What to do if another turn is in progress.
        when_busy: WhenBusy,
        /// How long to wait for a place if none is free; the node's value if not given.
        wait_ms: Option<u64>,
    },
    /// The sender of a message was answered that it was not accepted: the turn is withdrawn,
    /// however far it is.
    TurnWithdrawn {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: TurnId,
    },
    /// The harness finished a turn.
    TurnEnded {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: TurnId,
        /// How it ended.
        outcome: TurnOutcome,
    },
    /// An abort of the turn in progress was requested. Answered when the turn has ended.
    AbortRequested {
        /// The request to answer.
        request: RequestId,
        /// Of which session.
        session: SessionId,
        /// Whether to keep the sandbox.
        keep_sandbox: bool,
    },
    /// A pause of a session was requested.
    PauseRequested {
        /// The request to answer.
        request: RequestId,
        /// Which.
        session: SessionId,
    },
    /// A session was asked to resume. Answered when it has a sandbox.
    ResumeRequested {
        /// The request to answer.
        request: RequestId,
        /// Which.
        session: SessionId,
        /// How long to wait for a place if none is free; the node's value if not given.
        wait_ms: Option<u64>,
    },
    /// What a sandbox, or every sandbox of a session, may reach was changed.
    NetworkChanged {
        /// Which.
        target: UseTarget,
        /// The new policy, within that of the template; the template's own if not given.
        network: Option<NetworkPolicy>,
    },
    /// The labels of a session, the configuration of its harness, or its deadline were changed.
    SessionChanged {
        /// Which.
        session: SessionId,
        /// Its new labels; unchanged if not given.
        labels: Option<BTreeMap<String, String>>,
        /// The configuration that its harness gets from its next turn on; unchanged if not given,
        /// none if it is `null`.
        config: Option<Arc<str>>,
        /// Its new deadline.
        deadline: DeadlineChange,
    },
    /// A stop of a session was requested: it gives up its sandbox and keeps its files. Answered
    /// when it has.
    SessionStopRequested {
        /// The request to answer.
        request: RequestId,
        /// Which.
        session: SessionId,
    },
    /// The end of a session was requested. Answered when nothing of it runs any more.
    SessionEndRequested {
        /// The request to answer.
        request: RequestId,
        /// Which.
        session: SessionId,
    },
    /// A fork was requested: a new session with a copy of this one's files. Answered when it has
    /// them.
    ForkRequested {
        /// The request to answer.
        request: RequestId,
        /// The session to copy.
        parent: SessionId,
        /// The id of the new one.
        session: SessionId,
    },
    /// The server wants to read the files of a workspace, for a backup. Answered when they can be
    /// read, and how.
    ReadRequested {
        /// The request to answer; it also names the read.
        request: RequestId,
        /// Which.
        workspace: WorkspaceId,
    },
    /// The server finished reading, or gave up, answered or not.
    ReadEnded {
        /// The request.
        request: RequestId,
        /// The server found that only the guest reaches the files.
        needs_guest: bool,
    },
    /// A caller read the state, the output or the list of the processes of a sandbox. That counts
    /// as a use while one of them runs: a caller that polls waits for it.
    ProcessesRead {
        /// The sandbox.
        sandbox: SandboxId,
    },
    /// The limits of a key were set. They bind what comes later and end nothing.
    KeyLimitsSet {
        /// The key.
        key: KeyId,
        /// Its limits.
        limits: KeyLimits,
    },
    /// The client of a request went away before it had its answer, or while its turn was in
    /// progress. (A lease whose answer was not taken is returned instead.)
    ClientGone {
        /// The request.
        request: RequestId,
    },
    /// An instance died on its own. Every death comes as this event, even if an effect found it
    /// first: the completion of an effect that is no longer in progress does not count.
    InstanceDied {
        /// Which.
        instance: InstanceId,
        /// Why.
        cause: DeathCause,
        /// How it died, as far as the runtime knows.
        detail: Option<Arc<str>>,
    },
    /// The guest of an instance is gone. The death of the instance comes later, with its cause.
    GuestLost {
        /// Which.
        instance: InstanceId,
    },
    /// The workspace of a sandbox was measured.
    WorkspaceMeasured {
        /// Of which.
        instance: InstanceId,
        /// Its size.
        measured: Measured,
    },
    /// The disk of all workspaces was measured.
    DiskMeasured {
        /// Its free space.
        free_bytes: u64,
    },
    /// The files of a sleeping session were measured.
    FilesMeasured {
        /// Which.
        workspace: WorkspaceId,
        /// Their size.
        bytes: u64,
    },
    /// An answer reported that files of a session were lost.
    LossReported {
        /// Which session.
        session: SessionId,
        /// The generation of the sandbox that the answer was about: files lost with it, or later,
        /// are not reported yet.
        generation: Generation,
    },
    /// An effect ended.
    EffectEnded {
        /// Which.
        id: EffectId,
        /// How.
        outcome: Outcome,
    },
    /// Time passed.
    Ticked,
    /// The server was asked to stop: everything is saved and ended.
    ShutdownBegan {
        /// How long turns in progress may still take.
        grace_ms: u64,
    },
}

impl Event {
    /// The request of an event that may have to wait for its answer.
    pub(crate) const fn request(&self) -> Option<RequestId> {
        match self {
            Self::CheckoutRequested(checkout) => Some(checkout.request),
            Self::PoolDestroyed { request, .. }
            | Self::UseRequested { request, .. }
            | Self::FreezeRequested { request, .. }
            | Self::ThawRequested { request, .. }
            | Self::DeleteRequested { request, .. }
            | Self::SessionCreated { request, .. }
            | Self::TurnRequested { request, .. }
            | Self::AbortRequested { request, .. }
            | Self::PauseRequested { request, .. }
            | Self::ResumeRequested { request, .. }
            | Self::SessionStopRequested { request, .. }
            | Self::SessionEndRequested { request, .. }
            | Self::ForkRequested { request, .. }
            | Self::ReadRequested { request, .. } => Some(*request),
            Self::TemplatePut { .. }
            | Self::PoolResized { .. }
            | Self::PoolDrained { .. }
            | Self::PoolResumed { .. }
            | Self::LeaseReturned { .. }
            | Self::LeaseRenewed { .. }
            | Self::UseEnded { .. }
            | Self::ProcessStarted(_)
            | Self::ProcessEndRequested { .. }
            | Self::ProgramEnded { .. }
            | Self::ScaleWritten { .. }
            | Self::StopRequested { .. }
            | Self::SessionChanged { .. }
            | Self::NetworkChanged { .. }
            | Self::TurnWithdrawn { .. }
            | Self::TurnEnded { .. }
            | Self::ReadEnded { .. }
            | Self::ProcessesRead { .. }
            | Self::KeyLimitsSet { .. }
            | Self::ClientGone { .. }
            | Self::InstanceDied { .. }
            | Self::GuestLost { .. }
            | Self::WorkspaceMeasured { .. }
            | Self::DiskMeasured { .. }
            | Self::FilesMeasured { .. }
            | Self::LossReported { .. }
            | Self::EffectEnded { .. }
            | Self::Ticked
            | Self::ShutdownBegan { .. } => None,
        }
    }
}

/// The size of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Bytes on disk.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
    /// Some of it could not be measured.
    pub hidden: bool,
}

/// A process that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartedProcess {
    /// In which sandbox.
    pub sandbox: SandboxId,
    /// The instance of that sandbox.
    pub instance: InstanceId,
    /// Its id.
    pub process: ProcessId,
    /// Whether it keeps its sandbox alive.
    pub keep_alive: bool,
    /// Its time limit; time in which its sandbox is frozen does not count; 0 is none. See
    /// [`crate::Kernel::process_timeout_ms`].
    pub timeout_ms: u64,
    /// Whether its program is restarted when it fails.
    pub restart: Option<RestartPolicy>,
}

/// A request for a sandbox of a template.
#[derive(Debug, Clone)]
pub struct Checkout {
    /// The request to answer.
    pub request: RequestId,
    /// The id of the lease.
    pub lease: LeaseId,
    /// The key it will belong to.
    pub tenant: KeyId,
    /// Of which template.
    pub template: TemplateName,
    /// How long the lease lasts; the template's value if not given.
    pub ttl_ms: Option<u64>,
    /// How long to wait; the node's value if not given.
    pub wait_ms: Option<u64>,
    /// How far to go to get it.
    pub policy: CheckoutPolicy,
    /// The settings to bind to it.
    pub claim: Option<Arc<ClaimSettings>>,
}

/// How far a checkout goes to get a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum CheckoutPolicy {
    /// Takes an idle one, starts one, or waits.
    #[default]
    Wait,
    /// Takes an idle one or starts one, but does not wait for others to return theirs.
    FailFast,
    /// Takes an idle one or fails.
    IdleOnly,
}

/// Where a use happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseTarget {
    /// In a sandbox by its id.
    Sandbox(SandboxId),
    /// In the sandbox that the session has, or gets for it.
    Session(SessionId),
}

/// What a use is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UseKind {
    /// An exec: the sandbox is `running` while it lasts.
    Exec,
    /// A file call that may write.
    Files,
    /// A file call that only reads: it needs no save.
    Read,
    /// A connection to a port inside.
    Port,
    /// A long-lived connection: a log, a watch of files, a terminal.
    Stream,
    /// A caller's direct connection to the harness: it is exclusive, and the sandbox is `running`.
    Harness,
}

/// The settings of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionSettings {
    /// The key it belongs to.
    pub tenant: KeyId,
    /// What is bound to each of its sandboxes.
    pub claim: Option<Arc<ClaimSettings>>,
    /// How long it may be idle; the template's value if not given.
    pub idle_timeout_ms: Option<u64>,
    /// When it ends or pauses without a request.
    pub deadline: Option<Deadline>,
    /// What becomes of a turn whose client goes away.
    pub on_disconnect: OnDisconnect,
}

/// A change of a session's deadline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeadlineChange {
    /// It stays as it is.
    #[default]
    Keep,
    /// The session has no deadline from now on.
    Remove,
    /// This is its deadline from now on.
    Set(Deadline),
}

/// What a turn does when another is in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum WhenBusy {
    /// It is refused.
    #[default]
    Refuse,
    /// It waits its turn.
    Queue,
}

/// Why an instance died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeathCause {
    /// It ended without a request.
    Crash,
    /// The operating system killed it because memory ran out.
    Oom,
}

/// How an effect ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It worked.
    Done,
    /// It failed.
    Failed(Failure),
    /// Its deadline passed; the result is not known.
    TimedOut,
}

/// Why an effect failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The kind, to decide by.
    pub kind: FailureKind,
    /// What the runtime reported, for people.
    pub detail: Arc<str>,
}

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The instance is certainly gone.
    Gone,
    /// The instance could not be reached, or the operation failed; it may work another time.
    Trouble,
    /// The runtime cannot do this.
    Unsupported,
    /// The files to restore are gone or cannot be read. For a save: some files cannot be saved, the
    /// others are.
    FilesGone,
    /// Only the guest reaches the files, and the effect did not say that it runs. Nothing was done.
    NeedsGuest,
    /// The request or the node is the reason, and not this sandbox: another one would fail as well.
    /// The caller is refused with this code.
    Refused(ErrorCode),
}

/// The generation of a session's next sandbox, by which callers fence.
pub(crate) const fn bound_generation(session: Generation, sandbox: Generation) -> Generation {
    if session.next().0 > sandbox.0 { session.next() } else { sandbox }
}
