//! The lines that an operator reads about decisions: what they name, and at which level they are.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use runtime::fake::{Fault, Operation};
use runtime::{RuntimeError, RuntimeErrorCode};
use tokio::time::sleep;
use tracing::Level;
use tracing::subscriber::DefaultGuard;

use super::node::{ALICE, BOB, Node, config, name, template};
use crate::{EngineConfig, SessionRequest};

/// The log of a node on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Collects lines of this level and above, until the guard is dropped.
    fn start(level: Level) -> (Self, DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let lines = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(level)
            .with_writer(move || writer.clone());
        let guard = tracing::subscriber::set_default(lines.finish());
        (log, guard)
    }

    /// The lines with these texts.
    fn lines(&self, parts: &[&str]) -> Vec<String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = String::from_utf8(bytes).unwrap();
        let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
        text.lines().filter(has_all).map(str::to_owned).collect()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A node with room for one sandbox, and a pool whose sandbox is made on demand.
fn small() -> EngineConfig {
    let mut config = config();
    config.node.max_live = 1;
    config.templates[0].pool.pool_size = 0;
    config
}

#[tokio::test(start_paused = true)]
async fn log_of_a_session_that_is_evicted_names_its_sandbox_its_key_and_the_cause() {
    let (log, _guard) = Log::start(Level::INFO);
    let node = Node::start(small()).await;
    let asked = SessionRequest::of(name("default"));
    let session = node.engine.create_session(ALICE, asked).await.unwrap();
    let sandbox = session.sandbox_id.unwrap();
    node.settle().await;
    node.checkout(BOB).await.unwrap().keep();
    node.settle().await;
    let (id, key) = (format!("session={}", session.id), format!("key={}", ALICE.key));
    let created = ["a session changed", "change=\"created\"", &*id, &*key];
    assert_eq!(log.lines(&created).len(), 1, "{:?}", log.lines(&[]));
    let at = format!("sandbox={sandbox}");
    let paused = ["a session changed", "change=\"paused\"", "cause=\"evicted\"", &*id, &*key, &*at];
    assert_eq!(log.lines(&paused).len(), 1, "{:?}", log.lines(&[]));
}

#[tokio::test(start_paused = true)]
async fn log_of_an_evicted_sandbox_says_what_was_short() {
    let (log, _guard) = Log::start(Level::INFO);
    let mut config = small();
    let mut warm = template("warm");
    warm.pool.pool_size = 1;
    config.templates.push(warm);
    let node = Node::start(config).await;
    node.settle().await;
    node.checkout(BOB).await.unwrap().keep();
    node.settle().await;
    let evicted = ["a sandbox ended", "cause=\"evicted\"", "short_of=\"processes\""];
    let lines = log.lines(&evicted);
    assert_eq!(lines.len(), 1, "{:?}", log.lines(&[]));
    assert!(!lines[0].contains("key="), "it belonged to no key: {lines:?}");
}

#[tokio::test(start_paused = true)]
async fn log_of_a_sandbox_whose_lease_expired_names_the_lease_and_the_key() {
    let (log, _guard) = Log::start(Level::INFO);
    let node = Node::start(small()).await;
    let lease = node.checkout(BOB).await.unwrap().keep().lease;
    sleep(Duration::from_hours(24)).await;
    let (lease, key) = (format!("lease={lease}"), format!("key={}", BOB.key));
    let ended = ["a sandbox ended", "cause=\"lease_expired\"", &*lease, &*key];
    assert_eq!(log.lines(&ended).len(), 1, "{:?}", log.lines(&[]));
}

#[tokio::test(start_paused = true)]
async fn log_has_one_line_for_a_pool_and_none_for_each_failed_launch() {
    let (log, _guard) = Log::start(Level::INFO);
    let mut config = small();
    config.templates[0].pool.pool_size = 1;
    let node = Node::start(config).await;
    let error = || RuntimeError::new(RuntimeErrorCode::LaunchFailed, "launch", "no launcher");
    node.settle().await;
    for _ in 0..5 {
        node.runtime.inject(Operation::Launch, Fault::Fail(error()));
    }
    let taken = node.checkout(BOB).await.unwrap().keep();
    node.engine.delete_sandbox(BOB, taken.sandbox).await.unwrap();
    sleep(Duration::from_mins(10)).await;
    assert_eq!(log.lines(&["a pool is degraded"]).len(), 1, "{:?}", log.lines(&[]));
    assert_eq!(log.lines(&["a sandbox ended", "launch_failed"]), Vec::<String>::new());
}
