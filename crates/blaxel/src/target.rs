//! The target of a request: a sandbox of Blaxel by its name, which is one of our sessions, or one
//! of our sandboxes by its id. Only reads of processes, while one runs, and uses count as activity.

use std::sync::Arc;

use engine::{Caller, NamedSession, ProcessRef, Use, UseKind};
use model::{ErrorCode, KeyId, ProcessRecord, Refusal, SandboxId};

use super::errors::BlaxelError;
use super::registry::{KIND, refused};
use super::{OF_LISTENER, sandboxes};
use crate::app::App;
use web::use_target::UseTarget;

/// The name of the sandbox of the separate listener.
pub(super) const OF_ITS_OWN: &str = "default";

/// A sandbox and the caller.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) app: App,
    /// The caller for the engine.
    pub(super) caller: Caller,
    /// The key that was given.
    pub(super) key: KeyId,
    of: TargetKind,
}

#[derive(Clone)]
enum TargetKind {
    Sandbox(SandboxId),
    Named(Arc<NamedSession>),
    /// The one of the listener, which was not used yet.
    NotYet,
}

impl Target {
    /// The sandbox of the listener. The first use creates it, and again after it ended for good;
    /// read-only requests create none.
    pub(super) async fn of_listener(
        app: &App,
        by: Caller,
        is_used: bool,
    ) -> Result<Self, BlaxelError> {
        let caller = Caller { key: OF_LISTENER, role: by.role };
        let of = match app.engine.named_session(KIND, OF_LISTENER, OF_ITS_OWN).await? {
            Some(named) if app.engine.is_session_alive(caller, named.session) => {
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
                    return Err(sandboxes::unknown(word));
                }
            },
        };
        Ok(Self { app: app.clone(), caller: by, key: by.key, of })
    }

    /// Begins a use, which thaws or restores it.
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

    /// Done when the server stops.
    pub(super) async fn server_stops(&self) {
        // A dropped sender means a stop, too.
        let _ = self.app.stopping.clone().wait_for(|stop| *stop).await;
    }

    /// Refuses one that has ended for good, as its uses are. A cold one is only at rest: its next
    /// use launches it.
    pub(super) async fn refuse_if_over(&self) -> Result<(), BlaxelError> {
        let engine = &self.app.engine;
        match &self.of {
            TargetKind::Sandbox(id) => match engine.sandbox_status(self.caller, *id).await {
                Err(refusal) if !self.is_cold(*id) => Err(refusal.into()),
                Ok(_) | Err(_) => Ok(()),
            },
            // It ended for good, so this is refused too, with the reason.
            TargetKind::Named(named) if !engine.is_session_alive(self.caller, named.session) => {
                self.begin(UseKind::Read).await.map(drop)
            }
            TargetKind::Named(_) | TargetKind::NotYet => Ok(()),
        }
    }

    fn is_cold(&self, id: SandboxId) -> bool {
        self.app.engine.sandbox(self.caller, id).is_ok_and(|view| view.ending.is_none())
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

    /// The same, with a check that it belongs to the caller.
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

    /// Its SDK polls a process to wait for it, so a read counts as a use while one runs.
    pub(super) fn note_process_read(&self) {
        if let Some(sandbox) = self.now() {
            self.app.engine.note_process_read(self.caller, sandbox);
        }
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
        Err(Refusal::new(ErrorCode::ProcessUnknown, "the process does not exist").into())
    }
}

fn not_yet() -> BlaxelError {
    Refusal::new(ErrorCode::SandboxUnknown, "the sandbox was not used yet").into()
}

/// Whether something is only not there.
pub(super) fn is_unknown(refusal: &Refusal) -> bool {
    let codes = [ErrorCode::ProcessUnknown, ErrorCode::SandboxUnknown, ErrorCode::SandboxGone];
    codes.contains(&refusal.code)
}
