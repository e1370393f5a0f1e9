//! The answer to "why is this sandbox as it is": computed for a live one, stored for an ended one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{Generation, KeyId, LeaseId, SandboxId, SessionId, TemplateName};
use crate::reason::EndCause;
use crate::record::Owner;
use crate::state::{SandboxState, Wakefulness};
use crate::template::{RuntimeKind, WorkspaceLimit};
use crate::time::Wall;

/// Why a sandbox is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It exists.
    Alive(Box<Alive>),
    /// It ended.
    Ended(Ended),
}

/// The state of a sandbox, and what will happen to it if it is not used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alive {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its generation.
    pub generation: Generation,
    /// Its template.
    pub template: TemplateName,
    /// The runtime that isolates it.
    #[serde(default)]
    pub runtime: RuntimeKind,
    /// How often what was launched for it was handed out, this time included.
    #[serde(default)]
    pub uses: u32,
    /// Its state.
    pub state: SandboxState,
    /// Its owner.
    pub owner: Owner,
    /// The key that its owner belongs to; nil where it has none.
    #[serde(default)]
    pub tenant: KeyId,
    /// Whether it is frozen.
    pub frozen: bool,
    /// Whether it may hibernate.
    pub wakefulness: Wakefulness,
    /// Turns, execs and calls in progress.
    pub uses_in_progress: u32,
    /// Processes that keep it awake.
    pub keep_alive_processes: u32,
    /// The counter in the scale file.
    pub scale: u32,
    /// How the size of its workspace is kept, where it is on disk.
    #[serde(default)]
    pub workspace_limit: Option<WorkspaceLimit>,
    /// The size of its workspace when it was last measured.
    #[serde(default)]
    pub workspace_bytes: Option<u64>,
    /// Why it is being ended, if it is.
    pub ending: Option<EndCause>,
    /// Why it is cold, if it is.
    pub slept: Option<EndCause>,
    /// How its last instance ended, if it is cold and that is still known.
    #[serde(default)]
    pub last_end: Option<Ended>,
    /// When it was last used.
    pub last_used_at: Wall,
    /// When it will be frozen.
    pub freezes_at: Option<Wall>,
    /// When it will become cold.
    pub sleeps_at: Option<Wall>,
    /// When it will end unless renewed.
    pub expires_at: Option<Wall>,
}

/// How a sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// Its last generation.
    pub generation: Generation,
    /// Its template.
    pub template: TemplateName,
    /// The lease it was under.
    pub lease: Option<LeaseId>,
    /// How that lease ended. The sandbox may have outlived it.
    #[serde(default)]
    pub lease_end: Option<EndCause>,
    /// The session it was of.
    pub session: Option<SessionId>,
    /// The key that lease or session belonged to; nil where there was none.
    #[serde(default)]
    pub tenant: KeyId,
    /// Why.
    pub cause: EndCause,
    /// The detail that the runtime reported.
    pub detail: Option<Arc<str>>,
    /// The decision, where it was an eviction.
    pub eviction: Option<Arc<Eviction>>,
    /// When it was made.
    pub created_at: Wall,
    /// When it ended.
    pub ended_at: Wall,
}

/// An eviction, recorded as one decision with its cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eviction {
    /// The tier of the victim.
    pub tier: Tier,
    /// The resource that ran out.
    pub shortage: Shortage,
    /// The next in line of each tier when it was decided, and how many stood behind each.
    pub candidates: Vec<Candidate>,
    /// When it was decided.
    pub decided_at: Wall,
}

/// One tier's candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The tier.
    pub tier: Tier,
    /// Its least recently used sandbox.
    pub sandbox: SandboxId,
    /// When that was last used.
    pub last_used_at: Wall,
    /// How many the tier held.
    pub of: u32,
}

/// The order in which sandboxes are evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Tier {
    /// No process. Its entry is removed; the files of its session stay, unless the node is
    /// configured to delete them. Evicted only if entries are short.
    Cold,
    /// Idle in its pool. Its processes are killed, and its entry is removed.
    Warm,
    /// A session's, between uses, without a hold. Its files are saved, its processes are killed,
    /// and it becomes cold; if entries are short, its entry is removed, too.
    Waiting,
}

impl Tier {
    /// All tiers, first to be evicted first.
    pub const ALL: [Self; 3] = [Self::Cold, Self::Warm, Self::Waiting];

    /// The tier as text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
            Self::Waiting => "waiting",
        }
    }
}

/// The resource that ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Shortage {
    /// Entries, live and cold.
    Entries,
    /// Processes.
    Processes,
    /// Memory.
    Memory,
    /// What a limit of the key allows: one of its own sandboxes gives way to another of its own.
    KeyLimit,
}

impl Shortage {
    /// What ran out, in words, with the setting that limits it.
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Entries => "node.max_sandboxes was reached",
            Self::Processes => "node.max_live was reached",
            Self::Memory => "node.memory_budget_mb was reached",
            Self::KeyLimit => "a limit of the key (live_sandboxes or memory_mb) was reached",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tombstone_that_was_stored_before_there_were_keys_is_read() {
        let old = r#"{
            "sandbox": "0192f3a0-0000-7000-8000-000000000001", "generation": 1, "template": "t",
            "lease": "0192f3a0-0000-7000-8000-000000000002", "session": null, "cause": "max_uses",
            "detail": null, "eviction": null, "created_at": 1, "ended_at": 2
        }"#;
        let ended: Ended = serde_json::from_str(old).expect("what was written once is read");
        assert_eq!((ended.tenant, ended.lease_end), (KeyId::NIL, None));
        let again =
            Ended { tenant: KeyId::from_u128(7), lease_end: Some(EndCause::Returned), ..ended };
        let text = serde_json::to_string(&again).expect("it can be written");
        assert_eq!(serde_json::from_str::<Ended>(&text).expect("and read"), again);
    }
}
