//! What is measured of processes, in the dialect of Blaxel, whose own figures are beside ours: a
//! command and its end, much output, long lists, a log that is followed, and what waking costs.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::json;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::Instant;

use super::super::contender::{Contender, Times};
use super::http::Connection;
use super::load::CLIENTS;
use super::test_server::TestServer;
use super::times::{Leased, checkout};
use command::failure::Failure;

pub(in super::super) const EXEC: &str = "process true and wait";
pub(in super::super) const MUCH: &str = "50 MB of output and wait";
pub(in super::super) const LIST: &str = "list 1,230 processes";
pub(in super::super) const FILES: &str = "list 10,000 files";
pub(in super::super) const AWAKE: &str = "stat, awake";
pub(in super::super) const FROZEN: &str = "stat, frozen";

/// What each may take in the middle, in milliseconds, and what Blaxel's own server was measured at.
pub(in super::super) const LIMITS: [(&str, f64, f64); 3] =
    [(MUCH, 500.0, 8_700.0), (LIST, 5.0, 1_000.0), (FILES, 30.0, 155.0)];
/// How often as long as a bare spawn a command may take.
pub(in super::super) const EXEC_LIMIT: f64 = 1.3;
/// What thawing may add, in milliseconds.
pub(in super::super) const THAW_LIMIT_MS: f64 = 0.5;

const PROCESSES: u32 = 1_230;
const FILE_COUNT: u32 = 10_000;
/// What is written while a client follows the log.
const STREAM_BYTES: u64 = 1_000_000_000;
const STREAM_BYTES_QUICK: u64 = 200_000_000;

/// What is done per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(in super::super) struct Rates {
    pub(in super::super) exec_per_s: f64,
    /// Of a log that is followed while it is written.
    pub(in super::super) stream_mb_per_s: f64,
}

/// A sandbox, and a way to its API.
struct Place {
    connection: Connection,
    leased: Leased,
}

impl Place {
    async fn of(served: &TestServer) -> Result<Self, Failure> {
        let mut connection = served.connect().await?;
        let leased = checkout(&mut connection, "default").await?;
        Ok(Self { connection, leased })
    }

    /// A path of its API.
    fn at(&self, rest: &str) -> String {
        format!("/compat/blaxel/{}/{rest}", self.leased.sandbox)
    }

    /// Runs a command line, which must succeed.
    async fn run(&mut self, line: &str) -> Result<Duration, Failure> {
        let body = json!({ "command": line, "waitForCompletion": true, "timeout": 60 }).to_string();
        let path = self.at("process");
        let began = Instant::now();
        let answer = self.connection.json("POST", &path, &body).await?;
        let took = began.elapsed();
        if answer["status"] != "completed" || answer["exitCode"] != 0 {
            return Err(Failure::new("a process failed", answer));
        }
        Ok(took)
    }

    async fn get(&mut self, rest: &str) -> Result<(Duration, usize), Failure> {
        let path = self.at(rest);
        let began = Instant::now();
        let (status, answer) = self.connection.call("GET", &path, "text/plain", b"").await?;
        let took = began.elapsed();
        if status != 200 {
            let said = String::from_utf8_lossy(answer);
            return Err(Failure::new(format!("GET {path}: {status}"), said));
        }
        Ok((took, answer.len()))
    }
}

/// Runs `true`.
pub(super) struct Exec(Place);

impl Exec {
    pub(super) async fn of(served: &TestServer) -> Result<Self, Failure> {
        Ok(Self(Place::of(served).await?))
    }
}

#[async_trait]
impl Contender for Exec {
    fn name(&self) -> &'static str {
        EXEC
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        Ok(vec![(EXEC, self.0.run("true").await?)])
    }
}

/// Runs a program with much output.
pub(super) struct Much(Place);

impl Much {
    pub(super) async fn of(served: &TestServer) -> Result<Self, Failure> {
        Ok(Self(Place::of(served).await?))
    }
}

#[async_trait]
impl Contender for Much {
    fn name(&self) -> &'static str {
        MUCH
    }

    fn every(&self) -> u32 {
        6
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        Ok(vec![(MUCH, self.0.run("yes 0123456789abcdef | head -c 50000000").await?)])
    }
}

/// Lists many processes and files.
pub(super) struct Lists(Place);

impl Lists {
    pub(super) async fn of(served: &TestServer) -> Result<Self, Failure> {
        let mut place = Place::of(served).await?;
        for _ in 0..PROCESSES {
            place.run("true").await?;
        }
        let line = format!("mkdir many && cd many && seq -f file-%05g {FILE_COUNT} | xargs touch");
        place.run(&line).await?;
        Ok(Self(place))
    }
}

#[async_trait]
impl Contender for Lists {
    fn name(&self) -> &'static str {
        LIST
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let (list, bytes) = self.0.get("process").await?;
        let (files, names) = self.0.get("filesystem//workspace/many").await?;
        // A list that is too short would be fast, too.
        if bytes < PROCESSES as usize * 100 || names < FILE_COUNT as usize * 50 {
            return Err(Failure::new("a list is too short", format!("{bytes} and {names} bytes")));
        }
        Ok(vec![(LIST, list), (FILES, files)])
    }
}

/// Reads a file of an awake sandbox, and of a frozen one.
pub(super) struct StatFrozen(Place);

impl StatFrozen {
    pub(super) async fn of(served: &TestServer) -> Result<Self, Failure> {
        Ok(Self(Place::of(served).await?))
    }

    async fn stat(&mut self) -> Result<Duration, Failure> {
        let path = format!("/v1/sandboxes/{}/files/stat?path=/workspace", self.0.leased.sandbox);
        let began = Instant::now();
        self.0.connection.json("GET", &path, "").await?;
        Ok(began.elapsed())
    }
}

#[async_trait]
impl Contender for StatFrozen {
    fn name(&self) -> &'static str {
        FROZEN
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let awake = self.stat().await?;
        let path = format!("/v1/sandboxes/{}/freeze", self.0.leased.sandbox);
        self.0.connection.json("POST", &path, "").await?;
        Ok(vec![(AWAKE, awake), (FROZEN, self.stat().await?)])
    }
}

/// What is done per second, by several clients and over one stream.
pub(super) async fn rates(
    served: &TestServer,
    lasting: Duration,
    quick: bool,
) -> Result<Rates, Failure> {
    let bytes = if quick { STREAM_BYTES_QUICK } else { STREAM_BYTES };
    let stream_mb_per_s = stream(served, bytes).await?;
    Ok(Rates { exec_per_s: execs(served, lasting).await?, stream_mb_per_s })
}

async fn execs(served: &TestServer, lasting: Duration) -> Result<f64, Failure> {
    let done = Rc::new(Cell::new(0_u32));
    let (began, local, mut clients) = (Instant::now(), LocalSet::new(), JoinSet::new());
    let end = began + lasting;
    for _ in 0..CLIENTS {
        let mut place = Place::of(served).await?;
        let done = Rc::clone(&done);
        let client = async move {
            while Instant::now() < end {
                place.run("true").await?;
                done.set(done.get() + 1);
            }
            Ok::<(), Failure>(())
        };
        clients.spawn_local_on(client, &local);
    }
    let all = async {
        while let Some(client) = clients.join_next().await {
            client.map_err(|error| Failure::new("cannot measure", error))??;
        }
        Ok::<(), Failure>(())
    };
    local.run_until(all).await?;
    Ok(f64::from(done.get()) / began.elapsed().as_secs_f64())
}

/// Follows a process that writes lines as fast as it can.
async fn stream(served: &TestServer, bytes: u64) -> Result<f64, Failure> {
    let mut place = Place::of(served).await?;
    let line = format!("yes \"$(printf %01000d 7)\" | head -c {bytes}");
    let body = json!({ "command": line, "name": "writes" }).to_string();
    let path = place.at("process");
    let began = Instant::now();
    place.connection.json("POST", &path, &body).await?;
    let path = place.at("process/writes/logs/stream");
    let read = place.connection.drain(&path).await?;
    let megabytes = f64::from(u32::try_from(read >> 10).unwrap_or(u32::MAX)) * 1.024e-3;
    Ok(megabytes / began.elapsed().as_secs_f64())
}
