//! What sandboxes may reach: a claim, a session or a change names a policy within that of the
//! template, or is refused. What a sandbox may reach follows from the template as it is now and from
//! the settings of its owner; nothing else plays a part.

use std::sync::Arc;

use model::{
    ClaimSettings, ErrorCode, InstanceId, NetworkPolicy, Refusal, SandboxId, SessionStatus,
    TemplateName,
};

use crate::Kernel;
use crate::entry::EntryIx;
use crate::event::UseTarget;
use crate::pool::PoolIx;
use crate::reply::Reply;
use crate::view::{NetworkView, NextBinding};

impl Kernel {
    /// The settings that a lease binds: those it asks for, or empty ones if only its template has
    /// something to bind.
    pub(crate) fn claim_of_lease(
        &self,
        pool: PoolIx,
        asked: Option<Arc<ClaimSettings>>,
    ) -> Result<Option<Arc<ClaimSettings>>, Refusal> {
        let asked = asked.filter(|claim| !claim.is_empty());
        self.refuse_wider_network(pool, asked.as_deref())?;
        if asked.is_none() && !self.pools[pool].template.secrets.is_empty() {
            return Ok(Some(Arc::default()));
        }
        Ok(asked)
    }

    /// Refuses a claim that asks for more than its template allows.
    pub(crate) fn refuse_wider_network(
        &self,
        pool: PoolIx,
        claim: Option<&ClaimSettings>,
    ) -> Result<(), Refusal> {
        let Some(wanted) = claim.and_then(|claim| claim.network.as_ref()) else { return Ok(()) };
        self.refuse_wider(&self.pools[pool].template.network, wanted)
    }

    #[allow(clippy::unused_self, reason = "refusals of the kernel are its methods")]
    fn refuse_wider(&self, allowed: &NetworkPolicy, wanted: &NetworkPolicy) -> Result<(), Refusal> {
        if let Some(problem) = wanted.problem() {
            return Err(Refusal::new(ErrorCode::InvalidArgument, format!("network: {problem}")));
        }
        match allowed.first_beyond(wanted) {
            None => Ok(()),
            Some(rule) => {
                let cause =
                    format!("network: the policy of the template does not allow \"{rule}\"");
                Err(Refusal::new(ErrorCode::NetworkRefused, cause))
            }
        }
    }

    pub(crate) fn network_changed(
        &mut self,
        target: UseTarget,
        network: Option<NetworkPolicy>,
    ) -> Result<Reply, Refusal> {
        let (entry, session) = match target {
            UseTarget::Session(id) => {
                let session = self.session_by_id(id)?;
                if self.sessions[session].status == SessionStatus::Ended {
                    return Err(Refusal::new(ErrorCode::SessionEnded, "the session has ended"));
                }
                (self.sessions[session].entry, Some(session))
            }
            UseTarget::Sandbox(id) => {
                let entry = self.usable(id)?;
                (Some(entry), self.entries[entry].session())
            }
        };
        if let Some(wanted) = &network {
            let template = match (entry, session) {
                (_, Some(session)) => self.sessions[session].template.clone(),
                (Some(entry), None) => self.entries[entry].template.name.clone(),
                (None, None) => unreachable!("a target is a sandbox or a session"),
            };
            let pool = self.served_pool(&template)?;
            self.refuse_wider(&self.pools[pool].template.network, wanted)?;
        }
        if let Some(session) = session {
            let claim = with_network(self.sessions[session].settings.claim.as_deref(), network);
            self.sessions[session].settings.claim.clone_from(&claim);
            self.mark_session(session);
            if let Some(entry) = entry {
                self.bind_settings(entry, claim);
            }
        } else if let Some(entry) = entry {
            let claim = with_network(self.entries[entry].settings.as_deref(), network);
            self.bind_settings(entry, claim);
        }
        Ok(Reply::Noted)
    }

    /// Settings of a live sandbox changed while its user has it: it is not untouched any more.
    fn bind_settings(&mut self, entry: EntryIx, claim: Option<Arc<ClaimSettings>>) {
        let sandbox = &mut self.entries[entry];
        if sandbox.is_live() {
            sandbox.clean.rebound(claim.is_some());
            sandbox.settings = claim;
            self.mark(entry);
        }
    }

    /// What an instance may reach now, and for whom. None if it is unknown or being removed.
    pub fn network_of(&self, instance: InstanceId) -> Option<NetworkView> {
        let entry = self.entries.by_instance(instance)?;
        self.network_view(entry)
    }

    /// The same for a sandbox by its id.
    pub fn network_of_sandbox(&self, sandbox: SandboxId) -> Option<NetworkView> {
        self.network_view(self.entries.by_id(sandbox)?)
    }

    fn network_view(&self, entry: EntryIx) -> Option<NetworkView> {
        let sandbox = &self.entries[entry];
        if sandbox.instance == InstanceId::NIL {
            return None;
        }
        let current =
            self.pools.named(&sandbox.template.name).map(|pool| &self.pools[pool].template);
        let template = Arc::clone(current.unwrap_or(&sandbox.template));
        let claimed = sandbox.settings.as_ref().and_then(|settings| settings.network.as_ref());
        Some(NetworkView {
            sandbox: sandbox.id,
            instance: sandbox.instance,
            session: sandbox.session().map(|session| self.sessions[session].id),
            tenant: sandbox.tenant(),
            policy: template.network.within(claimed),
            template,
            settings: sandbox.settings.clone(),
        })
    }

    /// What the session of a target binds to the next sandbox that it gets; none while it has one. A
    /// stopped session gets one only if it is resumed.
    pub fn next_binding(&self, target: UseTarget, resumes: bool) -> Option<NextBinding> {
        let session = match target {
            UseTarget::Session(id) => self.sessions.by_id(id)?,
            UseTarget::Sandbox(id) => self.entries[self.entries.by_id(id)?].session()?,
        };
        let known = &self.sessions[session];
        let stays = match known.status {
            SessionStatus::Ended => true,
            SessionStatus::Stopped => !resumes,
            SessionStatus::Starting | SessionStatus::Active | SessionStatus::Paused => false,
        };
        let has_one = known.entry.is_some_and(|entry| self.entries[entry].is_live());
        if stays || has_one {
            return None;
        }
        let pool = self.pools.named(&known.template)?;
        Some(NextBinding {
            tenant: known.settings.tenant,
            template: Arc::clone(&self.pools[pool].template),
            settings: known.settings.claim.clone(),
        })
    }

    /// The live instances of a template.
    pub fn instances_of_template(&self, name: &TemplateName) -> Vec<InstanceId> {
        let live = self.entries.indices().into_iter().map(|entry| &self.entries[entry]);
        live.filter(|sandbox| sandbox.is_live() && sandbox.template.name == *name)
            .map(|sandbox| sandbox.instance)
            .collect()
    }
}

fn with_network(
    claim: Option<&ClaimSettings>,
    network: Option<NetworkPolicy>,
) -> Option<Arc<ClaimSettings>> {
    let claim = ClaimSettings { network, ..claim.cloned().unwrap_or_default() };
    (!claim.is_empty()).then(|| Arc::new(claim))
}
