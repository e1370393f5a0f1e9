//! Removal of one container, of all of this run, and of what earlier runs left. Done means that the
//! engine reports that nothing is left; no other answer counts. A container without this node's
//! label must never be touched.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bollard::models::ContainerSummaryStateEnum;
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListVolumesOptionsBuilder, RemoveContainerOptionsBuilder,
    RemoveVolumeOptions,
};
use futures_util::StreamExt as _;
use futures_util::stream;
use model::InstanceId;
use tokio::time::{Instant, sleep, timeout};

use super::engine::{EngineFailure, QUICK, WORK};
use super::maker::Shared;
use super::names::{EPOCH, instance_of};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::Reaped;

const STEP: &str = "remove a container";

/// How long one removal is tried; the caller retries after that.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause before a retry, at first and at most.
const AGAIN_MIN: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_secs(1);
/// How many are removed at once.
const AT_ONCE: usize = 8;
/// How many times a shutdown lists containers and removes what it finds.
const LOOKS: u32 = 10;

/// A container that the engine has.
#[derive(Debug, Clone)]
pub(super) struct ListedContainer {
    /// The engine's id of it.
    pub id: String,
    /// Which sandbox it is; none for a carrier.
    pub instance: Option<InstanceId>,
    /// Which run made it.
    pub epoch: String,
    /// Whether it runs, or is about to.
    pub alive: bool,
}

impl Shared {
    /// Removes the container of a sandbox and what was made for it.
    pub(super) async fn remove(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        // A container that was never requested does not exist, with or without an engine.
        if self.instances.get(instance).is_none_or(|known| known.may_exist()) {
            self.remove_container(instance).await?;
        }
        self.instances.forget(instance);
        Ok(())
    }

    /// Removes the container of a sandbox only.
    pub(super) async fn remove_container(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        let known = self.instances.get(instance);
        if let Some(known) = &known
            && timeout(WORK, known.creation_settled()).await.is_err()
        {
            let cause = "the request to create the container is still in progress";
            return Err(RuntimeError::new(RuntimeErrorCode::System, STEP, cause));
        }
        let container = self.names.container(instance);
        let removed = self.remove_named(&container).await;
        removed.map_err(|failure| self.engine.failed(RuntimeErrorCode::System, STEP, &failure))?;
        if let Some(known) = &known {
            known.mark_removed();
        }
        Ok(())
    }

    /// Removes a container by its name or id, with retries.
    pub(super) async fn remove_named(&self, container: &str) -> Result<(), EngineFailure> {
        let deadline = Instant::now() + PATIENCE;
        let mut pause = AGAIN_MIN;
        loop {
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let asked = self
                .engine
                .ask(PATIENCE, |docker| async move {
                    docker.remove_container(container, Some(options)).await
                })
                .await;
            match asked {
                Ok(()) => return Ok(()),
                Err(failure) if failure.is_missing() => return Ok(()),
                // The container is being removed already, or the engine is busy with it.
                Err(failure) if Instant::now() + pause >= deadline => return Err(failure),
                Err(EngineFailure::Unreachable(why)) => {
                    return Err(EngineFailure::Unreachable(why));
                }
                Err(EngineFailure::Refused { .. } | EngineFailure::Unanswered(_)) => {}
            }
            sleep(pause).await;
            pause = (pause * 2).min(AGAIN_MAX);
        }
    }

    /// Containers of this run.
    pub(super) async fn of_this_run(&self) -> Result<Vec<ListedContainer>, EngineFailure> {
        self.listed(self.names.of_this_run()).await
    }

    async fn listed(&self, labels: Vec<String>) -> Result<Vec<ListedContainer>, EngineFailure> {
        let filters = [("label".to_owned(), labels)].into_iter().collect();
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let found = self
            .engine
            .ask(QUICK, |docker| async move { docker.list_containers(Some(options)).await })
            .await?;
        let listed = found.into_iter().filter_map(|container| {
            let labels = container.labels.unwrap_or_default();
            let instance = instance_of(&labels);
            if !self.names.is_ours(&container.names.unwrap_or_default(), instance) {
                return None;
            }
            let ended = [ContainerSummaryStateEnum::EXITED, ContainerSummaryStateEnum::DEAD];
            Some(ListedContainer {
                id: container.id?,
                instance,
                epoch: labels.get(EPOCH).cloned().unwrap_or_default(),
                alive: container.state.is_none_or(|state| !ended.contains(&state)),
            })
        });
        Ok(listed.collect())
    }

    /// Removes all of these. Returns what could not be removed.
    async fn remove_all(
        &self,
        listed: Vec<ListedContainer>,
    ) -> Vec<(ListedContainer, EngineFailure)> {
        stream::iter(listed)
            .map(|listed| async {
                let removed = self.remove_named(&listed.id).await;
                (listed, removed)
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>()
            .await
            .into_iter()
            .filter_map(|(listed, removed)| Some((listed, removed.err()?)))
            .collect()
    }

    /// Removes what earlier runs of this node left.
    pub(super) async fn reap(&self) -> Result<Reaped, RuntimeError> {
        self.reaping_owed.store(true, Ordering::Relaxed);
        self.preparation.remove_links_of_others();
        let listed = self.listed(self.names.of_this_node()).await;
        let mut orphans = match listed {
            Ok(listed) => listed,
            // The reaping is still owed, and done when the engine answers.
            Err(failure) => {
                let place = PathBuf::from(self.engine.endpoint().to_string());
                let stuck = vec![(place, failure.message().to_owned())];
                return Ok(Reaped { stuck, ..Reaped::default() });
            }
        };
        orphans.retain(|listed| listed.epoch != self.names.epoch());
        let mut reaped = Reaped::default();
        reaped.runs.extend(orphans.iter().map(|orphan| orphan.epoch.clone()));
        reaped.runs.sort_unstable();
        reaped.runs.dedup();
        let count = orphans.len();
        let stuck = self.remove_all(orphans).await;
        reaped.processes = u32::try_from(count - stuck.len()).unwrap_or(u32::MAX);
        reaped.stuck = stuck
            .into_iter()
            .map(|(orphan, failure)| (PathBuf::from(orphan.id), failure.message().to_owned()))
            .collect();
        self.remove_volumes_of_others().await;
        if reaped.stuck.is_empty() {
            self.reaping_owed.store(false, Ordering::Relaxed);
        }
        Ok(reaped)
    }

    /// Removes volumes with guests of earlier versions, except those in use.
    async fn remove_volumes_of_others(&self) {
        let filters = [("label".to_owned(), self.names.of_this_node())].into_iter().collect();
        let options = ListVolumesOptionsBuilder::new().filters(&filters).build();
        let listed = self
            .engine
            .ask(QUICK, |docker| async move { docker.list_volumes(Some(options)).await })
            .await;
        let volumes = listed.ok().and_then(|listed| listed.volumes).unwrap_or_default();
        let ours = self.preparation.volume();
        for volume in volumes.iter().filter(|volume| volume.name != ours) {
            self.remove_volume(&volume.name).await;
        }
    }

    /// Removes a volume, if no container uses it.
    async fn remove_volume(&self, name: &str) {
        let removed = self
            .engine
            .ask(QUICK, |docker| async move {
                docker.remove_volume(name, None::<RemoveVolumeOptions>).await
            })
            .await;
        match removed {
            Err(failure) if !failure.is_missing() => {
                tracing::debug!(volume = name, why = failure.message(), "volume not removed");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Removes whatever carries the label of this run, also late arrivals, and proves that it is
    /// gone.
    pub(super) async fn close(&self) -> Result<(), RuntimeError> {
        const STEP: &str = "shut down";
        let failed =
            |failure: &EngineFailure| self.engine.failed(RuntimeErrorCode::System, STEP, failure);
        self.preparation.remove_links();
        self.preparation.end().await;
        for _ in 0..LOOKS {
            let left = match self.of_this_run().await {
                Ok(left) => left,
                // No request was ever sent, so nothing exists.
                Err(_) if !self.engine.may_have_containers() => return Ok(()),
                Err(failure) => return Err(failed(&failure)),
            };
            if left.is_empty() {
                self.remove_volume(&self.preparation.volume()).await;
                return Ok(());
            }
            if let Some((_, failure)) = self.remove_all(left).await.pop() {
                return Err(failed(&failure));
            }
        }
        let cause = "containers of this run appear faster than they are removed";
        Err(RuntimeError::new(RuntimeErrorCode::System, STEP, cause))
    }
}
