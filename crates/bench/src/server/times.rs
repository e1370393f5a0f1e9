//! What is timed of a server: one request after the other, in turn with everything else.

use tokio::time::{Instant, sleep};

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::super::contender::{Contender, Times};
use super::http::Connection;
use super::test_server::TestServer;
use command::failure::Failure;

pub(super) const ACQUIRE: &str = "acquire over HTTP";
pub(super) const ACQUIRE_MEMORY: &str = "acquire over HTTP, memory store";
pub(super) const ACQUIRE_AND_EXEC: &str = "acquire and first exec over HTTP";
pub(super) const EXEC: &str = "exec over HTTP";
pub(super) const EXEC_TRUE: &str = "exec true over HTTP";
pub(super) const FREEZE: &str = "freeze over HTTP";
pub(super) const THAW: &str = "thaw over HTTP";

/// How long a used sandbox may take to be removed and replaced.
const REPLACEMENT: Duration = Duration::from_millis(10);

const TRUE: &str = r#"{"argv":["/usr/bin/true"]}"#;
const PROGRAM: &str = "/workspace/program";

/// A lease, as the server gave it.
pub(super) struct Leased {
    pub(super) lease: String,
    pub(super) sandbox: String,
}

/// Checks out a sandbox of a template.
pub(super) async fn checkout(
    connection: &mut Connection,
    template: &str,
) -> Result<Leased, Failure> {
    let body = format!(r#"{{"template":"{template}"}}"#);
    let answer = connection.json("POST", "/v1/checkouts", &body).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(Leased { lease: text(&answer["id"]), sandbox: text(&answer["sandbox"]["id"]) })
}

/// Returns a lease.
pub(super) async fn give_back(connection: &mut Connection, lease: &str) -> Result<(), Failure> {
    connection.json("DELETE", &format!("/v1/checkouts/{lease}"), "").await.map(|_| ())
}

/// Runs a program in a sandbox to its end.
pub(super) async fn exec(
    connection: &mut Connection,
    sandbox: &str,
    body: &str,
) -> Result<(), Failure> {
    let answer = connection.json("POST", &format!("/v1/sandboxes/{sandbox}/exec"), body).await?;
    if answer["exit_code"] != json!(0) {
        return Err(Failure::new("a program failed", answer));
    }
    Ok(())
}

/// Checks out and returns.
pub(super) struct Acquire {
    name: &'static str,
    template: &'static str,
    connection: Connection,
}

impl Acquire {
    pub(super) async fn of(
        name: &'static str,
        template: &'static str,
        served: &TestServer,
    ) -> Result<Self, Failure> {
        Ok(Self { name, template, connection: served.connect().await? })
    }
}

#[async_trait]
impl Contender for Acquire {
    fn name(&self) -> &'static str {
        self.name
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let began = Instant::now();
        let leased = checkout(&mut self.connection, self.template).await?;
        let took = began.elapsed();
        give_back(&mut self.connection, &leased.lease).await?;
        Ok(vec![(self.name, took)])
    }
}

/// Checks out and runs the first program.
pub(super) struct AcquireAndExec(Connection);

impl AcquireAndExec {
    pub(super) async fn of(served: &TestServer) -> Result<Self, Failure> {
        Ok(Self(served.connect().await?))
    }
}

#[async_trait]
impl Contender for AcquireAndExec {
    fn name(&self) -> &'static str {
        ACQUIRE_AND_EXEC
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let began = Instant::now();
        let leased = checkout(&mut self.0, "default").await?;
        exec(&mut self.0, &leased.sandbox, TRUE).await?;
        let took = began.elapsed();
        give_back(&mut self.0, &leased.lease).await?;
        // The replacement is launched meanwhile and not measured.
        sleep(REPLACEMENT).await;
        Ok(vec![(ACQUIRE_AND_EXEC, took)])
    }
}

/// Runs the pinned program, and one of the host, in a leased sandbox.
pub(super) struct Exec {
    connection: Connection,
    leased: Leased,
    body: String,
}

impl Exec {
    pub(super) async fn of(served: &TestServer, program: &[u8]) -> Result<Self, Failure> {
        let mut connection = served.connect().await?;
        let leased = checkout(&mut connection, "default").await?;
        let path = format!("/v1/sandboxes/{}/files?path={PROGRAM}&mode=0755", leased.sandbox);
        let kind = "application/octet-stream";
        let (status, said) = connection.call("PUT", &path, kind, program).await?;
        if !(200..300).contains(&status) {
            let said = String::from_utf8_lossy(said);
            return Err(Failure::new("cannot put the program into a sandbox", said));
        }
        let body = json!({ "argv": [PROGRAM, "noop"] }).to_string();
        Ok(Self { connection, leased, body })
    }
}

#[async_trait]
impl Contender for Exec {
    fn name(&self) -> &'static str {
        EXEC
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let began = Instant::now();
        exec(&mut self.connection, &self.leased.sandbox, &self.body).await?;
        let pinned = began.elapsed();
        let began = Instant::now();
        exec(&mut self.connection, &self.leased.sandbox, TRUE).await?;
        Ok(vec![(EXEC, pinned), (EXEC_TRUE, began.elapsed())])
    }
}

/// Freezes and thaws.
pub(super) struct FreezeThaw {
    connection: Connection,
    leased: Leased,
}

impl FreezeThaw {
    pub(super) async fn of(served: &TestServer) -> Result<Self, Failure> {
        let mut connection = served.connect().await?;
        let leased = checkout(&mut connection, "default").await?;
        Ok(Self { connection, leased })
    }
}

#[async_trait]
impl Contender for FreezeThaw {
    fn name(&self) -> &'static str {
        FREEZE
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let mut times = Vec::new();
        for (name, verb) in [(FREEZE, "freeze"), (THAW, "thaw")] {
            let path = format!("/v1/sandboxes/{}/{verb}", self.leased.sandbox);
            let began = Instant::now();
            self.connection.json("POST", &path, "").await?;
            times.push((name, began.elapsed()));
        }
        Ok(times)
    }
}
