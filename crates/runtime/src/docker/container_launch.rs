//! Launches one container: creates it, attaches to it before it is started, starts it, and connects
//! to its guest. A launch may be dropped at any point, and the container removed then: a task that
//! always ends sends the create request, so that the removal can wait until it is known whether the
//! container exists.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bollard::models::{ContainerInspectResponse, MountPoint};
use bollard::query_parameters::CreateContainerOptionsBuilder;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::attach::{AttachedSocket, StderrTail, as_socket, attach, collect_stderr};
use super::container_config::{BindMount, ContainerConfig, OWN_FILES, Transport};
use super::engine::{EngineFailure, QUICK, WORK};
use super::engine_setup::EngineSetup;
use super::first_process::FirstProcess;
use super::images::Image;
use super::instances::Instance;
use super::listener::Listener;
use super::maker::Shared;
use crate::container::{GUEST_PATH, MadeContainer, writable_mounts};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::{LaunchSpec, Root};

const STEP: &str = "launch";

/// How long the engine may take to create a container before the request counts as lost.
const CREATE_PATIENCE: Duration = Duration::from_mins(5);
/// How long a guest that was started may take to connect.
const GUEST_PATIENCE: Duration = Duration::from_secs(30);

/// A container that is being launched.
pub(super) struct ContainerLaunch<'a> {
    pub shared: &'a Arc<Shared>,
    pub spec: &'a LaunchSpec,
    pub image: &'a Image,
    pub setup: &'a EngineSetup,
    /// Where the image wants volumes and is not given any.
    pub volumes: &'a [String],
    pub instance: &'a Arc<Instance>,
}

/// Why it was not launched.
pub(super) enum LaunchFailure {
    /// The engine setup (the volume or our directory) is gone, and must be made again.
    SetupGone(RuntimeError),
    /// Anything else.
    Failed(RuntimeError),
}

impl From<RuntimeError> for LaunchFailure {
    fn from(error: RuntimeError) -> Self {
        Self::Failed(error)
    }
}

impl ContainerLaunch<'_> {
    pub(super) async fn run(self) -> Result<MadeContainer, LaunchFailure> {
        let container = self.shared.names.container(self.spec.instance);
        let listener = match &self.setup.links {
            Some(_) => {
                let opened = Listener::open(self.shared.preparation.links(), self.spec.instance);
                let opened = opened.map_err(|error| {
                    let failed = RuntimeError::system("listen for the guest", &error);
                    if error.kind() == io::ErrorKind::NotFound {
                        LaunchFailure::SetupGone(failed)
                    } else {
                        LaunchFailure::Failed(failed)
                    }
                });
                Some(opened?)
            }
            None => None,
        };
        let id = self.create(&container, listener.as_ref()).await?;
        match listener {
            Some(listener) => self.by_socket(&container, id, listener).await,
            None => self.by_attachment(&container, id).await,
        }
    }

    async fn create(
        &self,
        container: &str,
        listener: Option<&Listener>,
    ) -> Result<String, LaunchFailure> {
        let engine = Arc::clone(&self.shared.engine);
        let found = engine.find().await.map_err(|failure| self.failed(&failure))?;
        let (links, transport) = match (&self.setup.links, listener) {
            (Some(links), Some(listener)) => {
                let name = listener.directory().file_name().unwrap_or_default();
                let directory = format!("{links}/{}", name.to_string_lossy());
                (Some(links), Transport::Socket(directory))
            }
            (Some(_) | None, _) => (None, Transport::Stdio),
        };
        let mut shown = self.shown()?;
        shown.extend(self.image.shown.iter().cloned());
        for (path, name) in OWN_FILES {
            if let Some(links) = links
                && !shown.iter().any(|shown| shown.target == path)
            {
                let (source, target) = (format!("{links}/{name}"), path.to_owned());
                shown.push(BindMount { source, target, read_only: true });
            }
        }
        let wanted = ContainerConfig {
            spec: self.spec,
            names: &self.shared.names,
            image: self.image.id.clone(),
            volumes: self.volumes,
            guest: &self.setup.volume,
            transport: &transport,
            shown: &shown,
            bare_network: links.is_some(),
            api: found.facts.api,
        };
        let body = wanted.body();
        let options = CreateContainerOptionsBuilder::new().name(container).build();
        let asked = self.instance.begin_creation();
        engine.note_create_request();
        let (reply, answer) = oneshot::channel();
        tasks::spawn(async move {
            let created = engine
                .ask(CREATE_PATIENCE, |docker| async move {
                    docker.create_container(Some(options), body).await
                })
                .await;
            drop(asked);
            // The caller may have gone.
            let _ = reply.send(created);
        });
        let late = || EngineFailure::Unanswered("no answer in time".into());
        let created = match timeout(WORK, answer).await {
            Ok(Ok(created)) => created,
            Ok(Err(_)) | Err(_) => Err(late()),
        };
        let created = created.map_err(|failure| self.uncreated(&failure, links))?;
        for warning in &created.warnings {
            self.shared.engine.log_warning_once(warning);
        }
        Ok(created.id)
    }

    fn uncreated(&self, failure: &EngineFailure, links: Option<&String>) -> LaunchFailure {
        // A refused container does not exist, and one that caused a conflict is not ours to remove.
        if let EngineFailure::Refused { status: 400..500, .. } = failure {
            self.instance.mark_removed();
        }
        if failure.is_conflict() {
            let cause = "the engine has a container of this name already";
            return RuntimeError::new(RuntimeErrorCode::Duplicate, STEP, cause).into();
        }
        let error = self.failed(failure);
        match links {
            Some(links) if failure.message().contains(links) => LaunchFailure::SetupGone(error),
            Some(_) | None => LaunchFailure::Failed(error),
        }
    }

    /// The mounts of host directories, by the engine's paths.
    fn shown(&self) -> Result<Vec<BindMount>, RuntimeError> {
        let mut shown = Vec::new();
        for mount in &self.spec.mounts {
            let said = mount.docker_host_path.clone();
            let only_read = self.shared.preparation.is_read_only(self.setup, &mount.host_path);
            if said.is_none() && !mount.read_only && only_read {
                let cause = format!(
                    "{:?} is mounted read-only into the container of this server: set read_only of \
                     the mount, or mount it writable there",
                    mount.host_path
                );
                return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause));
            }
            let found = || self.shared.preparation.engine_path(self.setup, &mount.host_path);
            let Some(source) = said.or_else(found) else {
                let cause = format!(
                    "the Docker engine does not see {:?} of this server: it is on another machine, or \
                     the server is in a container that has this from nowhere; set docker_host_path of \
                     the mount, or docker.host_path_map",
                    mount.host_path
                );
                return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause));
            };
            let (target, read_only) = (mount.path.clone(), mount.read_only);
            shown.push(BindMount { source, target, read_only });
        }
        Ok(shown)
    }

    async fn by_socket(
        &self,
        container: &str,
        id: String,
        listener: Listener,
    ) -> Result<MadeContainer, LaunchFailure> {
        let stderr = StderrTail::default();
        let attached = attach(&self.shared.engine, container, false).await;
        let attached = attached.map_err(|failure| self.failed(&failure))?;
        self.start(container).await?;
        let connected = async {
            let arrived = async {
                listener
                    .accept()
                    .await
                    .map_err(|error| RuntimeError::system("take the guest", &error))
            };
            tokio::try_join!(arrived, self.first_process(container, &id))
        };
        let (arrived, process) = tokio::select! {
            connected = timeout(GUEST_PATIENCE, connected) => match connected {
                Ok(connected) => connected?,
                Err(_) => return Err(Self::unready("the guest did not connect in time", &stderr)),
            },
            () = collect_stderr(attached, self.spec.instance, &stderr) => {
                return Err(Self::unready("the guest ended before it connected", &stderr));
            }
        };
        let (link, peer) = arrived;
        let pid = process.as_ref().map(|process| process.pid);
        let facts = self.shared.engine.facts();
        let users_are_mapped = facts.is_some_and(|facts| {
            facts.has_security_option("userns") || facts.has_security_option("rootless")
        });
        if !peer.is_guest(pid, users_are_mapped) {
            let cause = "another process connected in place of the guest";
            return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause).into());
        }
        self.refuse_other_files(process.as_ref())?;
        if process.as_ref().is_some_and(FirstProcess::shares_our_network) {
            let cause = "the engine gave the container the host's network instead of none";
            return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause).into());
        }
        self.instance.runs(process);
        Ok(MadeContainer { link, passes_descriptors: true, container_id: id, pid })
    }

    async fn by_attachment(
        &self,
        container: &str,
        id: String,
    ) -> Result<MadeContainer, LaunchFailure> {
        let stderr = StderrTail::default();
        let attached = attach(&self.shared.engine, container, true).await;
        let attached = attached.map_err(|failure| self.failed(&failure))?;
        let AttachedSocket { socket, spoke } =
            as_socket(attached, self.spec.instance, stderr.clone())
                .map_err(|error| RuntimeError::system("make a connection", &error))?;
        self.start(container).await?;
        match timeout(GUEST_PATIENCE, spoke).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                return Err(Self::unready("the guest ended before its first message", &stderr));
            }
            Err(_) => return Err(Self::unready("the guest sent no message in time", &stderr)),
        }
        let process = self.first_process(container, &id).await?;
        self.refuse_other_files(process.as_ref())?;
        let pid = process.as_ref().map(|process| process.pid);
        self.instance.runs(process);
        Ok(MadeContainer { link: socket, passes_descriptors: false, container_id: id, pid })
    }

    async fn start(&self, container: &str) -> Result<(), LaunchFailure> {
        let started = self
            .shared
            .engine
            .ask(WORK, |docker| async move { docker.start_container(container, None).await })
            .await;
        started.map_err(|failure| {
            let error = self.failed(&failure);
            let said = failure.message();
            if said.contains(GUEST_PATH) && said.contains("no such file") {
                LaunchFailure::SetupGone(error)
            } else {
                LaunchFailure::Failed(error)
            }
        })
    }

    /// Its first process, if this host can see it.
    async fn first_process(
        &self,
        container: &str,
        id: &str,
    ) -> Result<Option<FirstProcess>, RuntimeError> {
        let found = self.shared.inspect(container, QUICK).await;
        let found = found.map_err(|failure| self.failed(&failure))?;
        self.refuse_other_volumes(&found)?;
        let first = pid_of(&found).and_then(|pid| FirstProcess::find(pid, id));
        if let Some(first) = &first {
            first.limit_tcp(u64::from(self.spec.limits.memory_mb) << 20);
        }
        Ok(first)
    }

    /// Refuses volumes of the engine's own: programs could write to them, and they would outlive a
    /// use.
    fn refuse_other_volumes(&self, found: &ContainerInspectResponse) -> Result<(), RuntimeError> {
        let places = writable_mounts(self.spec);
        let is_hidden = |mount: &MountPoint| {
            let at = mount.destination.as_deref();
            places.iter().any(|place| at == Some(place.path))
        };
        let volumes = found.mounts.iter().flatten().filter(|mount| mount.name.is_some());
        let other = volumes
            .filter(|mount| !is_hidden(mount))
            .find(|mount| mount.name.as_ref() != Some(&self.setup.volume));
        let Some(other) = other else { return Ok(()) };
        let at = other.destination.as_deref().unwrap_or("?");
        let cause = format!(
            "the engine added a volume at {at}, which an image may not have: use another image"
        );
        Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause))
    }

    /// Refuses files that have the same path and may be those of another machine. The sandbox is
    /// still unused.
    fn refuse_other_files(&self, process: Option<&FirstProcess>) -> Result<(), RuntimeError> {
        let preparation = &self.shared.preparation;
        let mounts = self.spec.mounts.iter().filter(|mount| {
            mount.docker_host_path.is_none()
                && preparation.relies_on_same_files(self.setup, &mount.host_path)
        });
        let mut relied_on: Vec<_> =
            mounts.map(|mount| (mount.path.as_str(), mount.host_path.as_str())).collect();
        if self.spec.root == Root::Host {
            relied_on.push(("/usr", "/usr"));
        }
        for (place, ours) in relied_on {
            let same = process.and_then(|process| process.shows(place, ours));
            if !same.unwrap_or(!self.setup.doubtful) {
                let cause = format!(
                    "the engine may have other files at {ours:?} than this server, which runs in a \
                     container that it does not know: set docker_host_path of the mount, or \
                     docker.host_path_map, and name an image as the root"
                );
                return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause));
            }
        }
        Ok(())
    }

    fn failed(&self, failure: &EngineFailure) -> RuntimeError {
        self.shared.engine.failed(RuntimeErrorCode::LaunchFailed, STEP, failure)
    }

    fn unready(what: &str, stderr: &StderrTail) -> LaunchFailure {
        let cause = match stderr.text() {
            Some(text) => format!("{what}; its standard error: {text}"),
            None => what.to_owned(),
        };
        LaunchFailure::Failed(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause))
    }
}

fn pid_of(found: &ContainerInspectResponse) -> Option<i64> {
    found.state.as_ref()?.pid
}
