//! Conversations: how one is asked for, what is told of it, and what its harness wrote.

use std::collections::BTreeMap;
use std::fmt;

use model::record::OnDisconnect;
use model::{
    Generation, KeyId, SandboxId, SandboxStatus, SessionId, SessionStatus, TemplateName, TurnId,
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::time::Time;

/// A session is wanted.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionRequest {
    /// Of this template.
    pub template: TemplateName,
    /// Its id, if it is to have a certain one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SessionId>,
    /// Environment of the programs that run for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Free words, shown in listings and to filter by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// What its harness is told besides the messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
    /// Files that its workspace begins with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schema(max_items = 1000))]
    pub files: Vec<SessionFile>,
    /// How long it may be idle before its sandbox is put to sleep, in seconds; the template's
    /// `idle_timeout_ms` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 31_536_000))]
    pub idle_timeout_s: Option<u64>,
    /// What becomes of a turn whose client goes away; `continue` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_disconnect: Option<OnDisconnect>,
}

impl SessionRequest {
    /// The longest idle time that may be asked for.
    pub const IDLE_TIMEOUT_S_MAX: u64 = 31_536_000;
    /// The most files that may be given.
    pub const FILES_MAX: usize = 1000;

    /// A session of this template, with every default.
    pub fn of(template: TemplateName) -> Self {
        Self {
            template,
            id: None,
            env: BTreeMap::new(),
            metadata: BTreeMap::new(),
            config: None,
            files: Vec::new(),
            idle_timeout_s: None,
            on_disconnect: None,
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
            .field("metadata", &self.metadata)
            .field("files", &self.files.len())
            .field("idle_timeout_s", &self.idle_timeout_s)
            .field("on_disconnect", &self.on_disconnect)
            .finish_non_exhaustive()
    }
}

/// A file to begin with: exactly one of `content` and `content_base64`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionFile {
    /// Where it is, beneath `/workspace`.
    #[cfg_attr(feature = "schema", schema(example = "src/main.py"))]
    pub path: String,
    /// What is in it, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// What is in it, as base64.
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

/// What is to be changed about a session; what is not given stays.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionUpdate {
    /// The words it is found by from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// What its harness is told from its next turn on; null for nothing.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Map<String, Value>>))]
    pub config: Option<Value>,
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
        f.debug_struct("SessionUpdate").field("metadata", &self.metadata).finish_non_exhaustive()
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
    /// How it is.
    pub status: SessionStatus,
    /// Whether it has a sandbox that works.
    pub sandbox_status: SandboxStatus,
    /// That sandbox.
    pub sandbox_id: Option<SandboxId>,
    /// Grows each time it gets another sandbox.
    pub generation: Generation,
    /// Whether files were lost, and no answer has reported it yet.
    pub state_lost: bool,
    /// Whether its files are still there if its sandbox or the server dies now.
    #[serde(default = "yes")]
    pub files_durable: bool,
    /// The turn in progress.
    pub turn: Option<TurnId>,
    /// Turns that wait behind it.
    pub queued_turns: u32,
    /// The session it was forked from.
    pub parent_id: Option<SessionId>,
    /// The words it is found by.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// What its harness is told besides the messages.
    #[serde(default)]
    pub config: Option<Map<String, Value>>,
    /// How long it may be idle; its template's value if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_s: Option<u64>,
    /// What becomes of a turn whose client goes away.
    pub on_disconnect: OnDisconnect,
    /// Where its files are, if that is known.
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
    /// How much they take, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Sessions, newest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionList {
    /// One page of them.
    pub sessions: Vec<Session>,
    /// What to give as `after` for the next page, if there may be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The turn in progress is to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AbortRequest {
    /// Whether the sandbox lives on; if not, its files are kept and the next turn gets another.
    #[serde(default)]
    pub keep_sandbox: bool,
}

/// What an abort found, once it is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Aborted {
    /// The turn that was called off, if there was one.
    pub turn_id: Option<TurnId>,
    /// Whether the sandbox lives on.
    pub sandbox_kept: bool,
    /// The session as it is now.
    pub session: Session,
}

/// What the harness of a session wrote that belongs to no turn.
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
    /// Said by the server about it.
    System,
}

impl LogStream {
    /// The word used in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::System => "system",
        }
    }
}

/// Lines that are remembered, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LogList {
    /// The lines.
    pub logs: Vec<LogLine>,
    /// What to give as `after` to get those that come later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_understood_and_secrets_are_not_printed() {
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
    fn a_config_of_null_is_not_none_at_all() {
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
