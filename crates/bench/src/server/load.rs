//! What is counted of a server: how much it does per second with several clients on the same
//! machine, how long it takes when requests come whether or not it is ready for them, and whether
//! its memory stays where it is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until};

use super::super::samples::Series;
use super::test_server::TestServer;
use super::times::{checkout, exec, give_back};
use command::failure::Failure;

/// Clients at once.
pub(super) const CLIENTS: u32 = 32;

/// What each client repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Checks out and returns.
    Untouched,
    /// Checks out, runs a command, returns.
    OneCommand,
    /// Runs a command in its own sandbox.
    Exec,
}

/// Rounds per second.
pub(super) async fn rate(
    served: &TestServer,
    work: Work,
    lasting: Duration,
) -> Result<f64, Failure> {
    let done = Rc::new(Cell::new(0_u32));
    let end = Instant::now() + lasting;
    let began = Instant::now();
    let local = LocalSet::new();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut connection = served.connect().await?;
        let done = Rc::clone(&done);
        let client = async move {
            let held = match work {
                Work::Exec => Some(checkout(&mut connection, "default").await?),
                Work::Untouched | Work::OneCommand => None,
            };
            while Instant::now() < end {
                if let Some(held) = &held {
                    exec(&mut connection, &held.sandbox, COMMAND).await?;
                } else {
                    let leased = checkout(&mut connection, "default").await?;
                    if work == Work::OneCommand {
                        exec(&mut connection, &leased.sandbox, COMMAND).await?;
                    }
                    give_back(&mut connection, &leased.lease).await?;
                }
                done.set(done.get() + 1);
            }
            if let Some(held) = held {
                give_back(&mut connection, &held.lease).await?;
            }
            Ok::<(), Failure>(())
        };
        clients.spawn_local_on(client, &local);
    }
    local.run_until(all(clients)).await?;
    Ok(f64::from(done.get()) / began.elapsed().as_secs_f64())
}

const COMMAND: &str = r#"{"argv":["/usr/bin/true"]}"#;

/// How long acquiring takes when requests come at a fixed rate, from when each was due.
pub(super) async fn open_loop(
    served: &TestServer,
    per_s: f64,
    lasting: Duration,
) -> Result<Series, Failure> {
    let times = Rc::new(RefCell::new(Vec::new()));
    let local = LocalSet::new();
    let mut clients = JoinSet::new();
    let began = Instant::now() + Duration::from_millis(20);
    let gap = Duration::from_secs_f64(1.0 / per_s);
    let next = Rc::new(Cell::new(0_u32));
    for _ in 0..CLIENTS {
        let mut connection = served.connect().await?;
        let (times, next) = (Rc::clone(&times), Rc::clone(&next));
        let client = async move {
            loop {
                let n = next.get();
                next.set(n + 1);
                let due = began + gap * n;
                if due > began + lasting {
                    return Ok(());
                }
                let mut start = due;
                if Instant::now() < due {
                    sleep_until(due).await;
                    // The timer of the client rounds up to a millisecond; do not blame the server.
                    start = Instant::now();
                }
                let leased = checkout(&mut connection, "default").await?;
                times.borrow_mut().push(start.elapsed());
                give_back(&mut connection, &leased.lease).await?;
            }
        };
        clients.spawn_local_on(client, &local);
    }
    local.run_until(all(clients)).await?;
    Ok(Series::of(times.take()))
}

/// How much the server's memory grew over so many rounds, after a warm-up, in megabytes.
pub(super) async fn growth_mb(served: &TestServer, rounds: u32) -> Result<f64, Failure> {
    many(served, rounds / 10).await?;
    let before = served.resident_bytes().unwrap_or(0);
    many(served, rounds).await?;
    let after = served.resident_bytes().unwrap_or(0);
    let mb = |bytes: u64| f64::from(u32::try_from(bytes >> 10).unwrap_or(u32::MAX)) / 1024.0;
    Ok(mb(after) - mb(before))
}

async fn many(served: &TestServer, rounds: u32) -> Result<(), Failure> {
    let left = Rc::new(Cell::new(rounds));
    let local = LocalSet::new();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut connection = served.connect().await?;
        let left = Rc::clone(&left);
        let client = async move {
            while left.get() > 0 {
                left.set(left.get() - 1);
                let leased = checkout(&mut connection, "default").await?;
                give_back(&mut connection, &leased.lease).await?;
            }
            Ok::<(), Failure>(())
        };
        clients.spawn_local_on(client, &local);
    }
    local.run_until(all(clients)).await
}

async fn all(mut clients: JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(client) = clients.join_next().await {
        client.map_err(|error| Failure::new("cannot measure", error))??;
    }
    Ok(())
}
