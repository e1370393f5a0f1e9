//! A server for one test: the real one, on an engine whose sandboxes and store are in memory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use api::{Api, ConnectionLimits, Served, Settings, serve};
use engine::{Archives, Engine, EngineConfig, Runtimes, Seeds};
use model::template::RuntimeKind;
use model::{Role, Template, TemplateName};
use runtime::fake::{FakeRuntime, FakeSettings};
use serde_json::Value;
use store::Retention;
use store::memory::MemoryStore;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::raw_client::{Answer, Connection, PATIENCE};

/// How a server is to be.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) limits: ConnectionLimits,
    pub(crate) engine: EngineConfig,
    pub(crate) retention: Retention,
    /// Where the engine keeps what is on disk; gone with the last server that has it.
    pub(crate) scratch: Arc<Scratch>,
}

/// A directory that is gone afterwards.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("shoal-api-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Default for Plan {
    fn default() -> Self {
        let scratch = Arc::new(Scratch::new());
        Self {
            settings: Settings::default(),
            limits: ConnectionLimits::default(),
            engine: EngineConfig {
                shutdown_grace_ms: 5_000,
                templates: vec![template("default")],
                ..EngineConfig::default()
            },
            retention: Retention::default(),
            scratch,
        }
    }
}

pub(crate) fn template(name: &str) -> Template {
    let name = TemplateName::new(name).unwrap();
    Template { runtime: RuntimeKind::Fake, ..Template::named(name) }
}

/// A server.
pub(crate) struct Stage {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) runtime: Arc<FakeRuntime>,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) admin: String,
    pub(crate) api: Api,
    plan: Plan,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<Served>>,
}

impl Stage {
    pub(crate) async fn start() -> Self {
        Self::with(Plan::default()).await
    }

    pub(crate) async fn with(plan: Plan) -> Self {
        let store = Arc::new(MemoryStore::new(plan.retention));
        Self::on(store, plan, None).await
    }

    async fn on(store: Arc<MemoryStore>, plan: Plan, admin: Option<String>) -> Self {
        let runtime = Arc::new(FakeRuntime::new(FakeSettings {
            any_workspace: true,
            ..FakeSettings::default()
        }));
        let runtimes = Runtimes::new().with(RuntimeKind::Fake, Arc::clone(&runtime) as _);
        let place = &plan.scratch.0;
        let config = EngineConfig {
            archives: Some(Archives::open(place.join("archives")).unwrap()),
            seeds: Some(Seeds::open(place.join("seeds")).unwrap()),
            ..plan.engine.clone()
        };
        let started = Engine::start(config, Arc::clone(&store) as _, runtimes).await;
        let engine = started.unwrap().engine;
        let admin = match admin {
            Some(admin) => admin,
            None => engine.create_key("admin", Role::Admin, None).await.unwrap().secret,
        };
        let api = Api::new(engine.clone(), plan.settings.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let limits = plan.limits;
        let served_api = api.clone();
        let served = tokio::spawn(async move {
            serve(listener, &served_api, limits, async { drop(stopped.await) }).await
        });
        let (stop, served) = (Some(stop), Some(served));
        Self { address, engine, runtime, store, admin, api, plan, stop, served }
    }

    /// What `kill -9` and another start do.
    pub(crate) async fn kill_and_start(mut self) -> Self {
        let store = Arc::new(self.store.crash());
        if let Some(served) = self.served.take() {
            served.abort();
        }
        Self::on(store, self.plan, Some(self.admin)).await
    }

    /// Asks the server to stop; the answer comes when it has.
    pub(crate) fn stop(&mut self) -> JoinHandle<Served> {
        drop(self.stop.take());
        self.served.take().unwrap()
    }

    pub(crate) async fn key(&self, role: Role) -> String {
        self.engine.create_key(role.as_str(), role, None).await.unwrap().secret
    }

    pub(crate) async fn connect(&self) -> Connection {
        Connection::open(self.address).await
    }

    /// One request of the admin with a JSON body, on a connection of its own.
    pub(crate) async fn call(&self, method: &str, path: &str, body: Value) -> Answer {
        self.call_as(&self.admin, method, path, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, Value::Null).await
    }

    pub(crate) async fn call_as(&self, key: &str, method: &str, path: &str, body: Value) -> Answer {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        self.raw(&request(key, method, path, kind, body.as_bytes())).await
    }

    /// Exactly these bytes.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Answer {
        let mut connection = self.connect().await;
        connection.send(bytes).await;
        connection.answer().await
    }

    /// Checks a sandbox out: its lease and its id.
    pub(crate) async fn checkout(&self) -> (String, String) {
        let body = serde_json::json!({"template": "default"});
        let made = self.call("POST", "/v1/checkouts", body).await.expect(201);
        (text(&made["id"]), text(&made["sandbox"]["id"]))
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(tokio::time::Instant::now() < deadline, "never so: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Sandboxes that are checked out.
    pub(crate) fn leased(&self) -> u32 {
        self.engine.pools().iter().map(|pool| pool.leased).sum()
    }
}

/// A text in an answer.
#[track_caller]
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}

/// The bytes of a request. Headers are lines that end with a line break.
pub(crate) fn request(key: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-length: {length}\r\n{headers}\r\n"
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
