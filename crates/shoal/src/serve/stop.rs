//! Stopping the server: the first signal lets running work finish and leaves nothing; the second
//! one ends running work at once.

use std::process::ExitCode;
use std::time::Duration;

use api::Served;
use engine::Engine;
use model::Refusal;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::Parts;
use crate::failure::Failure;

/// How long connections may take to end after all work has ended.
const CONNECTIONS_PATIENCE: Duration = Duration::from_secs(5);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// The signals that stop the server.
pub(super) struct Stops {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Stops {
    pub(super) fn listen() -> Result<Self, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::new("cannot listen to signals", error));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Serves until a signal arrives, then stops.
pub(super) async fn serve_until_stopped(
    engine: &Engine,
    parts: &Parts<'_>,
    stops: &mut Stops,
    stop: watch::Sender<bool>,
    mut serving: JoinHandle<Served>,
) -> Result<ExitCode, Failure> {
    tokio::select! {
        () = stops.next() => {}
        ended = &mut serving => {
            let _ = engine.shutdown_now().await;
            let why = ended
                .map_or_else(|error| error.to_string(), |_| "the listener ended".to_owned());
            return Err(Failure::new("cannot accept connections", why));
        }
    }
    let grace = Duration::from_millis(parts.config.server.shutdown_grace_ms);
    tracing::info!(grace_s = grace.as_secs(), "stopping: running work may finish");
    parts.output.remark(&format!(
        "stopping: running work has {} s to finish; Ctrl-C again ends it now",
        grace.as_secs()
    ));
    // No new connections. Clients that have one still get their answers.
    let _ = stop.send(true);
    let ended = tokio::select! {
        ended = stop_in_order(engine, parts) => ended,
        () = stops.next() => {
            tracing::info!("second signal: stopping at once");
            engine.shutdown_now().await
        }
    };
    if timeout(CONNECTIONS_PATIENCE, &mut serving).await.is_err() {
        serving.abort();
    }
    parts.output.progress("");
    match ended {
        Ok(()) => {
            tracing::info!("stopped in order; nothing is left");
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => {
            tracing::error!(%refusal, "stopped, but not in order: the next start cleans up");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Stops in order, and shows progress.
async fn stop_in_order(engine: &Engine, parts: &Parts<'_>) -> Result<(), Refusal> {
    let stopping = engine.shutdown();
    tokio::pin!(stopping);
    loop {
        tokio::select! {
            ended = &mut stopping => return ended,
            () = sleep(PROGRESS_INTERVAL) => {
                let stats = engine.stats();
                let left = stats.warming + stats.warm + stats.waiting + stats.running;
                parts.output.progress(&format!("{left} sandboxes left, {} in use", stats.running));
            }
        }
    }
}
