//! What the kernel hears of. Events are in the past tense: a request was made, an effect ended, a
//! process died, time passed. Ids that callers choose arrive here, so that a repeated request is
//! recognised; nothing here is an order.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::lifecycle::TurnOutcome;
use model::process::RestartPolicy;
use model::record::OnDisconnect;
use model::template::RuntimeTraits;
use model::{
    ClaimSettings, EffectId, Generation, InstanceId, KeyId, LeaseId, ProcessId, RequestId,
    SandboxId, SessionId, Template, TemplateName, TurnId, UseId, WorkspaceId,
};

use crate::restart_policy::{EndAsked, ProgramEnd};

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
    /// A pool was asked to hand out nothing and to keep nothing idle.
    PoolDrained {
        /// The pool.
        template: TemplateName,
    },
    /// A drained pool was asked to work again.
    PoolResumed {
        /// The pool.
        template: TemplateName,
    },
    /// A pool and its template were asked to go. Answered when nothing of them is left.
    PoolDestroyed {
        /// Who is to be answered.
        request: RequestId,
        /// The pool.
        template: TemplateName,
        /// Whether leased sandboxes are killed too, and sessions may be left without a template.
        force: bool,
    },
    /// A sandbox was asked for.
    CheckoutRequested(Checkout),
    /// A lease was given back.
    LeaseReturned {
        /// The lease.
        lease: LeaseId,
    },
    /// More time was asked for.
    LeaseRenewed {
        /// The lease.
        lease: LeaseId,
        /// How long it is to last from now; the template's value if not given.
        ttl_ms: Option<u64>,
    },
    /// An exec, file or port call was asked for.
    UseRequested {
        /// Who is to be answered.
        request: RequestId,
        /// Where.
        target: UseTarget,
        /// Its id.
        use_id: UseId,
        /// What it is.
        kind: UseKind,
    },
    /// A use is over.
    UseEnded {
        /// Its id.
        use_id: UseId,
    },
    /// A process was started. How it is over follows as a notice, exactly once.
    ProcessStarted(StartedProcess),
    /// The end of a process was asked for, or a signal that may end it. Those who ask tell the
    /// program themselves, if one runs.
    ProcessEndAsked {
        /// Where.
        instance: InstanceId,
        /// Its id.
        process: ProcessId,
        /// What was asked.
        asked: EndAsked,
    },
    /// The program of a process is over. A notice says what becomes of the process.
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
        /// Which of the notes about it this is.
        seq: u64,
        /// What it is at now.
        scale: u32,
        /// Whether a program wrote `=N`: this and nothing else keeps it awake.
        drops: bool,
    },
    /// The processes of a sandbox are no longer to keep it awake.
    StopRequested {
        /// Where.
        sandbox: SandboxId,
        /// From when on; 0 is now.
        after_ms: u64,
    },
    /// A sandbox was asked to be frozen now.
    FreezeRequested {
        /// Who is to be answered.
        request: RequestId,
        /// Which.
        sandbox: SandboxId,
    },
    /// A sandbox was asked to be thawed now.
    ThawRequested {
        /// Who is to be answered.
        request: RequestId,
        /// Which.
        sandbox: SandboxId,
    },
    /// A sandbox was asked to go. Answered when it is gone.
    DeleteRequested {
        /// Who is to be answered.
        request: RequestId,
        /// Which.
        sandbox: SandboxId,
    },
    /// A session was asked for. Answered when it has a sandbox.
    SessionCreated {
        /// Who is to be answered.
        request: RequestId,
        /// Its id.
        session: SessionId,
        /// What it is made from.
        template: TemplateName,
        /// How it is to behave.
        settings: SessionSettings,
    },
    /// A message was sent. Answered when the turn has started.
    TurnRequested {
        /// Who is to be answered.
        request: RequestId,
        /// To which session.
        session: SessionId,
        /// Its id.
        turn: TurnId,
        /// What to do if another turn is in progress.
        when_busy: WhenBusy,
    },
    /// The sender of a message got the answer that it was not taken: it is called off, however far
    /// it is.
    TurnWithdrawn {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: TurnId,
    },
    /// The harness is done with a turn.
    TurnEnded {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: TurnId,
        /// How it ended.
        outcome: TurnOutcome,
    },
    /// The turn in progress was called off. Answered when it is over.
    AbortRequested {
        /// Who is to be answered.
        request: RequestId,
        /// Of which session.
        session: SessionId,
        /// Whether the sandbox is to live on.
        keep_sandbox: bool,
    },
    /// A session was asked to be set aside.
    PauseRequested {
        /// Who is to be answered.
        request: RequestId,
        /// Which.
        session: SessionId,
    },
    /// A session was asked to go on. Answered when it has a sandbox.
    ResumeRequested {
        /// Who is to be answered.
        request: RequestId,
        /// Which.
        session: SessionId,
    },
    /// What a session is found by, or what its harness gets to know, was changed.
    SessionChanged {
        /// Which.
        session: SessionId,
        /// Its free words from now on; as they are if not given.
        labels: Option<BTreeMap<String, String>>,
        /// What its harness gets to know from its next turn on; as it is if not given, nothing if
        /// it is `null`.
        config: Option<Arc<str>>,
    },
    /// A session was asked to give up its sandbox and keep its files. Answered when it has.
    SessionStopRequested {
        /// Who is to be answered.
        request: RequestId,
        /// Which.
        session: SessionId,
    },
    /// A session was asked to end. Answered when nothing of it runs any more.
    SessionEndRequested {
        /// Who is to be answered.
        request: RequestId,
        /// Which.
        session: SessionId,
    },
    /// Another session with a copy of this one's files was asked for. Answered when it has them.
    ForkRequested {
        /// Who is to be answered.
        request: RequestId,
        /// The one to copy.
        parent: SessionId,
        /// The id of the new one.
        session: SessionId,
    },
    /// The server itself is to read the files of a workspace, for a backup. Answered when they can be
    /// read, and how.
    ReadRequested {
        /// The request that is answered, and names the read from then on.
        request: RequestId,
        /// Which.
        workspace: WorkspaceId,
    },
    /// It is done with that, or gave it up, answered or not.
    ReadEnded {
        /// The request.
        request: RequestId,
        /// It found that only the guest reaches the files.
        needs_guest: bool,
    },
    /// The client of a request went away before it had its answer, or while its turn was in
    /// progress. (A lease whose answer was not taken is returned instead.)
    ClientGone {
        /// The request.
        request: RequestId,
    },
    /// A sandbox died on its own. Every death comes as this event, whatever effects found out
    /// before: the completion of an effect that is no longer in progress says nothing.
    InstanceDied {
        /// Which.
        instance: InstanceId,
        /// Of what.
        cause: DeathCause,
    },
    /// The workspace of a sandbox was measured.
    WorkspaceMeasured {
        /// Of which.
        instance: InstanceId,
        /// What it takes.
        measured: Measured,
    },
    /// The disk of all workspaces was measured.
    DiskMeasured {
        /// What is left of it.
        free_bytes: u64,
    },
    /// The files of a sleeping session were measured.
    FilesMeasured {
        /// Which.
        workspace: WorkspaceId,
        /// What they take.
        bytes: u64,
    },
    /// An answer reported that files of a session were lost.
    LossReported {
        /// Which session.
        session: SessionId,
        /// The generation of the sandbox that the answer was about: what was lost with it, or
        /// later, is not reported yet.
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
    /// The server was asked to stop. Everything is saved and ended.
    ShutdownBegan {
        /// How long turns in progress may still take.
        grace_ms: u64,
    },
}

impl Event {
    /// The request that an event is, if it is one that may have to wait for its answer.
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
            | Self::ProcessEndAsked { .. }
            | Self::ProgramEnded { .. }
            | Self::ScaleWritten { .. }
            | Self::StopRequested { .. }
            | Self::SessionChanged { .. }
            | Self::TurnWithdrawn { .. }
            | Self::TurnEnded { .. }
            | Self::ReadEnded { .. }
            | Self::ClientGone { .. }
            | Self::InstanceDied { .. }
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

/// What a workspace takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Bytes on disk.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
    /// Some lie where they cannot be measured.
    pub hidden: bool,
}

/// A process that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartedProcess {
    /// In which sandbox.
    pub sandbox: SandboxId,
    /// In what was launched for that.
    pub instance: InstanceId,
    /// Its id.
    pub process: ProcessId,
    /// Whether it keeps its sandbox awake.
    pub keep_alive: bool,
    /// After how much time in which its sandbox is not frozen it is killed; 0 is never. See
    /// [`crate::Kernel::process_timeout_ms`].
    pub timeout_ms: u64,
    /// Whether its program is started again when it fails.
    pub restart: Option<RestartPolicy>,
}

/// A request for a sandbox of a template.
#[derive(Debug, Clone)]
pub struct Checkout {
    /// Who is to be answered.
    pub request: RequestId,
    /// The id of the lease.
    pub lease: LeaseId,
    /// The key it will belong to.
    pub tenant: KeyId,
    /// Of which template.
    pub template: TemplateName,
    /// How long the lease is to last; the template's value if not given.
    pub ttl_ms: Option<u64>,
    /// How long to wait; the node's value if not given.
    pub wait_ms: Option<u64>,
    /// How far to go for it.
    pub policy: CheckoutPolicy,
    /// What to bind to it.
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
    /// Takes an idle one or nothing.
    IdleOnly,
}

/// Where a use happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseTarget {
    /// In a sandbox by its id.
    Sandbox(SandboxId),
    /// In whatever sandbox the session has, or gets for it.
    Session(SessionId),
}

/// What a use is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UseKind {
    /// A command: the sandbox is `running` for its length.
    Exec,
    /// A file call that may write.
    Files,
    /// A file call that only reads: it changes nothing that would have to be saved.
    Read,
    /// A connection to a port inside.
    Port,
    /// Something that is watched for as long as a caller looks: a log, files, a terminal.
    Stream,
    /// The harness, for a caller that speaks with it line by line: no other does meanwhile, and the
    /// sandbox is `running`.
    Harness,
}

/// How a session is to behave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionSettings {
    /// The key it belongs to.
    pub tenant: KeyId,
    /// What is bound to each of its sandboxes.
    pub claim: Option<Arc<ClaimSettings>>,
    /// How long it may be idle; the template's value if not given.
    pub idle_timeout_ms: Option<u64>,
    /// What becomes of a turn whose client goes away.
    pub on_disconnect: OnDisconnect,
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

/// Of what a sandbox died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeathCause {
    /// It ended unasked.
    Crash,
    /// The kernel of the machine ended it for want of memory.
    Oom,
}

/// How an effect ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// As wanted.
    Done,
    /// Not.
    Failed(Failure),
    /// It is not known: its deadline passed.
    TimedOut,
}

/// Why an effect failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What to branch on.
    pub kind: FailureKind,
    /// What the runtime said, for people.
    pub detail: Arc<str>,
}

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The sandbox is certainly gone.
    Gone,
    /// It could not be reached, or the operation went wrong; it may work another time.
    Trouble,
    /// The runtime cannot do this.
    Unsupported,
    /// The files that it was to find are not there any more, or cannot be read. When files are to
    /// be saved: some of them cannot be, and the others are.
    FilesGone,
    /// The files can only be reached through the guest, and it was not said that it runs. Nothing
    /// was done.
    NeedsGuest,
}

/// The generation a session's next sandbox gets, as seen by callers that fence by it.
pub(crate) const fn bound_generation(session: Generation, sandbox: Generation) -> Generation {
    if session.next().0 > sandbox.0 { session.next() } else { sandbox }
}
