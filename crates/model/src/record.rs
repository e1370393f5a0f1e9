//! Durable records. A record is the stored part of one thing; a kernel is rebuilt from
//! records alone. A record with an `instance` is an obligation: that instance may exist, and must
//! be removed or accounted for before the record may go. Records are stored as JSON and outlive the
//! program that wrote them: a field that is added later has a default.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::claim::ClaimSettings;
use crate::deadline::Deadline;
use crate::ids::{
    Generation, InstanceId, KeyId, LeaseId, SandboxId, SessionId, TemplateName, TurnId, WorkspaceId,
};
use crate::reason::{EndCause, TerminatedReason};
use crate::state::{PoolPhase, SandboxState, SessionStatus};
use crate::template::{RuntimeTraits, Template};
use crate::time::Wall;
use crate::why::Ended;

/// The owner of a sandbox, who has its exclusive use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// No caller: it is in its pool.
    #[serde(rename = "nobody")]
    Unowned,
    /// A lease.
    Lease(LeaseId),
    /// A session.
    Session(SessionId),
}

/// The durable part of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    /// Its id.
    pub id: SandboxId,
    /// The id that it took the place of.
    pub previous_id: Option<SandboxId>,
    /// The instance that was launched for it, or will be, until its removal is confirmed.
    pub instance: Option<InstanceId>,
    /// Its generation.
    pub generation: Generation,
    /// Its template.
    pub template: TemplateName,
    /// The capabilities of the runtime that launched it.
    pub traits: RuntimeTraits,
    /// Its owner.
    pub owner: Owner,
    /// The key that its owner belongs to; nil where it has none.
    #[serde(default)]
    pub tenant: KeyId,
    /// How its lease ended, if it has. The sandbox may outlive the lease.
    #[serde(default)]
    pub lease_end: Option<EndCause>,
    /// Its state.
    pub state: SandboxState,
    /// Why it is being ended, if it is.
    pub ending: Option<EndCause>,
    /// Whether record and workspace go as soon as the instance does.
    pub doomed: bool,
    /// Why it is cold, if it is.
    pub slept: Option<EndCause>,
    /// Whether its end is published as an event: it had been ready in this generation.
    pub announced: bool,
    /// How often it was used.
    pub uses: u32,
    /// Whether files may have changed since they were last made durable.
    pub dirty: bool,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// Whether that workspace was ever made, so that there is something to restore.
    pub has_files: bool,
    /// Whether that workspace is in an archive, as far as is known.
    #[serde(default)]
    pub archived: bool,
    /// The workspace that is being copied into its own.
    pub copying_from: Option<WorkspaceId>,
    /// When its record was made.
    pub created_at: Wall,
    /// When it was last used, as of the last time the record was written.
    pub last_used_at: Wall,
    /// When it ends unless renewed.
    pub expires_at: Option<Wall>,
}

/// The durable part of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Its id.
    pub id: SessionId,
    /// The key it belongs to.
    #[serde(default)]
    pub tenant: KeyId,
    /// The session it was forked from.
    pub parent: Option<SessionId>,
    /// Its template.
    pub template: TemplateName,
    /// Its status.
    pub status: SessionStatus,
    /// The highest generation of its sandboxes so far.
    pub generation: Generation,
    /// Its sandbox, live or cold.
    pub sandbox: Option<SandboxId>,
    /// The settings that are bound to each of its sandboxes.
    pub claim: Option<Arc<ClaimSettings>>,
    /// How long it may be idle; its template's value if not given.
    pub idle_timeout_ms: Option<u64>,
    /// When it ends or pauses without a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Deadline>,
    /// Idle time counts from here at the earliest.
    #[serde(default)]
    pub idle_from: Wall,
    /// Whether a turn ends when its client goes away.
    pub on_disconnect: OnDisconnect,
    /// Why files of it were lost, until an answer has reported it.
    pub state_lost: Option<TerminatedReason>,
    /// The generation of the sandbox with which they were lost.
    #[serde(default)]
    pub lost_generation: Generation,
    /// Its files, while it has no sandbox, not even a cold one.
    #[serde(default)]
    pub files: Option<KeptFiles>,
    /// The sandbox that was reported to its client last.
    pub told_id: Option<SandboxId>,
    /// The turn in progress.
    pub turn: Option<TurnId>,
    /// Turns that wait behind it.
    pub queued: Vec<TurnId>,
    /// When it was created.
    pub created_at: Wall,
    /// When it was last used, as of the last time the record was written.
    #[serde(default)]
    pub last_active_at: Wall,
}

/// Files of a session that has no sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFiles {
    /// The sandbox that had them last.
    pub sandbox: SandboxId,
    /// The workspace they were in.
    pub workspace: WorkspaceId,
    /// Whether they are in their final place. If not, they must still be put into an archive.
    pub archived: bool,
    /// When the session last used them.
    pub last_used_at: Wall,
}

/// What happens to a turn whose client disconnects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum OnDisconnect {
    /// It completes, is stored, and can be attached to again.
    #[default]
    Continue,
    /// It is aborted.
    Abort,
}

/// The durable part of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Its template, with the pool's settings.
    pub template: Arc<Template>,
    /// The capabilities of its runtime.
    pub traits: RuntimeTraits,
    /// Its phase.
    pub phase: PoolPhase,
}

/// A change of the records. The changes of one decision are one transaction, and they are
/// durable before any of its effects begins and before anyone is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalEntry {
    /// A sandbox is now like this.
    SandboxPut(SandboxRecord),
    /// The record of a sandbox goes.
    SandboxRemoved(SandboxId),
    /// A session is now like this.
    SessionPut(SessionRecord),
    /// The record of a session goes.
    SessionRemoved(SessionId),
    /// A pool is now like this.
    PoolPut(PoolRecord),
    /// The record of a pool goes.
    PoolRemoved(TemplateName),
    /// A workspace must be deleted, until it is confirmed.
    WorkspaceDoomed(WorkspaceId),
    /// A doomed workspace is deleted.
    WorkspaceDeleted(WorkspaceId),
    /// A sandbox ended like this.
    Ended(Ended),
}

/// All records, from which a kernel is rebuilt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// Pools, by name of their template.
    pub pools: Vec<PoolRecord>,
    /// Sandboxes.
    pub sandboxes: Vec<SandboxRecord>,
    /// Sessions.
    pub sessions: Vec<SessionRecord>,
    /// Workspaces whose deletion is not confirmed.
    pub doomed_workspaces: Vec<WorkspaceId>,
    /// Sandboxes that ended lately, oldest first.
    pub ended: Vec<Ended>,
}
