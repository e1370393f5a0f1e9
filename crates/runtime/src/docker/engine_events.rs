//! Follows the engine's events: deaths of containers and out-of-memory kills. When the engine goes
//! away, this task looks for it until it is back, and then compares its containers with the
//! registry. It also compares them regularly, so that nothing depends on an event that got lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bollard::models::EventMessage;
use bollard::query_parameters::EventsOptionsBuilder;
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep, sleep_until};

use super::engine::{EngineConnection, EngineFailure};
use super::maker::Shared;
use super::names::instance_of;
use super::removal::ListedContainer;

/// The pause before an absent engine is looked for again, at first and at most.
const AGAIN_MIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(5);
/// How soon after the start the containers are compared again: events in between were not received.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// How often the containers are compared.
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
                shared.engine.set_absence(None);
                let why = shared.listen(found).await;
                tracing::debug!(why, "the Docker engine's events ended");
                shared.engine.forget();
            }
            Err(failure) => {
                if was_there {
                    tracing::warn!(
                        engine = %shared.engine.endpoint(),
                        why = failure.message(),
                        "the Docker engine does not answer"
                    );
                }
                was_there = false;
                shared.engine.set_absence(Some(failure));
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(AGAIN_MAX);
    }
}

impl Shared {
    /// Listens until the stream breaks, and returns why it did.
    async fn listen(self: &Arc<Self>, found: EngineConnection) -> String {
        let filters = [
            ("type".to_owned(), vec!["container".to_owned()]),
            ("label".to_owned(), self.names.of_this_run()),
            ("event".to_owned(), ["die", "oom", "destroy"].map(str::to_owned).to_vec()),
        ];
        let filters = filters.into_iter().collect();
        let options = EventsOptionsBuilder::new().filters(&filters).build();
        let mut events = std::pin::pin!(found.docker.events(Some(options)));
        if let Err(failure) = self.compare().await {
            return failure.message().to_owned();
        }
        let mut look_at = Instant::now() + FIRST_LOOK;
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => self.on_event(&event),
                    Some(Err(error)) => return EngineFailure::of(error).message().to_owned(),
                    None => return "the engine closed the connection".to_owned(),
                },
                () = sleep_until(look_at) => {
                    if let Err(failure) = self.compare().await {
                        return failure.message().to_owned();
                    }
                    look_at = Instant::now() + LOOK_EVERY;
                }
            }
        }
    }

    fn on_event(&self, event: &EventMessage) {
        let attributes = event.actor.as_ref().and_then(|actor| actor.attributes.as_ref());
        let Some(instance) = attributes.and_then(instance_of) else {
            return;
        };
        match event.action.as_deref() {
            Some("oom") => self.instances.note_out_of_memory(instance),
            Some("die" | "destroy") => self.instances.mark_dead(instance),
            Some(_) | None => {}
        }
    }

    /// Compares the engine's containers with the registry: a registered instance that is missing or
    /// has exited is marked dead, and an unregistered container is removed.
    async fn compare(self: &Arc<Self>) -> Result<(), EngineFailure> {
        // Taken before the engine is asked, so that containers launched meanwhile are not
        // concerned.
        let should_run = self.instances.running();
        let listed = self.of_this_run().await?;
        for instance in should_run {
            let lives = |one: &ListedContainer| one.instance == Some(instance) && one.alive;
            if !listed.iter().any(lives) {
                self.instances.mark_dead(instance);
            }
        }
        let carries = self.preparation.carries();
        let strays: Vec<_> = listed
            .into_iter()
            .filter(|one| one.instance.map_or(!carries, |id| !self.instances.is_known(id)))
            .collect();
        let owed = self.reaping_owed.load(Ordering::Relaxed);
        // In a task of its own: events must be received meanwhile.
        if (owed || !strays.is_empty()) && !self.tidying.swap(true, Ordering::Relaxed) {
            let shared = Arc::clone(self);
            tasks::spawn(async move { shared.tidy(strays).await });
        }
        Ok(())
    }

    /// Removes unregistered containers, and what earlier runs left. The next comparison retries.
    async fn tidy(&self, strays: Vec<ListedContainer>) {
        for stray in strays {
            // It may have been removed meanwhile, which is fine.
            tracing::debug!(container = stray.id, "removing a container that no instance owns");
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
