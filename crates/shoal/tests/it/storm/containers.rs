//! A pool of Docker containers under load, while the engine, the server and containers are killed
//! at random. No two clients share a sandbox or find anything of each other, every client is
//! answered, the server works in the end, and leaves nothing at the engine.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{Client, ClientError};
use model::{ErrorCode, SandboxId};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use wire::{CheckoutRequest, ExecRequest};

use super::dockerd::Dockerd;
use super::node::Server;
use crate::acceptance::engine::Labelled;
use crate::acceptance::machine;
use crate::shell::eventually;

const CLIENTS: u32 = 6;
const POOL_SIZE: usize = 3;
const WAIT_MS: u64 = 5_000;
const EXEC_MS: u64 = 10_000;
/// From an ordinary answer to one on a machine that restarts engines beside a debug build.
const SLACK: Duration = Duration::from_secs(30);

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
fn promises_hold_while_an_engine_dies_with_its_containers() {
    chaos("chaos", &[], 8);
}

#[test]
fn promises_hold_while_an_engine_dies_and_finds_its_containers_again() {
    chaos("restored", &["--live-restore"], 8);
}

fn chaos(name: &str, flags: &'static [&'static str], usual_s: u64) {
    let Some(mut dockerd) = Dockerd::start(&format!("{name}-engine"), flags) else { return };
    let config = format!(
        "[docker]\nenabled = \"yes\"\nhost = \"unix://{}\"\n[oci]\nprograms = []\n\
         [server]\nshutdown_grace_ms = 500\n[[templates]]\nname = \"default\"\n\
         runtime = \"docker\"\npool = {{ pool_size = {POOL_SIZE}, max_overflow = 3 }}\n",
        dockerd.socket().display()
    );
    let Some(mut server) = Server::start(name, &config) else { return };
    let labelled = Labelled::new(&dockerd.socket(), &server.node());
    let seconds = std::env::var("SHOAL_CHAOS_S").ok().and_then(|text| text.parse().ok());
    let lasting = Duration::from_secs(seconds.unwrap_or(usual_s));
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let seen = Arc::new(Seen::default());
    let done = tokio.block_on(async {
        at_rest(&server.client(), &server).await;
        let mut clients = JoinSet::new();
        for n in 0..CLIENTS {
            clients.spawn(run(server.client(), n, Arc::clone(&seen)));
        }
        let mut chance = Chance { dice: 0x9e37_79b9, done: [0; 4] };
        let end = Instant::now() + lasting;
        while Instant::now() < end {
            sleep(Duration::from_millis(100 + chance.below(700))).await;
            assert!(clients.try_join_next().is_none(), "no client ends before the others");
            tokio::task::block_in_place(|| chance.strike(&mut dockerd, &mut server, &labelled));
        }
        seen.over.store(true, Ordering::SeqCst);
        let all = timeout(Duration::from_mins(2), async {
            while let Some(one) = clients.join_next().await {
                one.unwrap();
            }
        });
        all.await.expect("everyone is answered");
        at_rest(&server.client(), &server).await;
        chance.done
    });
    let count = |number: &AtomicU32| number.load(Ordering::SeqCst);
    let (served, lost, refused) = (count(&seen.served), count(&seen.lost), count(&seen.refused));
    let [engines, servers, both, containers] = done;
    println!(
        "killed {engines} engines, {servers} servers, {both} times both, {containers} containers; \
         served {served}, lost {lost}, refused or cut off {refused}"
    );
    assert!(served > 10, "served {served}, lost {lost}, refused {refused}\n{}", server.log());
    eventually(&format!("what is there is what is counted\n{}", labelled.details()), || {
        let pool = tokio.block_on(pool(&server.client()));
        labelled.containers().len() == pool.slots_used as usize
    });
    // The end comes while some are being made, for those who want more than there are.
    let client = server.client();
    let wants: Vec<_> = (0..CLIENTS)
        .map(|_| client.clone())
        .map(|client| tokio.spawn(async move { client.checkout(wish()).await.map(drop) }))
        .collect();
    std::thread::sleep(Duration::from_millis(150));
    let beneath = machine::beneath(server.pid());
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    assert_eq!(labelled.containers(), Vec::<String>::new(), "{}", server.log());
    assert_eq!(server.leftovers(), Vec::<std::path::PathBuf>::new());
    let left: Vec<_> = beneath.iter().filter(|process| process.lives()).collect();
    assert!(left.is_empty(), "{left:?}");
    for want in wants {
        let answered = tokio.block_on(async { timeout(SLACK, want).await });
        let _ = answered.expect("everyone is answered").unwrap();
    }
    dockerd.stop();
}

/// What is to be killed next, and what was.
struct Chance {
    dice: u64,
    done: [u32; 4],
}

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.dice >> 33) % bound
    }

    fn strike(&mut self, dockerd: &mut Dockerd, server: &mut Server, labelled: &Labelled) {
        let blow = match self.below(8) {
            0 | 1 => {
                dockerd.kill();
                std::thread::sleep(Duration::from_millis(self.below(1_500)));
                dockerd.start_again();
                0
            }
            2 => {
                server.kill();
                server.start_again();
                1
            }
            3 => {
                // Started without an engine, which comes later.
                dockerd.kill();
                server.kill();
                server.start_again();
                dockerd.start_again();
                2
            }
            _ => {
                let there = labelled.containers();
                let number = self.below(there.len().max(1) as u64) as usize;
                // It may have gone meanwhile, or not run yet.
                let _ = there.get(number).map(|container| labelled.kill(container));
                3
            }
        };
        self.done[blow] += 1;
    }
}

async fn pool(client: &Client) -> wire::PoolStats {
    client.pool(&"default".to_owned().try_into().unwrap()).await.unwrap()
}

/// When all is quiet, nothing is leased and the pool is full. It may have more for a while.
async fn at_rest(client: &Client, server: &Server) {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let pool = pool(client).await;
        let busy = pool.leased + pool.waiters + pool.launching;
        if busy == 0 && pool.idle as usize >= POOL_SIZE && pool.slots_used == pool.idle {
            return;
        }
        assert!(Instant::now() < deadline, "{pool:?}\n{}", server.log());
        sleep(Duration::from_millis(100)).await;
    }
}

async fn run(client: Client, n: u32, seen: Arc<Seen>) {
    while !seen.over.load(Ordering::SeqCst) {
        match visit(&client, &seen).await {
            Ok(()) => seen.served.fetch_add(1, Ordering::SeqCst),
            Err(error) if is_lost(&error) => seen.lost.fetch_add(1, Ordering::SeqCst),
            Err(error) => {
                let unanswered = matches!(error, ClientError::Timeout { .. });
                assert!(error.retryable() && !unanswered, "{error:?}");
                sleep(Duration::from_millis(u64::from(50 + n * 20))).await;
                seen.refused.fetch_add(1, Ordering::SeqCst)
            }
        };
    }
}

/// The error of a lease whose sandbox has ended.
fn is_lost(error: &ClientError) -> bool {
    matches!(error.code(), Some(ErrorCode::LeaseLost | ErrorCode::SandboxGone))
}

fn wish() -> CheckoutRequest {
    let template = "default".to_owned().try_into().unwrap();
    CheckoutRequest { wait_ms: Some(WAIT_MS), ..CheckoutRequest::of(template) }
}

/// Waits for an answer, but no longer than it may take.
async fn answer<T>(
    what: &str,
    may_take_ms: u64,
    asked: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let answer = timeout(Duration::from_millis(may_take_ms) + SLACK, asked).await;
    answer.unwrap_or_else(|_| panic!("{what} was not answered in time"))
}

async fn visit(client: &Client, seen: &Seen) -> Result<(), ClientError> {
    let lease = answer("a checkout", WAIT_MS, client.checkout(wish())).await?;
    let fresh = seen.sandboxes.lock().unwrap().insert(lease.sandbox().id);
    assert!(fresh, "{} was handed out twice", lease.sandbox().id);
    let limited =
        |line: String| ExecRequest { timeout_ms: Some(EXEC_MS), ..ExecRequest::shell(line) };
    let who = lease.lease_id().to_string();
    let line = format!("ls -A /workspace /tmp; echo {who} > /workspace/who; echo {who} > /tmp/who");
    let first = answer("a program", EXEC_MS, lease.exec(limited(line))).await?;
    let nothing = "/tmp:\n\n/workspace:\n";
    assert_eq!(first.stdout.as_deref(), Some(nothing), "files of someone else: {first:?}");
    let line = "sleep 0.05; cat /workspace/who /tmp/who".to_owned();
    let again = answer("a program", EXEC_MS, lease.exec(limited(line))).await?;
    assert_eq!(again.stdout, Some(format!("{who}\n{who}\n")), "{again:?}");
    answer("a return", 0, lease.give_back()).await
}
