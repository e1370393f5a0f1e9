//! What sandboxes and sessions may reach, changing it, and the log of what they tried.

use model::{NetworkPolicy, SandboxId, SessionId};
use uuid::Uuid;
use wire::{Network, NetworkChange, NetworkLog};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::inside::Inside;
use crate::query::Target;
use crate::transport::Client;

/// Which entries of the network log to read.
#[derive(Debug, Clone, Copy, Default)]
pub struct NetworkLogFilter {
    /// Only of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Only of this session.
    pub session: Option<SessionId>,
    /// Only of the sandbox or session of this id.
    pub of: Option<Uuid>,
    /// Only refusals.
    pub refused: bool,
    /// Only entries after this one; 0 begins at the oldest.
    pub after: Option<u64>,
    /// At most this many.
    pub limit: Option<u32>,
}

impl Inside {
    /// What it may reach, and what it tried.
    #[boxed]
    pub async fn network(&self) -> Result<Network, ClientError> {
        self.client.json(Call::get(self.at().part("network"))).await
    }

    /// Changes what it may reach; none goes back to the policy of the template.
    #[boxed]
    pub async fn change_network(
        &self,
        network: Option<NetworkPolicy>,
    ) -> Result<Network, ClientError> {
        let call = Call::patch(self.at().part("network")).json(&NetworkChange { network })?;
        self.client.json(call).await
    }
}

impl Client {
    /// What sandboxes tried to reach.
    #[boxed]
    pub async fn network_log(&self, filter: NetworkLogFilter) -> Result<NetworkLog, ClientError> {
        let target = Target::new("/v1/network/log")
            .maybe("sandbox", filter.sandbox)
            .maybe("session", filter.session)
            .maybe("of", filter.of)
            .maybe("refused", filter.refused.then_some("true"))
            .maybe("after", filter.after)
            .maybe("limit", filter.limit);
        self.json(Call::get(target)).await
    }
}
