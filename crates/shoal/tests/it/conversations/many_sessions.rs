//! Many more sessions than may be alive: all make progress, each finds its own files every
//! time, never more live than may be, and the server's memory stays small.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use client::{Client, ClientError};
use model::{ErrorCode, SessionId};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use wire::{SessionRequest, TurnRequest};

use crate::storm::node::Server;

/// If `SESSIONS` does not say; `scripts/long.sh` says 1,000.
const SESSIONS: u32 = 300;
const LIVE: u32 = 50;
const ROUNDS: u32 = 3;
const CLIENTS: u32 = 24;
const PATIENCE: Duration = Duration::from_mins(2);
/// A debug build with a thousand sessions takes about a quarter of this.
const MEMORY_MB_MAX: u64 = 512;

const CONFIG: &str = r#"
[node]
max_live = 50
max_sandboxes = 1100
[server]
max_connections = 200
[[templates]]
name = "default"
pool = { pool_size = 2, max_overflow = 4 }
workspace = { kind = "disk", limit = "soft" }
"#;

#[test]
fn many_sessions_share_fifty_places() {
    let count =
        std::env::var("SESSIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(SESSIONS);
    let Some(mut server) = Server::start("many", CONFIG) else { return };
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let client = server.client();
        let over = Arc::new(AtomicBool::new(false));
        let most = Arc::new(AtomicU32::new(0));
        let watch = tokio::spawn(watch(client.clone(), Arc::clone(&over), Arc::clone(&most)));
        let mut sessions = each(&client, (0..count).map(|_| None).collect(), create).await;
        for round in 1..=ROUNDS {
            let messages = sessions.iter().map(|session| Some((*session, round))).collect();
            sessions = each(&client, messages, say).await;
        }
        assert_eq!(sessions.len(), count as usize);
        over.store(true, Ordering::SeqCst);
        watch.await.unwrap();
        let most = most.load(Ordering::SeqCst);
        assert!(most <= LIVE, "{most} were alive at once");
        let memory_mb = server.resident_bytes() >> 20;
        println!("at most {most} alive, {memory_mb} MB");
        assert!(memory_mb < MEMORY_MB_MAX, "{memory_mb} MB");
        let stats = client.stats().await.unwrap().pool;
        assert!(stats.resume_cold_hits > u64::from(count), "{stats:?}");
    });
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    assert_eq!(server.leftovers(), Vec::<std::path::PathBuf>::new());
}

type Job = Option<(SessionId, u32)>;

/// Does something for all of them, many at a time.
async fn each<F, Fut>(client: &Client, jobs: Vec<Job>, act: F) -> Vec<SessionId>
where
    F: Fn(Client, Job) -> Fut + Copy + Send + 'static,
    Fut: Future<Output = SessionId> + Send,
{
    let jobs = Arc::new(jobs);
    let next = Arc::new(AtomicU32::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..CLIENTS {
        let (client, jobs, next) = (client.clone(), Arc::clone(&jobs), Arc::clone(&next));
        workers.spawn(async move {
            let mut done = Vec::new();
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::SeqCst) as usize) {
                let one = timeout(PATIENCE, act(client.clone(), *job));
                done.push(one.await.expect("all make progress"));
            }
            done
        });
    }
    workers.join_all().await.into_iter().flatten().collect()
}

/// Tries again where the server says that this helps.
async fn again(error: ClientError) {
    let full = matches!(error.code(), Some(ErrorCode::CapacityExhausted | ErrorCode::ReadyTimeout));
    assert!(full, "{error:?}");
    sleep(Duration::from_millis(50)).await;
}

async fn create(client: Client, _: Job) -> SessionId {
    loop {
        let template = "default".to_owned().try_into().unwrap();
        match client.create_session(&SessionRequest::of(template)).await {
            Ok(session) => return session.id,
            Err(error) => again(error).await,
        }
    }
}

/// Says what was said before, and adds to it.
async fn say(client: Client, job: Job) -> SessionId {
    let (id, round) = job.unwrap();
    let line = format!("cat log 2>/dev/null; echo {id} {round} >> log");
    let answer = loop {
        match client.session(id).ask(&TurnRequest::text(line.clone())).await {
            Ok(answer) => break answer,
            Err(error) => again(error).await,
        }
    };
    let before: Vec<_> = (1..round).map(|before| format!("{id} {before}\n")).collect();
    assert_eq!(answer.output, before.concat(), "{id} in round {round}");
    id
}

/// The most that were alive at once, as the server says.
async fn watch(client: Client, over: Arc<AtomicBool>, most: Arc<AtomicU32>) {
    let began = Instant::now();
    while !over.load(Ordering::SeqCst) && began.elapsed() < Duration::from_mins(10) {
        let pool = client.stats().await.unwrap().pool;
        most.fetch_max(pool.total - pool.cold, Ordering::SeqCst);
        sleep(Duration::from_millis(20)).await;
    }
}
