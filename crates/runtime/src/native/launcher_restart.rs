//! Restarts of the launcher. When one dies without a shutdown, all it made is removed, each
//! sandbox's death is reported, and then the next launcher is started under a new run name. There
//! are never two launchers at once. A shutdown stops a restart at any point.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::config::{NativeConfig, new_run};
use super::launcher_process::LauncherProcess;
use super::launcher_run::{Death, LauncherRun};
use crate::deaths::DeathBoard;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::leftovers::Leftovers;
use crate::scale::ScaleBoard;

/// The pause after the first failed attempt; twice as long after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause. A launcher that lived for a shorter time counts as a failed attempt;
/// otherwise one that dies at once would be restarted without a pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Starts a launcher. Blocks for a moment.
pub(super) type Starter =
    Arc<dyn Fn(NativeConfig) -> Result<LauncherProcess, RuntimeError> + Send + Sync>;

/// The launchers of one runtime, one after the other, and what they share.
pub(super) struct Launchers {
    pub config: NativeConfig,
    pub deaths: Arc<DeathBoard>,
    pub scale: Arc<ScaleBoard>,
    pub leftovers: Leftovers,
    start: Starter,
    /// The run of the last launcher that was up.
    current: Mutex<Arc<LauncherRun>>,
    /// A shutdown was requested. Set only while `current` is locked.
    stopping: watch::Sender<bool>,
    /// There is no launcher and there will be none.
    ended: watch::Sender<bool>,
}

/// How many attempts failed in a row.
#[derive(Debug, Default, Clone, Copy)]
struct Failures(u32);

impl Failures {
    /// How long to wait before the next attempt.
    fn pause(self) -> Duration {
        match self.0.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => {
                FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(doublings)).min(LONGEST_PAUSE)
            }
        }
    }

    fn another(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl Launchers {
    /// Waits until the first launcher is ready.
    pub(super) async fn begin(
        process: LauncherProcess,
        start: Starter,
        buffer: &mut [u8],
    ) -> Result<Self, RuntimeError> {
        let config = process.config.clone();
        let leftovers = Leftovers::on_this_machine(&config.run_directory)
            .map_err(|error| RuntimeError::system("look for control groups", &error))?;
        let deaths = Arc::new(DeathBoard::default());
        let scale = Arc::new(ScaleBoard::default());
        let never = std::future::pending();
        let first = LauncherRun::begin(
            process,
            Arc::clone(&deaths),
            Arc::clone(&scale),
            leftovers.clone(),
            buffer,
            never,
        )
        .await?;
        Ok(Self {
            config,
            deaths,
            scale,
            leftovers,
            start,
            current: Mutex::new(Arc::new(first)),
            stopping: watch::Sender::new(false),
            ended: watch::Sender::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Arc<LauncherRun>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The launcher that is up, or the last one that was.
    pub(super) fn current(&self) -> Arc<LauncherRun> {
        Arc::clone(&self.lock())
    }

    /// Requests a shutdown: no launcher follows the run that is returned.
    pub(super) fn stop(&self) -> Arc<LauncherRun> {
        let current = self.lock();
        self.stopping.send_replace(true);
        Arc::clone(&current)
    }

    /// Waits until there is no launcher and nothing that one made, for good.
    pub(super) async fn wait_ended(&self) {
        // The sender is ours, so it cannot be gone.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Serves one launcher after the other, until the last one is gone.
    pub(super) async fn serve(&self, mut buffer: Vec<u8>) {
        let mut failures = Failures::default();
        let mut run = self.current();
        loop {
            let up_at = Instant::now();
            run.serve(&mut buffer).await;
            let stopping = *self.stopping.borrow();
            let death = if stopping { Death::Requested } else { Death::Unexpected };
            run.end(self.lost(None), death).await;
            if !self.config.restart {
                break;
            }
            let was_steady = up_at.elapsed() >= LONGEST_PAUSE;
            failures = if was_steady { Failures::default() } else { failures.another() };
            match self.next(&run, &mut failures, &mut buffer).await {
                Some(next) => run = next,
                None => break,
            }
        }
        self.ended.send_replace(true);
    }

    /// Starts a launcher, with as many attempts as it takes. None after a shutdown request.
    async fn next(
        &self,
        last: &LauncherRun,
        failures: &mut Failures,
        buffer: &mut [u8],
    ) -> Option<Arc<LauncherRun>> {
        loop {
            tokio::select! {
                // If both are due, the shutdown counts and nothing is started.
                biased;
                () = self.stopped() => return None,
                () = sleep(failures.pause()) => {}
            }
            match self.attempt(buffer).await {
                Ok(run) => return self.install(Arc::new(run)).await,
                Err(error) => {
                    let (attempt, stopping) = (failures.0, *self.stopping.borrow());
                    if !stopping {
                        tracing::error!(%error, attempt, "launcher restart failed; retrying");
                    }
                    last.launcher.close(self.lost(Some(&error)));
                }
            }
            *failures = failures.another();
        }
    }

    async fn attempt(&self, buffer: &mut [u8]) -> Result<LauncherRun, RuntimeError> {
        let config = NativeConfig { run: new_run(), ..self.config.clone() };
        let start = Arc::clone(&self.start);
        let process = tasks::spawn_blocking(move || start(config))
            .await
            .map_err(|error| {
                RuntimeError::system("start the launcher", &std::io::Error::other(error))
            })
            .flatten()?;
        let (deaths, scale) = (Arc::clone(&self.deaths), Arc::clone(&self.scale));
        LauncherRun::begin(process, deaths, scale, self.leftovers.clone(), buffer, self.stopped())
            .await
    }

    /// Makes it the current run, unless a shutdown was requested meanwhile.
    async fn install(&self, run: Arc<LauncherRun>) -> Option<Arc<LauncherRun>> {
        let installed = {
            let mut current = self.lock();
            let stopping = *self.stopping.borrow();
            if !stopping {
                *current = Arc::clone(&run);
            }
            !stopping
        };
        if installed {
            let pid = run.pid.as_raw_nonzero().get();
            tracing::info!(pid, run = run.name(), "a new launcher was started");
            return Some(run);
        }
        run.end(self.lost(None), Death::Requested).await;
        None
    }

    /// Waits until a shutdown is requested.
    async fn stopped(&self) {
        // The sender is ours, so it cannot be gone.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// The error for callers while the launcher is gone.
    fn lost(&self, last: Option<&RuntimeError>) -> RuntimeError {
        const LOST: &str = "the launcher has ended, and every sandbox with it";
        let cause = match (self.config.restart, last) {
            (false, _) => LOST.to_owned(),
            (true, None) => format!("{LOST}; another one is being started"),
            (true, Some(error)) => {
                format!("{LOST}; another one is being started, which failed so far: {error}")
            }
        };
        RuntimeError::new(RuntimeErrorCode::LauncherLost, "", cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launcher_restart_pauses_double_up_to_the_longest() {
        let mut failures = Failures::default();
        let mut pauses_ms = Vec::new();
        for _ in 0..10 {
            pauses_ms.push(failures.pause().as_millis());
            failures = failures.another();
        }
        assert_eq!(pauses_ms, [0, 100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        assert_eq!(Failures(u32::MAX).another().pause(), LONGEST_PAUSE);
    }
}
