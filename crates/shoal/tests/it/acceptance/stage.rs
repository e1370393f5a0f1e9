//! A server with one kind of sandboxes, and what a test does to it from outside: stops the process
//! that makes sandboxes, ends sandboxes behind its back, counts what is left. What differs between
//! kinds is here and nowhere else.

use std::path::PathBuf;
use std::time::Duration;

use client::{Client, ClientError, Lease, SandboxFilter};
use model::stats::PoolStats;
use model::{SandboxId, Template, TemplateName};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use wire::{CheckoutRequest, Sandbox};

use super::engine::{self, Labelled};
use super::engine_gate::Gate;
use super::machine::{self, Process};
use crate::storm::node::Server;
use crate::test_server::Scratch;

/// How long anything that must come may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(50);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long a checkout waits.
pub(crate) const WAIT_MS: u64 = 40_000;
pub(crate) const POOL: &str = "pool";

/// What isolates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Native,
    Docker,
}

impl Kind {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Docker => "docker",
        }
    }
}

pub(crate) struct Stage {
    pub(crate) kind: Kind,
    pub(crate) server: Server,
    tokio: tokio::runtime::Runtime,
    docker: Option<Docker>,
}

struct Docker {
    gate: Gate,
    socket: PathBuf,
    _scratch: Scratch,
}

impl Stage {
    /// A server without a pool yet; or why there is none, said loudly.
    pub(crate) fn start(kind: Kind, name: &str) -> Option<Self> {
        Self::start_with(kind, name, "")
    }

    /// The same, with more in its configuration: lines of `[docker]`, then whole sections.
    pub(crate) fn start_with(kind: Kind, name: &str, more: &str) -> Option<Self> {
        let docker = match kind {
            Kind::Native => None,
            Kind::Docker => {
                let socket = engine::socket()?;
                let scratch = Scratch::new();
                let gate = Gate::to(&socket, scratch.0.join("gate.sock"));
                Some(Docker { gate, socket, _scratch: scratch })
            }
        };
        let section = docker.as_ref().map_or("enabled = \"no\"".to_owned(), |docker| {
            format!("enabled = \"yes\"\nhost = \"unix://{}\"", docker.gate.path().display())
        });
        let config = format!(
            "[native]\nspares = 2\n[oci]\nprograms = []\n[server]\nshutdown_grace_ms = 500\n\
             [[templates]]\nname = \"unused\"\npool = {{ pool_size = 0, max_overflow = 1 }}\n\
             [docker]\n{section}\n{more}\n"
        );
        let server = Server::start(&format!("{name}-{}", kind.word()), &config)?;
        let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        Some(Self { kind, server, tokio, docker })
    }

    /// Lets a test act, for as long as is allowed.
    #[track_caller]
    pub(crate) fn act<T>(&self, acts: impl Future<Output = T>) -> T {
        self.act_for(PATIENCE, acts)
    }

    #[track_caller]
    pub(crate) fn act_for<T>(&self, patience: Duration, acts: impl Future<Output = T>) -> T {
        let acted = self.tokio.block_on(async { timeout(patience, acts).await });
        acted.unwrap_or_else(|_| panic!("it takes too long\n{}", self.server.log()))
    }

    pub(crate) fn client(&self) -> Client {
        self.server.client()
    }

    /// Makes a pool with these settings, and waits until it is as they say.
    pub(crate) async fn pool(&self, settings: Value) {
        let template = json!({ "name": POOL, "runtime": self.kind.word(), "pool": settings });
        let template: Template = serde_json::from_value(template).unwrap();
        self.client().put_template(&template).await.unwrap();
        self.full().await;
    }

    pub(crate) async fn stats(&self) -> PoolStats {
        self.client().pool(&pool_name()).await.unwrap()
    }

    /// Waits until the pool is so.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&PoolStats) -> bool) -> PoolStats {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let pool = self.stats().await;
            if holds(&pool) {
                return pool;
            }
            let log = || self.server.log();
            assert!(Instant::now() < deadline, "{what} did not come true: {pool:?}\n{}", log());
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until nothing is used, nothing is on its way, and all that should be ready is.
    pub(crate) async fn full(&self) -> PoolStats {
        self.until("a full pool at rest", |pool| {
            let at_rest = pool.leased + pool.waiters + pool.launching == 0;
            at_rest && pool.idle == pool.pool_size && pool.slots_used == pool.pool_size
        })
        .await
    }

    /// A checkout of that pool, as long as it may wait.
    pub(crate) fn wish() -> CheckoutRequest {
        CheckoutRequest { wait_ms: Some(WAIT_MS), ..CheckoutRequest::of(pool_name()) }
    }

    pub(crate) async fn checkout(&self) -> Lease {
        let lease = self.client().checkout(Self::wish()).await;
        lease.unwrap_or_else(|error| panic!("{error}\n{}", self.server.log()))
    }

    /// A second checkout, which waits when this returns.
    pub(crate) async fn waiter(&self) -> tokio::task::JoinHandle<Result<Lease, ClientError>> {
        let client = self.client();
        let waiter = tokio::spawn(async move { client.checkout(Self::wish()).await });
        self.until("a checkout waits", |pool| pool.waiters == 1).await;
        waiter
    }

    /// Everything that the server lists.
    pub(crate) async fn listed(&self) -> Vec<Sandbox> {
        let filter = SandboxFilter { limit: Some(500), ..SandboxFilter::default() };
        self.client().sandboxes(&filter).await.unwrap().sandboxes
    }

    /// The container of a sandbox, if the server tells.
    pub(crate) fn container_of(&self, sandbox: SandboxId) -> Option<String> {
        let (_, shown) = self.server.ask("GET", &format!("/v1/sandboxes/{sandbox}"), "");
        shown["container_id"].as_str().map(str::to_owned)
    }

    /// What the engine has of this server.
    pub(crate) fn labelled(&self) -> Option<Labelled> {
        let docker = self.docker.as_ref()?;
        Some(Labelled::new(&docker.socket, &self.server.node()))
    }

    /// How many sandboxes there are by what the machine or the engine says.
    pub(crate) fn found(&self) -> usize {
        self.labelled().map_or_else(
            || machine::guests(self.server.pid()).len(),
            |labelled| labelled.containers().len(),
        )
    }

    /// Ends the one sandbox there is, behind the server's back.
    pub(crate) fn kill_the_only_one(&self, sandbox: SandboxId) {
        if let Some(labelled) = self.labelled() {
            let found = labelled.containers();
            let [only] = &found[..] else { panic!("one container: {found:?}") };
            if let Some(named) = self.container_of(sandbox) {
                assert_eq!(&named, only, "the server names the container");
            }
            assert!(labelled.kill(only), "it was running");
        } else {
            let found = machine::guests(self.server.pid());
            let [only] = &found[..] else { panic!("one guest: {found:?}") };
            only.signal(Signal::KILL);
        }
    }

    /// Stops the process that makes and removes sandboxes.
    pub(crate) fn hold(&self) -> Held<'_> {
        if let Some(docker) = &self.docker {
            docker.gate.shut();
            return Held::Engine(&docker.gate);
        }
        let launcher = machine::launcher(self.server.pid());
        launcher.signal(Signal::STOP);
        Held::Launcher(launcher)
    }

    /// Stops the server in order: nothing may be left.
    pub(crate) fn end(mut self) {
        let beneath = machine::beneath(self.server.pid());
        assert_eq!(self.server.stop(), Some(0), "{}", self.server.log());
        self.nothing_is_left(&beneath);
    }

    /// Nothing of this server is on the machine or at the engine, nor any of these.
    pub(crate) fn nothing_is_left(&self, processes: &[Process]) {
        assert_eq!(self.server.leftovers(), Vec::<PathBuf>::new());
        // What dies with the server may take a moment longer than the server.
        let until = Instant::now() + Duration::from_secs(10);
        while processes.iter().any(Process::lives) && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY);
        }
        let left: Vec<_> = processes.iter().filter(|process| process.lives()).collect();
        assert!(left.is_empty(), "{left:?}");
        if let Some(labelled) = self.labelled() {
            assert_eq!(labelled.containers(), Vec::<String>::new(), "{}", self.server.log());
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(labelled) = self.labelled() {
            self.server.kill();
            labelled.clean();
        }
    }
}

fn pool_name() -> TemplateName {
    TemplateName::new(POOL).unwrap()
}

/// The process that makes sandboxes, stopped until this is dropped.
pub(crate) enum Held<'a> {
    Launcher(Process),
    Engine(&'a Gate),
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        match self {
            Self::Launcher(launcher) => launcher.signal(Signal::CONT),
            Self::Engine(gate) => gate.open(),
        }
    }
}
