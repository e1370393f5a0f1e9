//! Finds the addresses of names outside. Answers are kept for as long as they say, within bounds, and
//! one question is asked once however many wait for it. It must never judge an address: whoever
//! connects checks each one, each time.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolverConfig,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use model::HostName;
use tokio::sync::watch;
use tokio::time::Instant;

const KEPT_AT_LEAST: Duration = Duration::from_secs(1);
const KEPT_AT_MOST: Duration = Duration::from_mins(1);
const FAILURE_KEPT: Duration = Duration::from_secs(1);
/// The most names that are known at once.
const NAMES_KEPT: usize = 16 * 1024;
/// The most addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// What is known of a name: its addresses, or why there are none.
pub(crate) type Answer = Result<Arc<[IpAddr]>, Arc<str>>;

type Pending = watch::Receiver<Option<Answer>>;

enum Known {
    Asking(Pending),
    Answered { answer: Answer, until: Instant },
}

/// The resolver of a process.
pub(crate) struct Resolver {
    hosts: BTreeMap<HostName, Vec<IpAddr>>,
    upstream: TokioResolver,
    known: Mutex<BTreeMap<HostName, Known>>,
}

impl Resolver {
    /// Reads the system's configuration, unless a resolver is given.
    pub(crate) fn new(
        resolver: Option<SocketAddr>,
        hosts: BTreeMap<HostName, Vec<IpAddr>>,
    ) -> io::Result<Self> {
        let mut builder = match resolver {
            Some(address) => {
                TokioResolver::builder_with_config(only(address), TokioRuntimeProvider::default())
            }
            None => TokioResolver::builder_tokio().map_err(io::Error::other)?,
        };
        let options = builder.options_mut();
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        // Kept here, where it is bounded by time.
        options.cache_size = 0;
        options.timeout = Duration::from_secs(3);
        options.attempts = 2;
        let upstream = builder.build().map_err(io::Error::other)?;
        Ok(Self { hosts, upstream, known: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<HostName, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of a name, at least one.
    pub(crate) async fn resolve(self: &Arc<Self>, name: &HostName) -> Answer {
        if let Some(addresses) = self.hosts.get(name) {
            return Ok(addresses.as_slice().into());
        }
        let mut pending = match self.look(name) {
            Ok(answer) => return answer,
            Err(pending) => pending,
        };
        match pending.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().unwrap_or_else(|| Err("no answer".into())),
            Err(_) => Err("the question was given up".into()),
        }
    }

    fn look(self: &Arc<Self>, name: &HostName) -> Result<Answer, Pending> {
        let mut known = self.lock();
        match known.get(name) {
            Some(Known::Answered { answer, until }) if Instant::now() < *until => {
                return Ok(answer.clone());
            }
            Some(Known::Asking(pending)) => return Err(pending.clone()),
            Some(Known::Answered { .. }) | None => {}
        }
        if known.len() >= NAMES_KEPT {
            let now = Instant::now();
            known.retain(|_, one| match one {
                Known::Asking(_) => true,
                Known::Answered { until, .. } => now < *until,
            });
            if known.len() >= NAMES_KEPT {
                known.retain(|_, one| matches!(one, Known::Asking(_)));
            }
            if known.len() >= NAMES_KEPT {
                return Ok(Err("too many names are being resolved".into()));
            }
        }
        let (tell, pending) = watch::channel(None);
        known.insert(name.clone(), Known::Asking(pending.clone()));
        let (this, name) = (self.clone(), name.clone());
        // A task of its own: the question outlives the connection that asked first.
        tokio::spawn(async move {
            let (answer, kept) = this.ask(&name).await;
            let until = Instant::now() + kept;
            this.lock().insert(name, Known::Answered { answer: answer.clone(), until });
            let _ = tell.send(Some(answer));
        });
        Err(pending)
    }

    async fn ask(&self, name: &HostName) -> (Answer, Duration) {
        let failed = |reason: String| (Err(reason.into()), FAILURE_KEPT);
        let mut asked = match Name::from_ascii(name.as_str()) {
            Ok(asked) => asked,
            Err(error) => return failed(error.to_string()),
        };
        // Without this, a search list of the node would make another name of it.
        asked.set_fqdn(true);
        match self.upstream.lookup_ip(asked).await {
            Ok(found) => {
                let addresses: Vec<IpAddr> = found.iter().take(ADDRESSES_MAX).collect();
                if addresses.is_empty() {
                    return failed(format!("{name} has no address"));
                }
                let left = found.valid_until().saturating_duration_since(Instant::now().into_std());
                (Ok(addresses.into()), left.clamp(KEPT_AT_LEAST, KEPT_AT_MOST))
            }
            Err(error) if error.is_no_records_found() => {
                failed(format!("{name} does not resolve: no such name, or it has no address"))
            }
            Err(error) => failed(format!("{name} does not resolve: {error}")),
        }
    }
}

fn only(address: SocketAddr) -> ResolverConfig {
    let with_port = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(with_port).into();
    let server = NameServerConfig::new(address.ip(), true, connections);
    ResolverConfig::from_parts(None, Vec::new(), vec![server])
}
