//! What is measured of containers: whether a warm one is handed out as fast as a native sandbox,
//! what a command in it costs beside the engine's own, what it takes until a used one is clean and
//! handed out again, with little and with much in it, and how fast an empty pool is full.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::contender::{Contender, Times};
use super::super::other_runtimes::{self, PlainContainers};
use super::engine::Engine;
use super::http::Connection;
use super::test_server::TestServer;
use super::times::{Leased, checkout, exec, give_back};
use command::failure::Failure;

pub(in super::super) const NATIVE: &str = "checkout, native pool";
pub(in super::super) const DOCKER: &str = "checkout, Docker pool";
pub(in super::super) const EXEC: &str = "exec true, Docker sandbox";
pub(in super::super) const ENGINE_EXEC: &str = "exec true, the engine's API";
pub(in super::super) const RENEWED: &str = "returned, clean, handed out again";
pub(in super::super) const RENEWED_MUCH: &str = "the same with 100,000 files";
pub(in super::super) const REFILL: &str = "20 warm Docker sandboxes";
pub(in super::super) const RUNS: &str = "20 docker run at once";

/// How often as long as a native one a checkout may take; what a renewal may take; how much longer
/// with many files.
pub(in super::super) const CHECKOUT_LIMIT: f64 = 1.15;
pub(in super::super) const RENEWED_LIMIT_MS: f64 = 5.0;
pub(in super::super) const MUCH_LIMIT: f64 = 1.5;
/// The least ratio of the engine's exec to ours.
pub(in super::super) const EXEC_GAIN: f64 = 50.0;

const POOL: u32 = 20;
/// How long a pool may take to fill.
const FILL_PATIENCE: Duration = Duration::from_mins(2);
const IN_A_ROW: u32 = 3;
const TRUE: &str = r#"{"argv":["/usr/bin/true"]}"#;
/// Makes many files, in few directories.
const MANY: &str = "for d in $(seq 100); do mkdir d$d && (cd d$d && seq 1000 | xargs touch); done";

/// Makes the templates that are measured, and waits until their pools are full.
pub(super) async fn prepare(served: &TestServer) -> Result<(), Failure> {
    let mut connection = served.connect().await?;
    for (name, runtime, size, overflow) in [
        ("plain", "native", 4, 4),
        ("boxed", "docker", 4, 4),
        ("few", "docker", 1, 0),
        ("many", "docker", 1, 0),
    ] {
        let pool = json!({ "pool_size": size, "max_overflow": overflow });
        let limits = json!({ "memory_mb": 1024, "workspace_mb": 512 });
        let template = json!({ "name": name, "runtime": runtime, "pool": pool, "limits": limits });
        let path = format!("/v1/templates/{name}");
        connection.json("PUT", &path, &template.to_string()).await?;
        until_full(&mut connection, name, size).await?;
    }
    Ok(())
}

/// Waits until a pool has this many idle sandboxes.
async fn until_full(connection: &mut Connection, name: &str, size: u32) -> Result<(), Failure> {
    let deadline = Instant::now() + FILL_PATIENCE;
    loop {
        let pool = connection.json("GET", &format!("/v1/pools/{name}"), "").await?;
        if pool["idle"].as_u64() >= Some(u64::from(size)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Failure::new(format!("the pool {name} does not fill"), pool));
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// Runs `true` in a sandbox of ours, and by the engine in the same container, some times in a row
/// each, as agents run commands.
pub(super) struct Execs {
    connection: Connection,
    leased: Leased,
    container: String,
    engine: Engine,
}

impl Execs {
    pub(super) async fn of(served: &TestServer, engine: Engine) -> Result<Self, Failure> {
        let mut connection = served.connect().await?;
        let leased = checkout(&mut connection, "boxed").await?;
        let path = format!("/v1/sandboxes/{}", leased.sandbox);
        let about = connection.json("GET", &path, "").await?;
        let container = about["container_id"].as_str().unwrap_or_default().to_owned();
        if container.is_empty() {
            return Err(Failure::new("the sandbox is not a container", about));
        }
        Ok(Self { connection, leased, container, engine })
    }
}

#[async_trait]
impl Contender for Execs {
    fn name(&self) -> &'static str {
        EXEC
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let mut times = Vec::new();
        for _ in 0..IN_A_ROW {
            let began = Instant::now();
            exec(&mut self.connection, &self.leased.sandbox, TRUE).await?;
            times.push((EXEC, began.elapsed()));
        }
        for _ in 0..IN_A_ROW {
            let began = Instant::now();
            self.engine.exec(&self.container, &["/usr/bin/true"]).await?;
            times.push((ENGINE_EXEC, began.elapsed()));
        }
        Ok(times)
    }
}

/// Returns the only sandbox of a pool and takes it again, which waits until it is clean.
pub(super) struct Renewal {
    connection: Connection,
    many: bool,
}

impl Renewal {
    pub(super) async fn of(served: &TestServer, many: bool) -> Result<Self, Failure> {
        Ok(Self { connection: served.connect().await?, many })
    }
}

#[async_trait]
impl Contender for Renewal {
    fn name(&self) -> &'static str {
        if self.many { RENEWED_MUCH } else { RENEWED }
    }

    fn every(&self) -> u32 {
        if self.many { 4 } else { 1 }
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let (template, line) = if self.many { ("many", MANY) } else { ("few", "touch one") };
        let first = checkout(&mut self.connection, template).await?;
        let body = json!({ "command": line, "timeout_ms": 60_000 }).to_string();
        exec(&mut self.connection, &first.sandbox, &body).await?;
        let container = self.container(&first).await?;
        let began = Instant::now();
        give_back(&mut self.connection, &first.lease).await?;
        let second = checkout(&mut self.connection, template).await?;
        let took = began.elapsed();
        let again = self.container(&second).await?;
        give_back(&mut self.connection, &second.lease).await?;
        // A container at its limit of uses is replaced, which this does not measure.
        Ok(if again == container { vec![(self.name(), took)] } else { vec![] })
    }
}

impl Renewal {
    async fn container(&mut self, leased: &Leased) -> Result<Value, Failure> {
        let path = format!("/v1/sandboxes/{}", leased.sandbox);
        Ok(self.connection.json("GET", &path, "").await?["container_id"].take())
    }
}

/// Fills an empty pool, and starts as many containers by the engine's own command.
pub(super) struct Refill {
    connection: Connection,
    stay: PlainContainers,
}

impl Refill {
    pub(super) async fn of(served: &TestServer, stay: PlainContainers) -> Result<Self, Failure> {
        Ok(Self { connection: served.connect().await?, stay })
    }
}

#[async_trait]
impl Contender for Refill {
    fn name(&self) -> &'static str {
        REFILL
    }

    fn every(&self) -> u32 {
        12
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let pool = json!({ "pool_size": POOL, "max_overflow": 0 });
        let template = json!({ "name": "refill", "runtime": "docker", "pool": pool });
        let began = Instant::now();
        self.connection.json("PUT", "/v1/templates/refill", &template.to_string()).await?;
        until_full(&mut self.connection, "refill", POOL).await?;
        let ours = began.elapsed();
        self.connection.json("DELETE", "/v1/pools/refill?force=true", "").await?;
        let began = Instant::now();
        let names = other_runtimes::stay_at_once(&self.stay, POOL).await?;
        let theirs = began.elapsed();
        other_runtimes::remove(&self.stay, &names).await?;
        Ok(vec![(REFILL, ours), (RUNS, theirs)])
    }
}
