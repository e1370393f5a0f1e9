//! The shared words of Shoal: ids, times, states, templates, limits, records, events, error codes.
//!
//! Every other crate uses these types, and each thing has one name. Nothing here does I/O,
//! reads a clock, uses randomness or is async: values in, values out.

pub mod address_range;
pub mod addresses;
pub mod claim;
pub mod config;
pub mod deadline;
pub mod document;
pub mod error;
pub mod host_name;
pub mod ids;
pub mod image;
pub mod key;
pub mod key_limits;
pub mod lifecycle;
pub mod limits;
pub mod mount;
pub mod network;
pub mod placing;
mod policy_text;
pub mod process;
pub mod reason;
pub mod record;
pub mod records;
pub mod runtime_kind;
pub mod secret;
pub mod secret_record;
pub mod signals;
pub mod state;
pub mod stats;
pub mod template;
mod template_validation;
pub mod time;
pub mod turn;
pub mod usage;
pub mod why;

pub use address_range::AddressRange;
pub use claim::ClaimSettings;
pub use config::{ColdEviction, NodeConfig};
pub use deadline::{Deadline, DeadlineAction};
pub use document::{Document, DocumentChange};
pub use error::{ErrorCode, Refusal, Retry};
pub use host_name::HostName;
pub use ids::{
    EffectId, Generation, ImageId, InstanceId, KeyId, LeaseId, ProcessId, RequestId, SandboxId,
    SeedId, SessionId, TemplateName, TurnId, UseId, WorkspaceId,
};
pub use image::ImageName;
pub use key::{KeyRecord, Role, RoleLimits};
pub use key_limits::{KeyLimit, KeyLimits, KeyUse};
pub use lifecycle::{LifecycleEvent, StoredEvent};
pub use limits::Limits;
pub use mount::Mount;
pub use network::{ConnectionCheck, NetworkPolicy, NetworkRule, Ports, RuleTarget};
pub use placing::{HardLimits, Placed, placed};
pub use process::{ProcessChange, ProcessEnd, ProcessEndReason, ProcessRecord, ProcessStatus};
pub use reason::{EndCause, TerminatedReason};
pub use records::Records;
pub use secret::{Boundary, SecretName, SecretUse};
pub use secret_record::{SecretCounts, SecretInfo, SecretOwner, SecretRecord, SecretValue};
pub use state::{SandboxState, SandboxStatus, SessionStatus};
pub use template::{PoolSettings, Template};
pub use time::{MachineClocks, Mono, Now, RunClock, Wall};
pub use turn::{TurnChange, TurnEnd, TurnPiece, TurnRecord, TurnStart};
pub use usage::UsageRecord;
