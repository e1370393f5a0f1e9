//! Two hundred clients check out, run and return at random while the server is killed and started
//! again every few seconds. Nothing is shared, nothing leaks, and everyone is answered: correctly,
//! or with an error that says that trying again helps or that the lease is lost.

mod containers;
mod dockerd;
pub(crate) mod node;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{Client, ClientError};
use model::{ErrorCode, SandboxId};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use wire::{CheckoutRequest, ExecRequest};

use self::node::Server;

const CLIENTS: u32 = 200;
const WAIT_MS: u64 = 5_000;
/// From an ordinary answer to one on a machine with two hundred clients and a debug build.
const SLACK: Duration = Duration::from_secs(30);

const CONFIG: &str = r#"
[node]
max_live = 24
[server]
max_connections = 1000
[[templates]]
name = "default"
pool = { pool_size = 8, max_overflow = 8 }
"#;

/// What all clients together have seen.
#[derive(Default)]
struct Seen {
    over: AtomicBool,
    /// Every sandbox that was ever handed out: an id has one user.
    sandboxes: Mutex<BTreeSet<SandboxId>>,
    served: AtomicU32,
    lost: AtomicU32,
    refused: AtomicU32,
}

#[test]
fn two_hundred_clients_and_a_server_that_is_killed_again_and_again() {
    let Some(mut server) = Server::start("storm", CONFIG) else { return };
    let seconds = std::env::var("STORM_SECONDS").ok().and_then(|text| text.parse().ok());
    let lasting = Duration::from_secs(seconds.unwrap_or(8));
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let seen = Arc::new(Seen::default());
    tokio.block_on(async {
        let mut clients = JoinSet::new();
        for n in 0..CLIENTS {
            clients.spawn(run(server.client(), n, Arc::clone(&seen)));
        }
        let end = Instant::now() + lasting;
        let mut pause_ms = 2_000;
        while Instant::now() < end {
            sleep(Duration::from_millis(pause_ms)).await;
            pause_ms = 1_500 + (pause_ms * 7 + 311) % 2_500;
            assert!(clients.try_join_next().is_none(), "no client ends before the others");
            tokio::task::block_in_place(|| {
                server.kill();
                server.start_again();
            });
        }
        seen.over.store(true, Ordering::SeqCst);
        let all = timeout(Duration::from_mins(1), async {
            while let Some(one) = clients.join_next().await {
                one.unwrap();
            }
        });
        all.await.expect("everyone is answered");
        at_rest(&server.client()).await;
    });
    let count = |number: &AtomicU32| number.load(Ordering::SeqCst);
    let (served, lost, refused) = (count(&seen.served), count(&seen.lost), count(&seen.refused));
    println!("served {served}, lost {lost}, refused or cut off {refused}");
    assert!(served > 100, "served {served}, lost {lost}, refused {refused}");
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    assert_eq!(server.leftovers(), Vec::<std::path::PathBuf>::new());
}

/// When all is quiet, nothing is leased and the pool is as it should be.
async fn at_rest(client: &Client) {
    // What is too much is kept for half a minute.
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        let pool = client.pool(&"default".to_owned().try_into().unwrap()).await.unwrap();
        let stats = client.stats().await.unwrap().pool;
        if pool.leased == 0 && pool.waiters == 0 && pool.idle == 8 && stats.total == 8 {
            return;
        }
        assert!(Instant::now() < deadline, "{pool:?} {stats:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

async fn run(client: Client, n: u32, seen: Arc<Seen>) {
    let mut round = 0;
    while !seen.over.load(Ordering::SeqCst) {
        round += 1;
        let one = timeout(Duration::from_millis(WAIT_MS) + SLACK, visit(&client, n, round, &seen));
        match one.await.expect("everyone is answered by their deadline") {
            Ok(()) => seen.served.fetch_add(1, Ordering::SeqCst),
            Err(error) if is_lost(&error) => seen.lost.fetch_add(1, Ordering::SeqCst),
            Err(error) => {
                let unanswered = matches!(error, ClientError::Timeout { .. });
                assert!(error.retryable() && !unanswered, "{error:?}");
                sleep(Duration::from_millis(u64::from(20 + n % 50))).await;
                seen.refused.fetch_add(1, Ordering::SeqCst)
            }
        };
    }
}

/// The error of a lease after a restart.
fn is_lost(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::LeaseLost | ErrorCode::SandboxGone))
}

async fn visit(client: &Client, n: u32, round: u32, seen: &Seen) -> Result<(), ClientError> {
    let mut asked: CheckoutRequest = client::template("default")?;
    asked.wait_ms = Some(WAIT_MS);
    let lease = client.checkout(asked).await?;
    let fresh = seen.sandboxes.lock().unwrap().insert(lease.sandbox().id);
    assert!(fresh, "{} was handed out twice", lease.sandbox().id);
    let who = format!("{n}-{round}");
    if !round.is_multiple_of(3) {
        let line = format!("cat /workspace/who 2>/dev/null; echo {who} > /workspace/who");
        let first = lease.exec(ExecRequest::shell(line)).await?;
        assert_eq!(first.stdout.as_deref(), Some(""), "files of someone else: {first:?}");
        let again = lease.exec(ExecRequest::shell("cat /workspace/who")).await?;
        assert_eq!(again.stdout, Some(format!("{who}\n")), "{again:?}");
    }
    if round.is_multiple_of(5) {
        // It vanishes: the guard gives the lease back, or the server has lost it.
        drop(lease);
        return Ok(());
    }
    lease.give_back().await
}

#[test]
fn a_hundred_creates_at_once_never_exceed_what_may_live() {
    const MAX_LIVE: u32 = 4;
    let config = format!(
        "[node]\nmax_live = {MAX_LIVE}\n[[templates]]\nname = \"default\"\n\
         pool = {{ pool_size = 2, max_overflow = 100 }}\n"
    );
    let Some(mut server) = Server::start("crowd", &config) else { return };
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let client = server.client();
    tokio.block_on(async {
        let mut creates = JoinSet::new();
        for _ in 0..100 {
            let client = client.clone();
            creates.spawn(async move {
                let mut asked: CheckoutRequest = client::template("default")?;
                asked.wait_ms = Some(500);
                client.create_sandbox(&asked).await
            });
        }
        let mut made = Vec::new();
        while let Some(one) = creates.join_next().await {
            let pool = client.stats().await.unwrap().pool;
            let live = pool.warming + pool.warm + pool.waiting + pool.running;
            assert!(live <= MAX_LIVE, "{pool:?}");
            match one.unwrap() {
                Ok(sandbox) => made.push(sandbox.id),
                Err(error) => assert!(error.retryable(), "{error:?}"),
            }
        }
        assert_eq!(made.len(), MAX_LIVE as usize, "exactly as many as may live");
        for id in made {
            client.sandbox(id).delete().await.unwrap();
        }
    });
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    assert_eq!(server.leftovers(), Vec::<std::path::PathBuf>::new());
}
