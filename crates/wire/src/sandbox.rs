//! Sandboxes and the leases under which they are used.

use std::collections::BTreeMap;
use std::fmt;

use model::template::RuntimeKind;
use model::{
    EndCause, Generation, KeyId, LeaseId, NetworkPolicy, SandboxId, SandboxState, SecretName,
    SecretUse, SessionId, TemplateName,
};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// A request to check out a sandbox under a lease.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct CheckoutRequest {
    /// The template of the sandbox.
    pub template: TemplateName,
    /// Environment variables of the programs that run in it.
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
    pub labels: BTreeMap<String, String>,
    /// How long the lease lasts unless renewed, in seconds; the template's `lease_ttl_ms` if not
    /// given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 31_536_000))]
    pub ttl_s: Option<u64>,
    /// How long to wait for a sandbox; the server's default if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 600_000))]
    pub wait_ms: Option<u64>,
    /// How a sandbox may be obtained; `wait` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<CheckoutPolicy>,
}

impl CheckoutRequest {
    /// The longest lease.
    pub const TTL_S_MAX: u64 = 31_536_000;
    /// The longest wait.
    pub const WAIT_MS_MAX: u64 = 600_000;

    /// A sandbox of this template, with every default.
    pub fn of(template: TemplateName) -> Self {
        Self {
            template,
            env: BTreeMap::new(),
            network: None,
            secrets: Vec::new(),
            secret_values: BTreeMap::new(),
            labels: BTreeMap::new(),
            ttl_s: None,
            wait_ms: None,
            policy: None,
        }
    }
}

/// Values of the environment may be secret: only names show.
impl fmt::Debug for CheckoutRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckoutRequest")
            .field("template", &self.template)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("network", &self.network)
            .field("secrets", &self.secrets)
            .field("labels", &self.labels)
            .field("ttl_s", &self.ttl_s)
            .field("wait_ms", &self.wait_ms)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// How a checkout may obtain a sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum CheckoutPolicy {
    /// Take an idle one, start one, or wait.
    #[default]
    Wait,
    /// Take an idle one or start one, but do not wait for a return.
    FailFast,
    /// Take an idle one, or refuse.
    IdleOnly,
}

/// How a checkout obtained its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum CheckoutPath {
    /// A sandbox was idle.
    Fast,
    /// A sandbox was started for it at once.
    Overflow,
    /// The checkout had to wait.
    Blocked,
}

impl CheckoutPath {
    /// As text in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Overflow => "overflow",
            Self::Blocked => "blocked",
        }
    }
}

/// A lease with its sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Checkout {
    /// The lease.
    pub id: LeaseId,
    /// Its sandbox.
    pub sandbox: Sandbox,
    /// How the sandbox was obtained; only in the answer to the checkout itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<CheckoutPath>,
}

/// A request to renew a lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RenewRequest {
    /// Seconds from now until it expires; the original duration if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 31_536_000))]
    pub ttl_s: Option<u64>,
}

/// A sandbox as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// Its template.
    pub template: TemplateName,
    /// The runtime that isolates it.
    #[serde(default)]
    pub runtime: RuntimeKind,
    /// The id of its container in the engine of its runtime; null if there is none.
    #[serde(default)]
    pub container_id: Option<String>,
    /// Its state.
    pub state: SandboxState,
    /// Whether it is frozen. The next use thaws it.
    pub frozen: bool,
    /// Whether a process or the scale file keeps it from being frozen.
    #[serde(default)]
    pub awake: bool,
    /// When it will be frozen if it is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freezes_at: Option<Time>,
    /// Grows each time the sandbox is recreated.
    pub generation: Generation,
    /// The lease it is under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseId>,
    /// The session it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The labels that its user gave it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How often it was used, this time included.
    pub uses: u32,
    /// How often its instance was handed out, this time included: 1 for the first user. It grows
    /// only if used sandboxes are wiped and handed out again.
    #[serde(default)]
    pub use_count: u32,
    /// When it was made.
    pub created_at: Time,
    /// When it was last used.
    pub last_used_at: Time,
    /// When it ends unless renewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Why it is being ended, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<EndCause>,
    /// The key it belongs to; shown to admins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
}

/// Sandboxes, in the order of their ids.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SandboxList {
    /// One page of them.
    pub sandboxes: Vec<Sandbox>,
    /// The value of `after` for the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkout_request_example_is_read() {
        let text = r#"{"template":"default","env":{},"ttl_s":600,"wait_ms":5000}"#;
        let request: CheckoutRequest = serde_json::from_str(text).unwrap();
        assert_eq!((request.ttl_s, request.wait_ms, request.policy), (Some(600), Some(5000), None));
        let policy = r#"{"template":"default","policy":"idle_only"}"#;
        let request: CheckoutRequest = serde_json::from_str(policy).unwrap();
        assert_eq!(request.policy, Some(CheckoutPolicy::IdleOnly));
    }

    #[test]
    fn checkout_request_refuses_unknown_fields_by_name() {
        for (text, part) in [
            (r#"{"template":"default","ttl":600}"#, "`ttl`"),
            (r#"{"template":"No such"}"#, "template name"),
            (r#"{"env":{}}"#, "`template`"),
            (r#"{"template":"a","policy":"hope"}"#, "`hope`"),
            (r#"{"template":"a","ttl_s":-1}"#, "-1"),
        ] {
            let error = serde_json::from_str::<CheckoutRequest>(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(serde_json::from_str::<RenewRequest>(r#"{"ttl":1}"#).is_err());
    }

    #[test]
    fn checkout_request_does_not_print_environment_values() {
        let mut request = CheckoutRequest::of(TemplateName::new("t").unwrap());
        request.env.insert("TOKEN".to_owned(), "hunter2".to_owned());
        let shown = format!("{request:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn client_ignores_unknown_fields() {
        let text = r#"{"id":"00000000-0000-0000-0000-000000000001","template":"t","state":"warm",
            "frozen":false,"generation":1,"uses":0,"created_at":"2026-01-02T03:04:05.678Z",
            "last_used_at":"2026-01-02T03:04:05.678Z","of_the_future":1}"#;
        let sandbox: Sandbox = serde_json::from_str(text).unwrap();
        assert_eq!((sandbox.state, sandbox.expires_at), (SandboxState::Warm, None));
    }
}
