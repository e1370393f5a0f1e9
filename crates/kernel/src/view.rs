//! What can be read from the kernel. Reading is no activity and changes nothing.

use std::sync::Arc;

use model::record::{OnDisconnect, Owner};
use model::template::RuntimeKind;
use model::{
    ClaimSettings, Deadline, EndCause, Generation, InstanceId, KeyId, NetworkPolicy, SandboxId,
    SandboxState, SandboxStatus, SessionId, SessionStatus, Template, TemplateName, TurnId, Wall,
    WorkspaceId,
};

/// A sandbox as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxView {
    /// Its id.
    pub id: SandboxId,
    /// Its generation.
    pub generation: Generation,
    /// Its instance, until its removal is confirmed.
    pub instance: Option<InstanceId>,
    /// Its template.
    pub template: TemplateName,
    /// Its runtime.
    pub runtime: RuntimeKind,
    /// Its owner.
    pub owner: Owner,
    /// The key of its owner; nil if it has none.
    pub tenant: KeyId,
    /// The settings of its owner, labels included.
    pub claim: Option<Arc<ClaimSettings>>,
    /// Its state.
    pub state: SandboxState,
    /// Whether it is frozen.
    pub frozen: bool,
    /// Whether a process or the scale file keeps it alive.
    pub awake: bool,
    /// When it will be frozen, if there is no activity before.
    pub freezes_at: Option<Wall>,
    /// Why it is being ended, if it is.
    pub ending: Option<EndCause>,
    /// How often its instance was handed out, this time included.
    pub uses: u32,
    /// Whether its user used it or bound settings to it.
    pub touched: bool,
    /// When it was made.
    pub created_at: Wall,
    /// When it was last used.
    pub last_used_at: Wall,
    /// When it ends unless renewed.
    pub expires_at: Option<Wall>,
}

/// How many sandboxes are frozen or kept alive.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeepAliveCounts {
    /// Frozen.
    pub frozen: u32,
    /// Kept alive by a process or the scale file.
    pub awake: u32,
}

/// A session as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionView {
    /// Its id.
    pub id: SessionId,
    /// The key it belongs to.
    pub tenant: KeyId,
    /// The session it was forked from.
    pub parent: Option<SessionId>,
    /// Its template.
    pub template: TemplateName,
    /// Its status.
    pub status: SessionStatus,
    /// Whether it has a live sandbox.
    pub sandbox_status: SandboxStatus,
    /// That sandbox.
    pub sandbox_id: Option<SandboxId>,
    /// The highest generation of its sandboxes so far.
    pub generation: Generation,
    /// The turn in progress.
    pub turn: Option<TurnId>,
    /// Turns that wait behind it.
    pub queued_turns: u32,
    /// Whether files were lost and no answer has reported it yet.
    pub state_lost: bool,
    /// How long it may be idle; its template's value if not given.
    pub idle_timeout_ms: Option<u64>,
    /// When it ends or pauses without a request.
    pub deadline: Option<Deadline>,
    /// When that happens if it is not used before; none while it is in use and has no fixed time.
    pub deadline_at: Option<Wall>,
    /// What becomes of a turn whose client goes away.
    pub on_disconnect: OnDisconnect,
    /// The settings for each of its sandboxes, labels included.
    pub claim: Option<Arc<ClaimSettings>>,
    /// The workspace with its files, whether it has a sandbox or not.
    pub workspace: Option<WorkspaceId>,
    /// Whether its files would survive a crash of its sandbox or of the server.
    pub files_durable: bool,
    /// When it was created.
    pub created_at: Wall,
    /// When it was last used.
    pub last_active_at: Wall,
}

/// What a session binds to the next sandbox that it gets.
#[derive(Debug, Clone)]
pub struct NextBinding {
    /// The key of the session.
    pub tenant: KeyId,
    /// Its template, as it is now.
    pub template: Arc<Template>,
    /// Its settings.
    pub settings: Option<Arc<ClaimSettings>>,
}

/// What an instance may reach, and for whom.
#[derive(Debug, Clone)]
pub struct NetworkView {
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// The instance.
    pub instance: InstanceId,
    /// The session that owns it.
    pub session: Option<SessionId>,
    /// The key of its owner; nil if it has none.
    pub tenant: KeyId,
    /// What it may reach.
    pub policy: NetworkPolicy,
    /// Its template, as it is now.
    pub template: Arc<Template>,
    /// The settings of its owner.
    pub settings: Option<Arc<ClaimSettings>>,
}
