//! One launcher after another: when one is lost, and nobody asked for its end, all it made is
//! removed and told, and then the next one is started, under a new name. There are never two at
//! once. Whoever asks for the end of the runtime ends this too, at whatever point it is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::config::{NativeConfig, new_run};
use super::launcher_process::LauncherProcess;
use super::launcher_run::Run;
use crate::deaths::DeathBoard;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::leftovers::Leftovers;
use crate::scale::ScaleBoard;

/// How long to wait after the first attempt that failed; twice as long after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest wait. A launcher that did not live as long counts as an attempt that failed, or one
/// that dies at once would be started again without a pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Starts a launcher. Blocks for a moment.
pub(super) type Starter =
    Arc<dyn Fn(NativeConfig) -> Result<LauncherProcess, RuntimeError> + Send + Sync>;

/// The launchers of one runtime, and what they have in common.
pub(super) struct Launchers {
    pub config: NativeConfig,
    pub deaths: Arc<DeathBoard>,
    pub scale: Arc<ScaleBoard>,
    pub leftovers: Leftovers,
    start: Starter,
    /// The last one that was up.
    current: Mutex<Arc<Run>>,
    /// The end was asked for. Set only while `current` is locked.
    stopping: watch::Sender<bool>,
    /// There is no launcher and there will be none.
    over: watch::Sender<bool>,
}

/// How often in a row it failed.
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
    /// Waits until the first one is ready for work.
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
        let first = Run::begin(
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
            over: watch::Sender::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Run>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The launcher that is up, or the last one that was.
    pub(super) fn current(&self) -> Arc<Run> {
        Arc::clone(&self.lock())
    }

    /// No other launcher will come after the one that is returned.
    pub(super) fn stop(&self) -> Arc<Run> {
        let current = self.lock();
        self.stopping.send_replace(true);
        Arc::clone(&current)
    }

    /// Waits until there is no launcher and nothing that one made, for good.
    pub(super) async fn over(&self) {
        // It cannot be dropped while it is waited for.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    /// Deals with one launcher after another, until the last one is gone.
    pub(super) async fn serve(&self, mut buffer: Vec<u8>) {
        let mut failures = Failures::default();
        let mut run = self.current();
        loop {
            let up_at = Instant::now();
            run.serve(&mut buffer).await;
            run.end(self.lost(None)).await;
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
        self.over.send_replace(true);
    }

    /// Starts a launcher, as often as it takes. None if the end is asked for.
    async fn next(
        &self,
        last: &Run,
        failures: &mut Failures,
        buffer: &mut [u8],
    ) -> Option<Arc<Run>> {
        loop {
            tokio::select! {
                // Where both are due, nothing is started for an end that was asked for.
                biased;
                () = self.stopped() => return None,
                () = sleep(failures.pause()) => {}
            }
            match self.attempt(buffer).await {
                Ok(run) => return self.install(Arc::new(run)).await,
                Err(error) => last.launcher.close(self.lost(Some(&error))),
            }
            *failures = failures.another();
        }
    }

    async fn attempt(&self, buffer: &mut [u8]) -> Result<Run, RuntimeError> {
        let config = NativeConfig { run: new_run(), ..self.config.clone() };
        let start = Arc::clone(&self.start);
        let process = tasks::spawn_blocking(move || start(config))
            .await
            .map_err(|error| {
                RuntimeError::system("start the launcher", &std::io::Error::other(error))
            })
            .flatten()?;
        let (deaths, scale) = (Arc::clone(&self.deaths), Arc::clone(&self.scale));
        Run::begin(process, deaths, scale, self.leftovers.clone(), buffer, self.stopped()).await
    }

    /// From now on it is the one to launch with, unless the end was asked for meanwhile.
    async fn install(&self, run: Arc<Run>) -> Option<Arc<Run>> {
        let installed = {
            let mut current = self.lock();
            let stopping = *self.stopping.borrow();
            if !stopping {
                *current = Arc::clone(&run);
            }
            !stopping
        };
        if installed {
            return Some(run);
        }
        run.end(self.lost(None)).await;
        None
    }

    /// The end was asked for.
    async fn stopped(&self) {
        // It cannot be dropped while it is waited for.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// What is said to whoever wants something of a launcher that is gone.
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
    fn pauses_double_up_to_the_longest() {
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
