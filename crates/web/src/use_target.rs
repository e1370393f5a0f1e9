//! The target of a use: a sandbox by its own id, or the sandbox that a session has. Programs, files
//! and archives are the same for both; only how a use begins differs.

use axum::extract::{FromRequestParts, RawPathParams};
use engine::{Caller, Use, UseKind};
use http::request::Parts;
use model::why::Why;
use model::{ErrorCode, SandboxId, SessionId};

use crate::app::App;
use crate::boxed;
use crate::path::{Name as _, PortNumber};
use crate::refused::{Elsewhere, Refused};

const OF_SESSIONS: &str = "/v1/sessions/";

/// The target of a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseTarget {
    /// A sandbox.
    Sandbox(SandboxId),
    /// The sandbox of a session, whichever it is.
    Session(SessionId),
}

impl UseTarget {
    /// Refuses a target of another key, as if it did not exist.
    pub fn check(self, app: &App, caller: Caller) -> Result<(), Refused> {
        match self {
            Self::Sandbox(id) => app.engine.check_sandbox(caller, id)?,
            Self::Session(id) => app.engine.check_session(caller, id)?,
        }
        Ok(())
    }

    /// Begins a use.
    pub async fn begin(self, app: &App, caller: Caller, kind: UseKind) -> Result<Use, Refused> {
        match self {
            Self::Sandbox(id) => match app.engine.use_sandbox(caller, id, kind).await {
                Ok(used) => Ok(used),
                Err(refusal) => Err(with_replacement(app, caller, id, refusal.into()).await),
            },
            Self::Session(id) => Ok(app.engine.use_session(caller, id, kind, None).await?),
        }
    }
}

impl From<SandboxId> for UseTarget {
    fn from(id: SandboxId) -> Self {
        Self::Sandbox(id)
    }
}

impl From<SessionId> for UseTarget {
    fn from(id: SessionId) -> Self {
        Self::Session(id)
    }
}

/// The target that `{id}` in the path of one of our own routes names.
impl<S: Send + Sync> FromRequestParts<S> for UseTarget {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let params = params(parts, state).await?;
        named(parts, &params)
    }
}

/// The target and the port that a path names.
#[derive(Debug, Clone, Copy)]
pub struct PortTarget(pub UseTarget, pub u16);

impl<S: Send + Sync> FromRequestParts<S> for PortTarget {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        let params = params(parts, state).await?;
        let used = named(parts, &params)?;
        let PortNumber(port) = PortNumber::read(value(&params, "port"))?;
        Ok(Self(used, port))
    }
}

async fn params<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<RawPathParams, Refused> {
    let not_text = |_| Refused::new(ErrorCode::NotFound, "a part of the path is not UTF-8");
    RawPathParams::from_request_parts(parts, state).await.map_err(not_text)
}

fn value<'a>(params: &'a RawPathParams, name: &str) -> &'a str {
    params.iter().find(|(known, _)| *known == name).map(|(_, value)| value).unwrap_or_default()
}

fn named(parts: &Parts, params: &RawPathParams) -> Result<UseTarget, Refused> {
    let id = value(params, "id");
    if parts.uri.path().starts_with(OF_SESSIONS) {
        return SessionId::read(id).map(UseTarget::Session);
    }
    SandboxId::read(id).map(UseTarget::Sandbox)
}

/// Adds to the refusal for an ended sandbox why it ended and, if it belonged to a session, which
/// sandbox the session has now.
#[boxed]
pub async fn with_replacement(
    app: &App,
    caller: Caller,
    id: SandboxId,
    refused: Refused,
) -> Refused {
    if refused.refusal.code != ErrorCode::SandboxGone {
        return refused;
    }
    let Ok(Why::Ended(ended)) = app.engine.why(caller, id).await else { return refused };
    let session = ended.session;
    let now = session.and_then(|session| app.engine.session(caller, session).ok());
    let elsewhere = Box::new(Elsewhere {
        reason: ended.cause.reason(),
        session_id: session,
        sandbox_id: now.and_then(|view| view.sandbox_id),
    });
    Refused { elsewhere: Some(elsewhere), ..refused }
}
