//! Following the engine: what it tells of deaths and of memory that ran out, as it happens. When it goes
//! away it is looked for until it is back; then what it has is compared with what should be there. The
//! same is done now and then anyway, so that nothing depends on a message that got lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep, sleep_until};

use super::engine::{Found, Trouble};
use super::maker::Shared;
use super::names::instance_of;
use super::removal::Listed;

/// How long to wait before an engine that is away is looked for again, at first and at most.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// How soon after the beginning everything is compared again: what happened in between was told to
/// nobody.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// How often everything is compared.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Follows the engine for ever.
pub(super) async fn follow(shared: Arc<Shared>) {
    let mut pause = AGAIN_MIN;
    let mut was_there = true;
    loop {
        match shared.engine.find().await {
            Ok(found) => {
                if !was_there {
                    tracing::info!(engine = %shared.engine.endpoint(), "the Docker engine is back");
                }
                (pause, was_there) = (AGAIN_MIN, true);
                shared.engine.is_away(None);
                let why = shared.listen(found).await;
                tracing::debug!(why, "the Docker engine's events ended");
                shared.engine.forget();
            }
            Err(trouble) => {
                if was_there {
                    tracing::warn!(
                        engine = %shared.engine.endpoint(),
                        why = trouble.said(),
                        "the Docker engine does not answer"
                    );
                }
                was_there = false;
                shared.engine.is_away(Some(trouble));
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(AGAIN_MAX);
    }
}

impl Shared {
    /// Listens until that breaks, and says how it did.
    async fn listen(self: &Arc<Self>, found: Found) -> String {
        let filters = [
            ("type".to_owned(), vec!["container".to_owned()]),
            ("label".to_owned(), self.names.of_this_run()),
            ("event".to_owned(), ["die", "oom", "destroy"].map(str::to_owned).to_vec()),
        ];
        let filters = filters.into_iter().collect();
        let options = EventsOptionsBuilder::new().filters(&filters).build();
        let mut events = std::pin::pin!(found.docker.events(Some(options)));
        if let Err(trouble) = self.compare().await {
            return trouble.said().to_owned();
        }
        let mut look_at = Instant::now() + FIRST_LOOK;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => self.heard(&event),
                    Some(Err(error)) => return Trouble::of(error).said().to_owned(),
                    None => return "the engine closed the connection".to_owned(),
                },
                () = sleep_until(look_at) => {
                    if let Err(trouble) = self.compare().await {
                        return trouble.said().to_owned();
                    }
                    look_at = Instant::now() + LOOK_EVERY;
                }
            }
        }
    }

    fn heard(&self, event: &EventMessage) {
        let attributes = event.actor.as_ref().and_then(|actor| actor.attributes.as_ref());
        let Some(instance) = attributes.and_then(instance_of) else {
            return;
        };
        match event.action.as_deref() {
            Some("oom") => self.instances.ran_out(instance),
            Some("die" | "destroy") => self.instances.fell(instance),
            Some(_) | None => {}
        }
    }

    /// Compares what the engine has with what should be there: what is missing or over has fallen, and
    /// what nobody knows of is removed.
    async fn compare(self: &Arc<Self>) -> Result<(), Trouble> {
        // Taken before the engine is asked: what is made meanwhile is none of this.
        let should_run = self.instances.running();
        let listed = self.of_this_run().await?;
        for instance in should_run {
            let lives = |one: &Listed| one.instance == Some(instance) && one.alive;
            if !listed.iter().any(lives) {
                self.instances.fell(instance);
            }
        }
        let carries = self.preparation.carries();
        let strays: Vec<_> = listed
            .into_iter()
            .filter(|one| one.instance.map_or(!carries, |id| !self.instances.is_known(id)))
            .collect();
        let owed = self.reaping_owed.load(Ordering::Relaxed);
        // Not here: what happens meanwhile must be heard.
        if (owed || !strays.is_empty()) && !self.tidying.swap(true, Ordering::Relaxed) {
            let shared = Arc::clone(self);
            tasks::spawn(async move { shared.tidy(strays).await });
        }
        Ok(())
    }

    /// Removes what nobody knows of, and what earlier runs left. What cannot be is tried again.
    async fn tidy(&self, strays: Vec<Listed>) {
        for stray in strays {
            // It may have been removed in the ordinary way meanwhile, which is fine too.
            tracing::debug!(container = stray.id, "a container that nobody knows of is removed");
            match stray.instance {
                Some(instance) => drop(self.remove_container(instance).await),
                None => drop(self.remove_named(&stray.id).await),
            }
        }
        if self.reaping_owed.load(Ordering::Relaxed) {
            let _ = self.reap().await;
        }
        self.tidying.store(false, Ordering::Relaxed);
    }
}
