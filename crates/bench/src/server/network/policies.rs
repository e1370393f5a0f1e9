//! What policies cost: a checkout with one beside a checkout without, and changes of one that is
//! attached. Each checkout takes a sandbox that nobody has had.

use std::time::Duration;

use async_trait::async_trait;
use command::failure::Failure;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::super::super::contender::{Contender, Times};
use super::super::http::Connection;
use super::super::test_server::TestServer;
use super::super::times::{Leased, checkout, exec, give_back};

const TRUE: &str = r#"{"argv":["/usr/bin/true"]}"#;
/// How long a pool may take to have a sandbox again.
const FILL_PATIENCE: Duration = Duration::from_secs(20);

/// Checks out of several pools in turn, and returns used sandboxes.
pub(super) struct Checkouts {
    connection: Connection,
    /// Names of times, and what is asked for.
    asked: Vec<(&'static str, Value)>,
    round: usize,
}

impl Checkouts {
    pub(super) async fn of(
        served: &TestServer,
        asked: Vec<(&'static str, Value)>,
    ) -> Result<Self, Failure> {
        Ok(Self { connection: served.connect().await?, asked, round: 0 })
    }
}

#[async_trait]
impl Contender for Checkouts {
    fn name(&self) -> &'static str {
        "checkouts"
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let mut times = Vec::new();
        self.round += 1;
        for at in 0..self.asked.len() {
            let (name, body) = &self.asked[(self.round + at) % self.asked.len()];
            let began = Instant::now();
            let answer = self.connection.json("POST", "/v1/checkouts", &body.to_string()).await?;
            times.push((*name, began.elapsed()));
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let leased =
                Leased { lease: text(&answer["id"]), sandbox: text(&answer["sandbox"]["id"]) };
            // One that was used is replaced: the next checkout is the first of its sandbox, too.
            exec(&mut self.connection, &leased.sandbox, TRUE).await?;
            give_back(&mut self.connection, &leased.lease).await?;
            let template = text(&body["template"]);
            until_full(&mut self.connection, &template).await?;
        }
        Ok(times)
    }
}

/// Waits until a pool is full.
pub(super) async fn until_full(connection: &mut Connection, name: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + FILL_PATIENCE;
    loop {
        let pool = connection.json("GET", &format!("/v1/pools/{name}"), "").await?;
        if pool["idle"].as_u64() >= pool["pool_size"].as_u64().or(Some(1)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Failure::new(format!("the pool {name} does not fill"), pool));
        }
        sleep(Duration::from_millis(2)).await;
    }
}

/// Changes what a sandbox may reach, and what its template allows.
pub(super) struct Changes {
    names: [&'static str; 3],
    connection: Connection,
    leased: Leased,
    template: Value,
    round: u32,
}

impl Changes {
    pub(super) async fn of(
        served: &TestServer,
        names: [&'static str; 3],
        template: Value,
    ) -> Result<Self, Failure> {
        let mut connection = served.connect().await?;
        let name = template["name"].as_str().unwrap_or_default().to_owned();
        let path = format!("/v1/templates/{name}");
        connection.json("PUT", &path, &template.to_string()).await?;
        let leased = checkout(&mut connection, &name).await?;
        Ok(Self { names, connection, leased, template, round: 0 })
    }

    async fn patch(&mut self, rules: &[&str]) -> Result<Duration, Failure> {
        let path = format!("/v1/sandboxes/{}/network", self.leased.sandbox);
        let body = json!({ "network": { "allow": rules } }).to_string();
        let began = Instant::now();
        self.connection.json("PATCH", &path, &body).await?;
        Ok(began.elapsed())
    }
}

#[async_trait]
impl Contender for Changes {
    fn name(&self) -> &'static str {
        "changes"
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        self.round += 1;
        let even = self.round.is_multiple_of(2);
        let names = self.patch(if even { &["a.test:443"] } else { &["b.test:443"] }).await?;
        let addresses =
            self.patch(if even { &["10.1.0.0/16:80"] } else { &["10.2.0.0/16:80"] }).await?;
        let last = if even { "10.3.0.0/16" } else { "10.4.0.0/16" };
        self.template["network"] =
            json!({ "allow": ["a.test:443", "b.test:443", "10.1.0.0/16", "10.2.0.0/16", last] });
        let path = format!("/v1/templates/{}", self.template["name"].as_str().unwrap_or_default());
        let began = Instant::now();
        self.connection.json("PUT", &path, &self.template.to_string()).await?;
        let template = began.elapsed();
        let [of_names, of_addresses, of_template] = self.names;
        Ok(vec![(of_names, names), (of_addresses, addresses), (of_template, template)])
    }
}
