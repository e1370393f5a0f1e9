//! Sessions: requests to create and change them, their views, and the log of their harness.

use std::collections::BTreeMap;
use std::fmt;

use model::record::OnDisconnect;
use model::{
    Generation, KeyId, NetworkPolicy, SandboxId, SandboxStatus, SecretName, SecretUse, SessionId,
    SessionStatus, TemplateName, TurnId,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::deadline::{DeadlineRequest, NewDeadline, SessionDeadline};
use crate::time::Time;

/// A request to create a session.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionRequest {
    /// The template of its sandboxes.
    pub template: TemplateName,
    /// Its id, if the client chooses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SessionId>,
    /// Environment variables of the programs that run for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// What it may reach, within the policy of its template; that policy if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Secrets that it uses beside those of its template.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 32))]
    pub secrets: Vec<SecretUse>,
    /// Values of secrets that the caller brings itself. They come before stored ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "schema", schema(value_type = BTreeMap<String, String>))]
    pub secret_values: BTreeMap<SecretName, String>,
    /// Labels, shown in listings and usable as filters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Configuration for its harness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
    /// Files that its workspace begins with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 1000))]
    pub files: Vec<SessionFile>,
    /// How long it may be idle before its sandbox becomes cold, in seconds; the template's
    /// `idle_timeout_ms` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 31_536_000))]
    pub idle_timeout_s: Option<u64>,
    /// When it ends or pauses without a request; never if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DeadlineRequest>,
    /// What happens to a turn whose client disconnects; `continue` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
    /// How long to wait for a place if the server is full; the server's default if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 600_000))]
    pub wait_ms: Option<u64>,
}

impl SessionRequest {
    /// The longest idle time.
    pub const IDLE_TIMEOUT_S_MAX: u64 = 31_536_000;
    /// The most files that may be given.
    pub const FILES_MAX: usize = 1000;

    /// A session of this template, with every default.
    pub fn of(template: TemplateName) -> Self {
        Self {
            template,
            id: None,
            env: BTreeMap::new(),
            network: None,
            secrets: Vec::new(),
            secret_values: BTreeMap::new(),
            metadata: BTreeMap::new(),
            config: None,
            files: Vec::new(),
            idle_timeout_s: None,
            deadline: None,
            on_disconnect: None,
            wait_ms: None,
        }
    }
}

/// Values of the environment, the configuration and files may be secret: only names show.
impl fmt::Debug for SessionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionRequest")
            .field("template", &self.template)
            .field("id", &self.id)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("network", &self.network)
            .field("secrets", &self.secrets)
            .field("metadata", &self.metadata)
            .field("files", &self.files.len())
            .field("idle_timeout_s", &self.idle_timeout_s)
            .field("deadline", &self.deadline)
            .field("on_disconnect", &self.on_disconnect)
            .field("wait_ms", &self.wait_ms)
            .finish_non_exhaustive()
    }
}

/// A file to begin with: exactly one of `content` and `content_base64`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionFile {
    /// Its path beneath `/workspace`.
    #[cfg_attr(feature = "schema", schema(example = "src/main.py"))]
    pub path: String,
    /// Its contents, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Its contents, as base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// Its permissions in octal, such as `0644`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(pattern = "^0*[0-7]{1,4}$"))]
    pub mode: Option<String>,
}

impl fmt::Debug for SessionFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A request to change a session. A field that is not given stays as it is.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionUpdate {
    /// Its new labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Configuration for its harness from the next turn on; null for none.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Map<String, Value>>))]
    pub config: Option<Value>,
    /// Its deadline from now on; null for none. Idle time counts from now.
    #[serde(
        default,
        deserialize_with = "NewDeadline::given",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(feature = "schema", schema(value_type = Option<DeadlineRequest>))]
    pub deadline: Option<NewDeadline>,
}

const fn yes() -> bool {
    true
}

/// Null is something that was given, too.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl fmt::Debug for SessionUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionUpdate")
            .field("metadata", &self.metadata)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// A session as it is now.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Its template.
    pub template: TemplateName,
    /// Its status.
    pub status: SessionStatus,
    /// Whether it has a working sandbox.
    pub sandbox_status: SandboxStatus,
    /// That sandbox.
    pub sandbox_id: Option<SandboxId>,
    /// Grows each time it gets another sandbox.
    pub generation: Generation,
    /// Whether files were lost, and no answer has reported it yet.
    pub state_lost: bool,
    /// Whether its files would survive a crash of its sandbox or the server now.
    #[serde(default = "yes")]
    pub files_durable: bool,
    /// The turn in progress.
    pub turn: Option<TurnId>,
    /// Turns that wait behind it.
    pub queued_turns: u32,
    /// The session it was forked from.
    pub parent_id: Option<SessionId>,
    /// Its labels.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Configuration for its harness.
    #[serde(default)]
    pub config: Option<Map<String, Value>>,
    /// How long it may be idle; its template's value if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_s: Option<u64>,
    /// When it ends or pauses without a request, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<SessionDeadline>,
    /// What happens to a turn whose client disconnects.
    pub on_disconnect: OnDisconnect,
    /// Where its files are, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<SessionWorkspace>,
    /// When it was created.
    pub created_at: Time,
    /// When it was last used.
    pub last_active_at: Time,
    /// The key it belongs to; shown to admins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("status", &self.status)
            .field("sandbox_id", &self.sandbox_id)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

/// Where the files of a session are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionWorkspace {
    /// `disk`, `memory` or `archive`.
    pub place: String,
    /// Their size in bytes, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Sessions, newest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionList {
    /// One page of them.
    pub sessions: Vec<Session>,
    /// The value of `after` for the next page, if there may be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A request to abort the turn in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AbortRequest {
    /// Whether to keep the sandbox. If not, its files are kept and the next turn gets another
    /// sandbox.
    #[serde(default)]
    pub keep_sandbox: bool,
}

/// The result of an abort, once the turn has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Aborted {
    /// The turn that was aborted, if there was one.
    pub turn_id: Option<TurnId>,
    /// Whether the sandbox is kept.
    pub sandbox_kept: bool,
    /// The session as it is now.
    pub session: Session,
}

/// A line of a session's harness log: output that belongs to no turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LogLine {
    /// Its number.
    pub id: u64,
    /// When it was written.
    pub at: Time,
    /// Where it was written to.
    pub stream: LogStream,
    /// The line.
    pub text: String,
}

impl LogLine {
    /// The name of the event in a stream.
    pub const NAME: &'static str = "log";
}

/// Where a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum LogStream {
    /// Its output.
    Stdout,
    /// Its output for errors.
    Stderr,
    /// A message of the server about the harness.
    System,
}

impl LogStream {
    /// As text in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::System => "system",
        }
    }
}

/// The stored lines, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LogList {
    /// The lines.
    pub logs: Vec<LogLine>,
    /// The value of `after` for later lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_request_is_read_and_does_not_print_secrets() {
        let text = r#"{"template":"default","env":{"TOKEN":"hunter2"},"metadata":{"user":"ada"},
            "config":{"model":"hunter3"},"files":[{"path":"a","content":"hunter4","mode":"0644"}],
            "idle_timeout_s":60,"on_disconnect":"abort"}"#;
        let request: SessionRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.on_disconnect, Some(OnDisconnect::Abort));
        let shown = format!("{request:?} {:?}", request.files);
        assert!(shown.contains("TOKEN") && !shown.contains("hunter"), "{shown}");
        for (text, part) in [
            (r#"{"template":"default","labels":{}}"#, "`labels`"),
            (r#"{"template":"default","config":[]}"#, "map"),
            (r#"{"template":"default","files":[{"content":"x"}]}"#, "`path`"),
            (r#"{"template":"default","on_disconnect":"hope"}"#, "`hope`"),
        ] {
            let error = serde_json::from_str::<SessionRequest>(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn session_change_distinguishes_null_config_from_none() {
        for (text, expected) in [
            ("{}", None),
            (r#"{"config":null}"#, Some(Value::Null)),
            (r#"{"config":{}}"#, Some(Value::Object(Map::new()))),
        ] {
            let change: SessionUpdate = serde_json::from_str(text).unwrap();
            assert_eq!(change.config, expected, "{text}");
            assert_eq!(serde_json::to_string(&change).unwrap(), text);
        }
    }
}
