//! Whose API a request is about: a sandbox of Blaxel by its name, which is one of our sessions, or
//! one of our sandboxes by its id. Whoever only looks begins no use, and wakes nothing.

use std::sync::Arc;

use engine::{Caller, NamedSession, ProcessRef, Use, UseKind};
use model::{ErrorCode, KeyId, ProcessRecord, Refusal, SandboxId};

use super::errors::BlaxelError;
use super::registry::{KIND, refused};
use super::{OF_LISTENER, sandboxes};
use crate::app::App;
use web::use_target::UseTarget;

/// What a sandbox of the listener of its own is called.
pub(super) const OF_ITS_OWN: &str = "default";

/// A sandbox, and who asks for it.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) app: App,
    /// As whom the engine is asked.
    pub(super) caller: Caller,
    /// The key that was given.
    pub(super) key: KeyId,
    of: TargetKind,
}

#[derive(Clone)]
enum TargetKind {
    Sandbox(SandboxId),
    Named(Arc<NamedSession>),
    /// The one of the listener, which nobody has used yet.
    NotYet,
}

impl Target {
    /// The sandbox of the listener. It is made where somebody first uses it, and again where it
    /// ended for good; whoever only looks makes none.
    pub(super) async fn of_listener(
        app: &App,
        by: Caller,
        is_used: bool,
    ) -> Result<Self, BlaxelError> {
        let caller = Caller { key: OF_LISTENER, role: by.role };
        let of = match app.engine.named_session(KIND, OF_LISTENER, OF_ITS_OWN).await? {
            Some(named) if app.engine.session_lives(caller, named.session) => {
                TargetKind::Named(named)
            }
            Some(_) | None if is_used => TargetKind::Named(sandboxes::make_own(app, caller).await?),
            Some(_) | None => TargetKind::NotYet,
        };
        Ok(Self { app: app.clone(), caller, key: by.key, of })
    }

    /// One by its name or id.
    pub(super) async fn find(app: &App, by: Caller, word: &str) -> Result<Self, BlaxelError> {
        let of = match app.engine.named_session(KIND, by.key, word).await? {
            Some(named) => TargetKind::Named(named),
            None => match word.parse::<SandboxId>() {
                Ok(id) => TargetKind::Sandbox(id),
                Err(_) => {
                    return Err(BlaxelError::new(404, format!("sandbox {word:?} not found")));
                }
            },
        };
        Ok(Self { app: app.clone(), caller: by, key: by.key, of })
    }

    /// Begins to use it, which wakes it.
    pub(super) async fn begin(&self, kind: UseKind) -> Result<Use, BlaxelError> {
        let engine = &self.app.engine;
        match &self.of {
            TargetKind::Sandbox(id) => Ok(engine.use_sandbox(self.caller, *id, kind).await?),
            TargetKind::Named(named) => {
                let used = engine.use_named_session(KIND, self.caller, named, kind).await;
                Ok(used.map_err(refused)?)
            }
            TargetKind::NotYet => Err(not_yet()),
        }
    }

    /// The same, for tools.
    pub(super) fn used(&self) -> Result<UseTarget, BlaxelError> {
        match &self.of {
            TargetKind::Sandbox(id) => Ok(UseTarget::Sandbox(*id)),
            TargetKind::Named(named) => Ok(UseTarget::Session(named.session)),
            TargetKind::NotYet => Err(not_yet()),
        }
    }

    /// When the server is told to stop.
    pub(super) async fn server_stops(&self) {
        // That nobody will say so any more is a stop too.
        let _ = self.app.stopping.clone().wait_for(|stop| *stop).await;
    }

    /// The sandbox that it has now, if it has one.
    pub(super) fn now(&self) -> Option<SandboxId> {
        match &self.of {
            TargetKind::Sandbox(id) => Some(*id),
            TargetKind::Named(named) => {
                let view = self.app.engine.session(self.caller, named.session);
                view.ok().and_then(|view| view.sandbox_id)
            }
            TargetKind::NotYet => None,
        }
    }

    /// The same, for who asks nobody else whether it is the caller's.
    pub(super) fn own_now(&self) -> Result<Option<SandboxId>, BlaxelError> {
        let now = self.now();
        if let Some(id) = now {
            self.app.engine.check_sandbox(self.caller, id)?;
        }
        Ok(now)
    }

    /// The sandboxes that it has and had, the latest first.
    pub(super) fn all(&self) -> Vec<SandboxId> {
        let mut all: Vec<_> = self.now().into_iter().collect();
        if let TargetKind::Named(named) = &self.of {
            all.extend(named.sandboxes.iter().filter(|id| !all.contains(id)).collect::<Vec<_>>());
        }
        all
    }

    /// A process, also of a sandbox that it had before.
    pub(super) async fn process(&self, of: &ProcessRef) -> Result<ProcessRecord, BlaxelError> {
        for sandbox in self.all() {
            match self.app.engine.process(self.caller, sandbox, of).await {
                Ok(record) => return Ok(record),
                Err(refusal) if is_unknown(&refusal) => {}
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Err(Refusal::new(ErrorCode::ProcessUnknown, "no such process").into())
    }
}

fn not_yet() -> BlaxelError {
    Refusal::new(ErrorCode::SandboxUnknown, "nobody has used the sandbox yet").into()
}

/// Whether something is only not there.
pub(super) fn is_unknown(refusal: &Refusal) -> bool {
    let codes = [ErrorCode::ProcessUnknown, ErrorCode::SandboxUnknown, ErrorCode::SandboxGone];
    codes.contains(&refusal.code)
}
