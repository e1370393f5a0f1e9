//! A session that is being created: from the decision until its caller has it. If the caller goes
//! away in between, the session is ended, because no other client knows its id.

use std::sync::Arc;

use egress::Reservation;
use kernel::{Event, Reply, SessionSettings, SessionView};
use model::{ClaimSettings, Refusal, SeedId, SessionId};

use crate::answers::PendingRequest;
use crate::core::{Attached, Core};
use crate::ids::fresh_uuid;
use crate::keys::Caller;
use crate::network::check_secrets;
use crate::sandboxes::unexpected;
use crate::session_names::NameChange;
use crate::{Engine, SessionRequest, claim};

impl Engine {
    pub(crate) fn fresh_session(&self) -> Result<SessionId, Refusal> {
        Ok(SessionId::from_uuid(fresh_uuid(self.now().wall)?))
    }

    /// Refuses a session whose secrets are missing or have no room, before a sandbox is taken for it.
    pub(crate) async fn check_secrets(
        &self,
        caller: Caller,
        asked: &SessionRequest,
    ) -> Result<Option<Reservation>, Refusal> {
        let template = self.known_template(&asked.template)?;
        if template.secrets.is_empty() && asked.secrets.is_empty() {
            return Ok(None);
        }
        match claim::session_settings(asked)? {
            Some(claim) => check_secrets(&self.core, caller.key, &template, &claim).await,
            None => {
                check_secrets(&self.core, caller.key, &template, &ClaimSettings::default()).await
            }
        }
    }

    /// Begins to create a session, under a name if one is given. The decision is made when this
    /// returns.
    pub(crate) fn begin_session(
        &self,
        caller: Caller,
        session: SessionId,
        asked: SessionRequest,
        name: Option<NameChange>,
    ) -> Result<BegunSession, Refusal> {
        let claim = claim::session_settings(&asked)?;
        let settings = SessionSettings {
            tenant: caller.key,
            claim,
            idle_timeout_ms: asked.idle_timeout_ms,
            deadline: asked.deadline,
            on_disconnect: asked.on_disconnect,
        };
        let (request, template, wait_ms) = (self.core.request(), asked.template, asked.wait_ms);
        let event = Event::SessionCreated { request, session, template, settings, wait_ms };
        let name = name.map(|name| Attached::Name(Box::new(name)));
        let answer = self.core.begin_request(request, event, name)?;
        Ok(BegunSession { session, seed: asked.seed, answer })
    }
}

/// A session that is being created. It is given up when this is dropped.
pub(crate) struct BegunSession {
    session: SessionId,
    seed: Option<SeedId>,
    answer: PendingRequest,
}

impl BegunSession {
    /// Waits until the session has a sandbox and its harness is ready, or is about to be.
    pub(crate) async fn ready(
        self,
        engine: &Engine,
        caller: Caller,
    ) -> Result<SessionView, Refusal> {
        let Self { session, seed, answer } = self;
        let reply = answer.answer().await?;
        let Reply::SessionReady(_) = reply else { return Err(unexpected(&reply)) };
        let unknown = UndeliveredSession { core: &engine.core, session };
        if !engine.core.harnesses.begin_known_bridge(&engine.core, session) {
            engine.ready_harness(caller, session).await?;
        }
        let view = engine.session(caller, session)?;
        unknown.delivered();
        if let Some(seed) = seed {
            // From here on the session names the archive.
            engine.core.seed_holders.release(seed);
        }
        Ok(view)
    }
}

/// A created session that its caller does not have yet. It is ended when this is dropped.
pub(crate) struct UndeliveredSession<'a> {
    pub(crate) core: &'a Arc<Core>,
    pub(crate) session: SessionId,
}

impl UndeliveredSession<'_> {
    pub(crate) fn delivered(self) {
        std::mem::forget(self);
    }
}

impl Drop for UndeliveredSession<'_> {
    fn drop(&mut self) {
        let (core, session) = (Arc::clone(self.core), self.session);
        tasks::spawn(async move {
            let request = core.request();
            let ended = core.ask(request, Event::SessionEndRequested { request, session }).await;
            if let Err(error) = ended {
                tracing::warn!(
                    %session,
                    %error,
                    "a session whose client went away during its creation could not be ended"
                );
            }
        });
    }
}
