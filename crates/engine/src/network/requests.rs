//! Requests about what a sandbox or session may reach: reading it, changing it, and the log of what
//! was tried. A change has taken effect when its caller gets the answer.

use std::net::Ipv4Addr;

use egress::EgressCounts;
use kernel::{Event, NetworkView, UseTarget};
use model::{ErrorCode, InstanceId, NetworkPolicy, Refusal, SandboxId, SessionId, TemplateName};

use super::{NetworkLogPage, NetworkLogQuery, finished};
use crate::effects::EffectError;
use crate::keys::Caller;
use crate::{Engine, boxed};

/// The latest entries that a report has.
const REPORTED: usize = 50;

/// What a sandbox or session may reach, and what it tried.
#[derive(Debug, Clone)]
pub struct NetworkReport {
    /// What it may reach now.
    pub policy: NetworkPolicy,
    /// Whether its policy is attached; if not, it reaches nothing.
    pub attached: bool,
    /// What its template allows.
    pub template: NetworkPolicy,
    /// Its sandbox, if it has one.
    pub sandbox: Option<SandboxId>,
    /// The latest entries of its log, oldest first.
    pub log: NetworkLogPage,
    /// Addresses and ports that programs dialled by number and the machine's kernel refused.
    pub refused_addresses: Vec<(Ipv4Addr, u16)>,
}

impl Engine {
    /// What a sandbox may reach, and what it tried.
    #[boxed]
    pub async fn sandbox_network(
        &self,
        caller: Caller,
        id: SandboxId,
    ) -> Result<NetworkReport, Refusal> {
        // Refuses one that has ended, with the reason.
        self.sandbox(caller, id)?;
        let query =
            NetworkLogQuery { sandbox: Some(id), limit: REPORTED, ..NetworkLogQuery::default() };
        let log = self.network_log(caller, &query).await;
        if let Some(view) = self.core.read(|kernel| kernel.network_of_sandbox(id)) {
            return self.network_report(view, log).await;
        }
        let none = NetworkPolicy::None;
        let (template, refused_addresses) = (none.clone(), Vec::new());
        Ok(NetworkReport {
            policy: none,
            attached: true,
            template,
            sandbox: Some(id),
            log,
            refused_addresses,
        })
    }

    /// What the sandboxes of a session may reach, and what they tried.
    #[boxed]
    pub async fn session_network(
        &self,
        caller: Caller,
        id: SessionId,
    ) -> Result<NetworkReport, Refusal> {
        let session = self.session(caller, id)?;
        let query =
            NetworkLogQuery { session: Some(id), limit: REPORTED, ..NetworkLogQuery::default() };
        let log = self.network_log(caller, &query).await;
        let live = session.sandbox_id;
        if let Some(view) =
            live.and_then(|id| self.core.read(|kernel| kernel.network_of_sandbox(id)))
        {
            return self.network_report(view, log).await;
        }
        let template = self.known_template(&session.template)?.network.clone();
        let claimed = session.claim.as_ref().and_then(|claim| claim.network.as_ref());
        let policy = template.within(claimed);
        let refused_addresses = Vec::new();
        Ok(NetworkReport {
            policy,
            attached: true,
            template,
            sandbox: session.sandbox_id,
            log,
            refused_addresses,
        })
    }

    async fn network_report(
        &self,
        view: NetworkView,
        log: NetworkLogPage,
    ) -> Result<NetworkReport, Refusal> {
        let refused_addresses = match self.core.runtimes.sandbox(view.instance) {
            Some(sandbox) if !view.policy.is_none() => {
                // Only what happened is missing if the sandbox ends meanwhile.
                sandbox.refused_addresses().await.unwrap_or_default()
            }
            Some(_) | None => Vec::new(),
        };
        let attached = view.policy.is_none() || !self.core.networks.is_detached(view.instance);
        let (policy, template) = (view.policy, view.template.network.clone());
        let sandbox = Some(view.sandbox);
        Ok(NetworkReport { policy, attached, template, sandbox, log, refused_addresses })
    }

    /// Whether a sandbox reaches nothing because its policy could not be attached.
    pub fn is_network_detached(&self, id: SandboxId) -> bool {
        let view = self.core.read(|kernel| kernel.network_of_sandbox(id));
        view.is_some_and(|view| {
            !view.policy.is_none() && self.core.networks.is_detached(view.instance)
        })
    }

    /// Changes what a sandbox may reach, within the policy of its template; back to that policy if
    /// none is given. If its session has it, later sandboxes of the session may reach the same.
    #[boxed]
    pub async fn change_sandbox_network(
        &self,
        caller: Caller,
        id: SandboxId,
        network: Option<NetworkPolicy>,
    ) -> Result<NetworkReport, Refusal> {
        self.check_sandbox(caller, id)?;
        self.change_network(UseTarget::Sandbox(id), network, Some(id)).await?;
        self.sandbox_network(caller, id).await
    }

    /// Changes what the sandboxes of a session may reach.
    #[boxed]
    pub async fn change_session_network(
        &self,
        caller: Caller,
        id: SessionId,
        network: Option<NetworkPolicy>,
    ) -> Result<NetworkReport, Refusal> {
        let session = self.session(caller, id)?;
        self.change_network(UseTarget::Session(id), network, session.sandbox_id).await?;
        self.session_network(caller, id).await
    }

    /// A change is carried out even if its caller goes away: what the kernel says and what is
    /// attached never stay apart.
    async fn change_network(
        &self,
        target: UseTarget,
        network: Option<NetworkPolicy>,
        sandbox: Option<SandboxId>,
    ) -> Result<(), Refusal> {
        let engine = self.clone();
        let changing = tasks::spawn(async move {
            let event = Event::NetworkChanged { target, network };
            engine.core.ask(engine.core.request(), event).await?;
            let find = |id| engine.core.read(|kernel| kernel.network_of_sandbox(id));
            match sandbox.and_then(find) {
                Some(view) => engine.apply_now(view.instance).await,
                None => Ok(()),
            }
        });
        finished(changing).await
    }

    async fn apply_now(&self, instance: InstanceId) -> Result<(), Refusal> {
        let Some(sandbox) = self.core.runtimes.sandbox(instance) else { return Ok(()) };
        let applied = self.core.networks.apply(&self.core, &*sandbox, None).await;
        applied.map_err(EffectError::into_refusal)
    }

    /// A template was replaced: its sandboxes may reach what the new one allows.
    pub(crate) async fn apply_network_of_template(&self, name: &TemplateName) {
        for instance in self.core.read(|kernel| kernel.instances_of_template(name)) {
            if let Err(error) = self.apply_now(instance).await {
                tracing::warn!(%instance, %error, "a sandbox has no network: its new policy was not attached");
            }
        }
    }

    /// Numbers of the way out since the start; none if there is no way out.
    pub fn egress_counts(&self) -> Option<EgressCounts> {
        self.core.networks.counts()
    }

    /// Refuses a question about the log of something that the caller never had.
    #[boxed]
    pub async fn check_network_log(
        &self,
        caller: Caller,
        query: &NetworkLogQuery,
    ) -> Result<(), Refusal> {
        let either = query.of.map(|id| (SandboxId::from_u128(id), SessionId::from_u128(id)));
        let no_sandbox = |id| {
            let refusal = self.sandbox(caller, id).err();
            refusal.filter(|refusal| refusal.code == ErrorCode::SandboxUnknown)
        };
        let no_session = |id| {
            let refusal = self.session(caller, id).err();
            refusal.filter(|refusal| refusal.code == ErrorCode::SessionUnknown)
        };
        let unknown = match (query.sandbox, query.session, either) {
            (Some(id), _, _) => no_sandbox(id),
            (None, Some(id), _) => no_session(id),
            (None, None, Some((sandbox, session))) => {
                no_sandbox(sandbox).and_then(|_| no_session(session))
            }
            (None, None, None) => None,
        };
        unknown.map_or(Ok(()), Err)
    }

    /// What the sandboxes of a caller tried, or of all keys for admins.
    #[boxed]
    pub async fn network_log(&self, caller: Caller, query: &NetworkLogQuery) -> NetworkLogPage {
        let networks = &self.core.networks;
        networks.note_refused_of(&self.core, |whose| caller.sees(whose.key()), query).await;
        networks.log.page(|key| caller.sees(key), query)
    }
}
