//! What clients know: the leases and sessions they have, their requests, what they do right now. It
//! contains only what answers and events reported to clients, so it can be compared with what is
//! true.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use kernel::{CheckoutPolicy, UseKind, UseTarget};
use model::record::{OnDisconnect, Owner};
use model::{
    ClaimSettings, Deadline, Generation, InstanceId, KeyId, LeaseId, Mono, NetworkPolicy,
    ProcessId, RequestId, SandboxId, SessionId, TemplateName, TurnId, UseId, Wall, WorkspaceId,
};

/// How far a lease is, as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeasePhase {
    /// Asked for.
    Asked,
    /// Had.
    Held,
    /// Given back, or no longer wanted.
    Returned,
    /// Taken away, and the client heard or could know.
    Lost,
}

/// A lease.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Its key.
    pub tenant: KeyId,
    /// What was to be bound.
    pub claim: Option<Arc<ClaimSettings>>,
    /// How far it is.
    pub phase: LeasePhase,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// What was launched for that.
    pub instance: InstanceId,
    /// When it ends.
    pub expires_at: Wall,
}

/// What a session should find in its workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Exactly this.
    Exactly(u64),
    /// Anything its parent had at this write or later.
    AtLeast(u64),
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    /// Its key.
    pub tenant: KeyId,
    /// Its template.
    pub template: TemplateName,
    /// What is bound to its sandboxes.
    pub claim: Option<Arc<ClaimSettings>>,
    /// The network policies that its owner asked for: the last is sure, unless it was asked for when
    /// the server crashed.
    pub networks: Vec<Option<NetworkPolicy>>,
    /// What becomes of its turns when their clients go away.
    pub on_disconnect: OnDisconnect,
    /// What it should find in its workspace.
    pub expect: Expect,
    /// Whether an answer reported lost files since it last looked at them.
    pub loss_reported: bool,
    /// The generation of its last sandbox, and which that was.
    pub active: Option<(Generation, SandboxId)>,
    /// Whether an abort was asked for since its last turn began.
    pub abort_asked: bool,
    /// Whether it was asked to stop or end since it was last asked to go on.
    pub stop_asked: bool,
    /// Whether it was asked to end.
    pub end_asked: bool,
    /// Every deadline that it was given; one of them counts.
    pub deadlines: Vec<Deadline>,
    /// When it was last known to be in use.
    pub busy_at: Wall,
}

impl Session {
    /// Whether its deadline may have come.
    pub(crate) fn may_be_due(&self, now: Wall) -> bool {
        self.deadlines.iter().any(|deadline| {
            deadline.at.is_some_and(|at| at <= now)
                || deadline.idle_ms.is_some_and(|ms| now.since(self.busy_at) >= ms)
        })
    }
}

/// What a request is about.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Checkout { lease: LeaseId, template: TemplateName, policy: CheckoutPolicy },
    Use { use_id: UseId, target: UseTarget, kind: UseKind },
    Freeze { sandbox: SandboxId },
    Thaw { sandbox: SandboxId },
    Delete { sandbox: SandboxId },
    Create { session: SessionId },
    Turn { session: SessionId, turn: TurnId },
    Abort { session: SessionId },
    Pause { session: SessionId },
    Resume { session: SessionId },
    Stop { session: SessionId },
    End { session: SessionId },
    Fork { parent: SessionId, session: SessionId, held: u64 },
    Read { workspace: WorkspaceId },
    Destroy { template: TemplateName },
}

impl Ask {
    /// The session it is about.
    pub(crate) const fn session(&self) -> Option<SessionId> {
        match self {
            Self::Create { session }
            | Self::Turn { session, .. }
            | Self::Abort { session }
            | Self::Pause { session }
            | Self::Resume { session }
            | Self::Stop { session }
            | Self::End { session }
            | Self::Fork { parent: session, .. }
            | Self::Use { target: UseTarget::Session(session), .. } => Some(*session),
            Self::Use { target: UseTarget::Sandbox(_), .. }
            | Self::Checkout { .. }
            | Self::Freeze { .. }
            | Self::Thaw { .. }
            | Self::Delete { .. }
            | Self::Read { .. }
            | Self::Destroy { .. } => None,
        }
    }

    /// The workspace whose files it wants to read.
    pub(crate) fn reads(&self) -> Option<WorkspaceId> {
        if let Self::Read { workspace } = self { Some(*workspace) } else { None }
    }

    /// The session that wants its sandbox by this.
    pub(crate) const fn wants_sandbox_of(&self) -> Option<SessionId> {
        match self {
            Self::Create { session } | Self::Turn { session, .. } | Self::Resume { session } => {
                Some(*session)
            }
            Self::Use { target: UseTarget::Session(session), .. } => Some(*session),
            Self::Use { target: UseTarget::Sandbox(_), .. }
            | Self::Checkout { .. }
            | Self::Freeze { .. }
            | Self::Thaw { .. }
            | Self::Delete { .. }
            | Self::Abort { .. }
            | Self::Pause { .. }
            | Self::Stop { .. }
            | Self::End { .. }
            | Self::Fork { .. }
            | Self::Read { .. }
            | Self::Destroy { .. } => None,
        }
    }
}

/// A request without an answer.
#[derive(Debug)]
pub(crate) struct Pending {
    /// What it is about.
    pub ask: Ask,
    /// When it must have its answer.
    pub deadline: Mono,
}

/// A use in progress.
#[derive(Debug)]
pub(crate) struct OpenUse {
    /// Who does it.
    pub owner: Owner,
    /// Where.
    pub instance: InstanceId,
    /// What it is.
    pub kind: UseKind,
}

/// Files that are being read for a backup.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Read {
    /// Whose files they are.
    pub workspace: WorkspaceId,
    /// The instance whose guest gives them out, if one does.
    pub by_guest: Option<InstanceId>,
    /// Only a guest could, and was not asked.
    pub needs_guest: bool,
}

/// What all clients know together.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Leases, from the request on.
    pub leases: BTreeMap<LeaseId, Lease>,
    /// Leases that are had.
    pub held: Vec<LeaseId>,
    /// Sandboxes of former leases, with their leases.
    pub stale: VecDeque<(LeaseId, SandboxId)>,
    /// Sessions.
    pub sessions: BTreeMap<SessionId, Session>,
    /// Sessions that were not asked to end.
    pub open_sessions: Vec<SessionId>,
    /// Requests without an answer.
    pub pending: BTreeMap<RequestId, Pending>,
    /// Checkouts without an answer, by template, in order of arrival.
    pub queues: BTreeMap<TemplateName, Vec<(RequestId, LeaseId)>>,
    /// Uses in progress.
    pub uses: BTreeMap<UseId, OpenUse>,
    /// Processes that were started and have not ended.
    pub processes: BTreeMap<ProcessId, InstanceId>,
    /// Files that are being read for a backup.
    pub reads: BTreeMap<RequestId, Read>,
    /// Turns that were started and did not end.
    pub turns: BTreeMap<TurnId, (SessionId, RequestId)>,
    /// Turns that were asked for and did not start.
    pub asked_turns: BTreeMap<TurnId, (SessionId, RequestId)>,
    /// The owner that each sandbox was given to.
    pub given: BTreeMap<SandboxId, Owner>,
    /// Sandboxes whose deletion was requested.
    pub deletes: BTreeSet<SandboxId>,
    next_id: u64,
}

impl Ledger {
    /// Bits of an id that was never used.
    pub(crate) fn fresh(&mut self) -> u128 {
        self.next_id += 1;
        (0x0c11_e47d_u128 << 96) | u128::from(self.next_id)
    }

    /// A request waits from now on.
    pub(crate) fn open(&mut self, request: RequestId, pending: Pending) {
        if let Ask::Checkout { lease, template, .. } = &pending.ask {
            self.queues.entry(template.clone()).or_default().push((request, *lease));
        }
        self.pending.insert(request, pending);
    }

    /// A request no longer waits.
    pub(crate) fn close(&mut self, request: RequestId) -> Option<Pending> {
        let pending = self.pending.remove(&request)?;
        if let Ask::Checkout { template, .. } = &pending.ask
            && let Some(queue) = self.queues.get_mut(template)
        {
            queue.retain(|(waiting, _)| *waiting != request);
        }
        Some(pending)
    }

    /// A lease is no longer had.
    pub(crate) fn drop_lease(&mut self, id: LeaseId, phase: LeasePhase) {
        self.held.retain(|held| *held != id);
        if let Some(lease) = self.leases.remove(&id) {
            if lease.phase == LeasePhase::Held {
                if self.stale.len() == 8 {
                    self.stale.pop_front();
                }
                self.stale.push_back((id, lease.sandbox));
            }
            // Kept while checks may still need it.
            self.leases.insert(id, Lease { phase, ..lease });
            if self.leases.len() > 512 {
                self.leases
                    .retain(|_, lease| matches!(lease.phase, LeasePhase::Asked | LeasePhase::Held));
            }
        }
    }

    /// Whether this owner has its sandbox right now, as far as clients know.
    pub(crate) fn has(&self, owner: Owner) -> bool {
        match owner {
            Owner::Unowned => false,
            Owner::Lease(lease) => {
                self.leases.get(&lease).is_some_and(|lease| lease.phase == LeasePhase::Held)
            }
            Owner::Session(_) => true,
        }
    }

    /// Whether a request waits for the sandbox of this session, besides those just answered.
    pub(crate) fn is_wanted(&self, session: SessionId, answered: &[RequestId]) -> bool {
        self.pending
            .iter()
            .filter(|(request, _)| !answered.contains(request))
            .any(|(_, pending)| pending.ask.wants_sandbox_of() == Some(session))
            || self.turns.values().any(|(of, _)| *of == session)
    }

    /// Whether a request for this session is pending.
    pub(crate) fn is_asked(&self, session: SessionId) -> bool {
        self.pending.values().any(|pending| pending.ask.session() == Some(session))
    }

    /// Whether an exec or a harness is in use in the instance.
    pub(crate) fn runs_exec(&self, uses: &[UseId]) -> bool {
        let runs = |open: &OpenUse| matches!(open.kind, UseKind::Exec | UseKind::Harness);
        uses.iter().any(|id| self.uses.get(id).is_some_and(runs))
    }

    /// Whether a caller holds the harness of an instance.
    pub(crate) fn is_held(&self, instance: InstanceId) -> bool {
        let held = |open: &OpenUse| open.kind == UseKind::Harness && open.instance == instance;
        self.uses.values().any(held)
    }
}
