//! The server's side of the way out: which process serves which sandbox, and what the server asks of
//! it. Processes share sandboxes, except those with boundary secrets, which are with others of their
//! key only. Every future here may be dropped at any time: then the sandbox is not attached.

mod hub;
mod link;
mod node;
mod placement;
mod shares;
mod starter;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use model::{HostName, InstanceId, KeyId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::boundary::Authority;
use crate::control::{AttachMessage, Beginning, BoundarySecret, Sockets, UpstreamProxy};
use crate::limits::EgressLimits;
use crate::policy::Reach;
use hub::Hub;
use link::Command;
use placement::{Link, Placement};

pub use hub::{EgressCounts, Reported};

/// The most sandboxes of one shared process.
pub const SANDBOXES_OF_A_PROCESS: usize = 2500;

/// The most processes of keys, if nothing else is configured.
pub const PROCESSES_OF_KEYS: usize = 64;

/// How long a process may take to answer, also if it has to start first.
const PATIENCE: Duration = Duration::from_secs(20);

/// How the way out works on this node.
#[derive(Debug, Clone)]
pub struct EgressConfig {
    /// The program of the process.
    pub program: PathBuf,
    /// Its arguments, after its own name.
    pub arguments: Vec<String>,
    /// The user and group that the process becomes if it is started as root; 65534 if there is none.
    pub user: Option<u32>,
    /// Who resolves names; none is what `/etc/resolv.conf` says.
    pub resolver: Option<SocketAddr>,
    /// Names that are known without asking. Their addresses are checked like all others.
    pub hosts: BTreeMap<HostName, Vec<IpAddr>>,
    /// Certificates of authorities that hosts of boundary secrets may have besides the system's.
    pub upstream_ca_pem: Option<String>,
    /// Through whom connections go.
    pub upstream_proxy: Option<UpstreamProxy>,
    /// Addresses by which the node is reached that its interfaces do not have.
    pub node_addresses: Vec<IpAddr>,
    /// What each sandbox may use.
    pub limits: EgressLimits,
    /// The most keys that have boundary secrets at the same time: each has a process.
    pub boundary_keys: usize,
}

impl EgressConfig {
    /// Nothing but the program and its arguments.
    pub fn new(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            user: None,
            resolver: None,
            hosts: BTreeMap::new(),
            upstream_ca_pem: None,
            upstream_proxy: None,
            node_addresses: Vec::new(),
            limits: EgressLimits::default(),
            boundary_keys: PROCESSES_OF_KEYS,
        }
    }
}

/// A sandbox to serve.
#[derive(Debug)]
pub struct Attachment {
    /// Which.
    pub sandbox: InstanceId,
    /// Whose. Needed if there are secrets.
    pub key: Option<KeyId>,
    /// What it may reach.
    pub policy: Reach,
    /// Its sockets; none means those by which it is served already.
    pub sockets: Option<Sockets>,
    /// Its boundary secrets.
    pub secrets: Vec<BoundarySecret>,
    /// The authority of its key. Needed if there are secrets.
    pub authority: Option<Arc<Authority>>,
}

/// Why something could not be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// The process ended. It starts again; arm and attach the sandbox anew.
    #[error("the process of the way out has ended; it starts again")]
    Lost,
    /// The process did not answer in time.
    #[error("the process of the way out does not answer")]
    Unavailable,
    /// As many keys as may have sandboxes with boundary secrets.
    #[error(
        "{most} other keys have sandboxes with boundary secrets, and this node serves no more at once"
    )]
    TooManyKeys {
        /// The most.
        most: usize,
    },
    /// Secrets without a key or an authority, or no sockets.
    #[error("the attachment lacks {0}")]
    Incomplete(&'static str),
    /// The sandbox is not attached.
    #[error("the sandbox is not attached to the way out")]
    NotAttached,
    /// The process refused.
    #[error("the process of the way out refused: {0}")]
    Refused(String),
}

/// The way out. Copies are the same one; the processes end with the last.
#[derive(Debug, Clone)]
pub struct Egress {
    placement: Arc<Placement>,
}

impl Egress {
    /// Starts the first process. In a runtime. That the process cannot begin is seen by the first
    /// [`Self::attach`]; that its program or the addresses of the node cannot be read is an error here.
    pub fn start(config: EgressConfig) -> io::Result<Self> {
        let mut names_key = [0; 32];
        getrandom::fill(&mut names_key).map_err(io::Error::other)?;
        let starter = starter::Starter::new(&config.program, &config.arguments)?;
        let hub = Arc::new(Hub::new(node::read(&config.node_addresses)?));
        let beginning = Beginning {
            user: config.user.unwrap_or(65534),
            resolver: config.resolver,
            hosts: config.hosts.clone(),
            proxy: config.upstream_proxy.clone(),
            upstream_ca_pem: config.upstream_ca_pem.clone(),
            authority: None,
            node: hub.node(),
        };
        let placement = Placement::new(beginning, starter, hub, names_key, &config);
        let placement = Arc::new(placement);
        placement.start_first();
        tokio::spawn(node::watch(Arc::downgrade(&placement), config.node_addresses));
        Ok(Self { placement })
    }

    /// Serves a sandbox: done when the process has acknowledged it. A sandbox that is attached already
    /// is served as this says from then on; its connections are cut.
    pub async fn attach(&self, attachment: Attachment) -> Result<(), EgressError> {
        let Attachment { sandbox, key, policy, sockets, secrets, authority } = attachment;
        if !secrets.is_empty() && (key.is_none() || authority.is_none()) {
            return Err(EgressError::Incomplete("the key or the authority of its secrets"));
        }
        let sockets = match sockets {
            Some(sockets) => {
                self.forget(sandbox).await;
                sockets
            }
            None => self.release(sandbox).await.ok_or(EgressError::Incomplete("sockets"))?,
        };
        let own = if secrets.is_empty() { None } else { key.zip(authority) };
        let own = own.as_ref().map(|(key, authority)| (*key, &**authority));
        let link = self.placement.place(sandbox, key, own)?;
        let undo = Undo { placement: &self.placement, link: Some(link.clone()), sandbox };
        let message = Box::new(AttachMessage {
            sandbox,
            key,
            parts: 1,
            names_key: self.placement.names_key(sandbox),
            policy,
            limits: self.placement.limits(),
            secrets,
        });
        let (reply, answer) = oneshot::channel();
        link.ask(Command::Attach { message, sockets, reply })?;
        answered(answer).await??;
        undo.keep();
        Ok(())
    }

    /// Keeps a place for a sandbox with boundary secrets of a key. Refused if the node has none left.
    pub fn reserve(&self, key: KeyId) -> Result<Reservation, EgressError> {
        self.placement.reserve(key)?;
        Ok(Reservation { placement: Arc::clone(&self.placement), key })
    }

    /// Applies a policy: when it returns, it holds, and connections that it refuses are cut. Those that
    /// come from now on count for this key.
    pub async fn change(
        &self,
        sandbox: InstanceId,
        key: Option<KeyId>,
        policy: impl Into<Reach>,
    ) -> Result<(), EgressError> {
        answered(self.ask_change(sandbox, key, policy.into(), None)?).await?
    }

    /// Applies a policy to all that programs begin after it has returned. What they have begun before
    /// may go on for a moment: for sandboxes in which nothing runs yet.
    pub async fn change_ahead(
        &self,
        sandbox: InstanceId,
        key: Option<KeyId>,
        policy: impl Into<Reach>,
    ) -> Result<(), EgressError> {
        let (sent, was_sent) = oneshot::channel();
        drop(self.ask_change(sandbox, key, policy.into(), Some(sent))?);
        answered(was_sent).await
    }

    /// Counts connections for this key from now on, and waits for nothing. `policy` must be the one
    /// that holds: a change of it is not known to have happened.
    pub fn count_for(
        &self,
        sandbox: InstanceId,
        key: Option<KeyId>,
        policy: impl Into<Reach>,
    ) -> Result<(), EgressError> {
        self.ask_change(sandbox, key, policy.into(), None).map(drop)
    }

    fn ask_change(
        &self,
        sandbox: InstanceId,
        key: Option<KeyId>,
        policy: Reach,
        sent: Option<oneshot::Sender<()>>,
    ) -> Result<oneshot::Receiver<Result<(), EgressError>>, EgressError> {
        let link = self.placement.count_for(sandbox, key).ok_or(EgressError::NotAttached)?;
        let (reply, answer) = oneshot::channel();
        link.ask(Command::Change { sandbox, key, policy, sent, reply })?;
        Ok(answer)
    }

    /// Closes everything of a sandbox. One that is not attached is fine.
    pub async fn forget(&self, sandbox: InstanceId) {
        drop(self.leave(sandbox, false).await);
    }

    /// Closes everything of a sandbox but its sockets, and gives them back.
    pub async fn release(&self, sandbox: InstanceId) -> Option<Sockets> {
        self.leave(sandbox, true).await
    }

    async fn leave(&self, sandbox: InstanceId, return_sockets: bool) -> Option<Sockets> {
        let link = self.placement.remove(sandbox)?;
        let (reply, answer) = oneshot::channel();
        // A process that has ended has closed everything.
        link.ask(Command::Forget { sandbox, return_sockets, reply }).ok()?;
        answered(answer).await.ok()?
    }

    /// Whether a process serves a sandbox, or is asked to.
    pub fn serves(&self, sandbox: InstanceId) -> bool {
        self.placement.link_of(sandbox).is_some()
    }

    /// What happens on the way out. To be taken once: a second receiver gets nothing.
    pub fn events(&self) -> mpsc::Receiver<Reported> {
        self.placement.hub().take_events()
    }

    /// The number of the last event so far. After [`Self::forget`], all events of that sandbox have
    /// this number or a smaller one, until it is attached again.
    pub fn reported(&self) -> u64 {
        self.placement.hub().reported()
    }

    /// Sandboxes whose process has ended: they are not attached any more, and must be armed and
    /// attached anew. To be taken once: a second receiver gets nothing.
    pub fn lost(&self) -> mpsc::UnboundedReceiver<Vec<InstanceId>> {
        self.placement.hub().take_lost()
    }

    /// Numbers since the start.
    pub fn counts(&self) -> EgressCounts {
        let mut counts = self.placement.hub().counts();
        (counts.processes, counts.sandboxes) = self.placement.sizes();
        counts
    }
}

async fn answered<T>(answer: oneshot::Receiver<T>) -> Result<T, EgressError> {
    match timeout(PATIENCE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(EgressError::Lost),
        Err(_) => Err(EgressError::Unavailable),
    }
}

/// A place for a sandbox with boundary secrets, until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    placement: Arc<Placement>,
    key: KeyId,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.placement.give_back(self.key);
    }
}

/// Forgets a sandbox unless its attachment was acknowledged.
struct Undo<'a> {
    placement: &'a Arc<Placement>,
    link: Option<Link>,
    sandbox: InstanceId,
}

impl Undo<'_> {
    fn keep(mut self) {
        self.link = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let Some(link) = self.link.take() else { return };
        self.placement.remove_from(self.sandbox, &link);
        let (reply, _) = oneshot::channel();
        let sandbox = self.sandbox;
        // It follows the attachment, which may still be on its way.
        let _ = link.ask(Command::Forget { sandbox, return_sockets: false, reply });
    }
}
