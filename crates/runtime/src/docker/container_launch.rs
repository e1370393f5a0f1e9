//! Making one container: its image, what it is asked to be, attached before it is started, and at the
//! end a connection to its guest. It may be dropped at any point and the container removed then: the
//! engine is asked to make it in a task that always ends, so that whoever removes it can wait until it
//! is clear whether there is one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bollard::models::{ContainerInspectResponse, MountPoint};
use bollard::query_parameters::CreateContainerOptionsBuilder;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::attach::{AsSocket, LastWords, as_socket, attach, last_words};
use super::container_config::{HOSTS_PATH, Shown, Wanted, Way};
use super::engine::{QUICK, Trouble, WORK};
use super::engine_setup::{Ground, Preparation};
use super::first_process::FirstProcess;
use super::images::Image;
use super::instances::Instance;
use super::listener::Listener;
use super::maker::Shared;
use crate::container::{GUEST_PATH, Made, places};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::{LaunchSpec, Root};

const STEP: &str = "launch";

/// How long the engine may take to make a container before nobody believes that it ever will.
const CREATE_PATIENCE: Duration = Duration::from_mins(5);
/// How long a guest that was started may take to connect.
const GUEST_PATIENCE: Duration = Duration::from_secs(30);

/// A container that is being made.
pub(super) struct Making<'a> {
    pub shared: &'a Arc<Shared>,
    pub spec: &'a LaunchSpec,
    pub image: &'a Image,
    pub ground: &'a Ground,
    /// Where the image wants volumes and is not given any.
    pub volumes: &'a [String],
    pub instance: &'a Arc<Instance>,
}

/// Why it was not made.
pub(super) enum Unmade {
    /// What containers stand on is not there any more, and must be made again.
    NoGround(RuntimeError),
    /// Anything else.
    Failed(RuntimeError),
}

impl From<RuntimeError> for Unmade {
    fn from(error: RuntimeError) -> Self {
        Self::Failed(error)
    }
}

impl Making<'_> {
    pub(super) async fn run(self) -> Result<Made, Unmade> {
        let container = self.shared.names.container(self.spec.instance);
        let listener = match &self.ground.links {
            Some(_) => {
                let opened = Listener::open(self.shared.preparation.links(), self.spec.instance);
                let opened = opened.map_err(|error| {
                    let failed = RuntimeError::system("listen for the guest", &error);
                    if error.kind() == io::ErrorKind::NotFound {
                        Unmade::NoGround(failed)
                    } else {
                        Unmade::Failed(failed)
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

    async fn create(&self, container: &str, listener: Option<&Listener>) -> Result<String, Unmade> {
        let engine = Arc::clone(&self.shared.engine);
        let found = engine.find().await.map_err(|trouble| self.failed(&trouble))?;
        let (links, way) = match (&self.ground.links, listener) {
            (Some(links), Some(listener)) => {
                let name = listener.directory().file_name().unwrap_or_default();
                let directory = format!("{links}/{}", name.to_string_lossy());
                (Some(links), Way::Socket(directory))
            }
            (Some(_) | None, _) => (None, Way::Stdio),
        };
        let mut shown = self.shown()?;
        shown.extend(self.image.shown.iter().cloned());
        // Where the engine makes no network it makes no such file either, and names like `localhost`
        // would mean nothing.
        if let Some(links) = links
            && !shown.iter().any(|shown| shown.target == HOSTS_PATH)
        {
            let (source, target) = (Preparation::hosts(links), HOSTS_PATH.to_owned());
            shown.push(Shown { source, target, read_only: true });
        }
        let wanted = Wanted {
            spec: self.spec,
            names: &self.shared.names,
            image: self.image.id.clone(),
            volumes: self.volumes,
            guest: &self.ground.volume,
            way: &way,
            shown: &shown,
            bare_network: links.is_some(),
            api: found.facts.api,
        };
        let body = wanted.body();
        let options = CreateContainerOptionsBuilder::new().name(container).build();
        let asked = self.instance.asked();
        engine.is_asked_to_make();
        let (tell, told) = oneshot::channel();
        tasks::spawn(async move {
            let created = engine
                .ask(CREATE_PATIENCE, |docker| async move {
                    docker.create_container(Some(options), body).await
                })
                .await;
            drop(asked);
            // Nobody may wait for it any more.
            let _ = tell.send(created);
        });
        let late = || Trouble::Unanswered("no answer in time".into());
        let created = match timeout(WORK, told).await {
            Ok(Ok(created)) => created,
            Ok(Err(_)) | Err(_) => Err(late()),
        };
        let created = created.map_err(|trouble| self.uncreated(&trouble, links))?;
        for warning in &created.warnings {
            self.shared.engine.warns(warning);
        }
        Ok(created.id)
    }

    fn uncreated(&self, trouble: &Trouble, links: Option<&String>) -> Unmade {
        // Somebody else's container is not ours to remove, and what was refused is not there.
        if let Trouble::Refused { status: 400..500, .. } = trouble {
            self.instance.is_removed();
        }
        if trouble.is_conflict() {
            let cause = "the engine has a container of this name already";
            return RuntimeError::new(RuntimeErrorCode::Duplicate, STEP, cause).into();
        }
        let error = self.failed(trouble);
        match links {
            Some(links) if trouble.said().contains(links) => Unmade::NoGround(error),
            Some(_) | None => Unmade::Failed(error),
        }
    }

    /// What of the host is shown inside, by the engine's paths.
    fn shown(&self) -> Result<Vec<Shown>, RuntimeError> {
        let mut shown = Vec::new();
        for mount in &self.spec.mounts {
            let said = mount.docker_host_path.clone();
            let only_read = self.shared.preparation.is_read_only(self.ground, &mount.host_path);
            if said.is_none() && !mount.read_only && only_read {
                let cause = format!(
                    "{:?} is mounted read-only into the container of this server: set read_only of \
                     the mount, or mount it writable there",
                    mount.host_path
                );
                return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause));
            }
            let found = || self.shared.preparation.engine_path(self.ground, &mount.host_path);
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
            shown.push(Shown { source, target, read_only });
        }
        Ok(shown)
    }

    async fn by_socket(
        &self,
        container: &str,
        id: String,
        listener: Listener,
    ) -> Result<Made, Unmade> {
        let words = LastWords::default();
        let attached = attach(&self.shared.engine, container, false).await;
        let attached = attached.map_err(|trouble| self.failed(&trouble))?;
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
                Err(_) => return Err(Self::unready("its guest did not connect in time", &words)),
            },
            () = last_words(attached, self.spec.instance, &words) => {
                return Err(Self::unready("its guest ended before it connected", &words));
            }
        };
        let (link, peer) = arrived;
        let pid = process.as_ref().map(|process| process.pid);
        let facts = self.shared.engine.facts();
        let users_are_mapped =
            facts.is_some_and(|facts| facts.says("userns") || facts.says("rootless"));
        if !peer.is_guest(pid, users_are_mapped) {
            let cause = "somebody else connected in the guest's place";
            return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause).into());
        }
        self.refuse_other_files(process.as_ref())?;
        if process.as_ref().is_some_and(FirstProcess::shares_our_network) {
            let cause = "the engine gave it this machine's network instead of none";
            return Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause).into());
        }
        self.instance.runs(process);
        Ok(Made { link, passes_descriptors: true, container_id: id, pid })
    }

    async fn by_attachment(&self, container: &str, id: String) -> Result<Made, Unmade> {
        let words = LastWords::default();
        let attached = attach(&self.shared.engine, container, true).await;
        let attached = attached.map_err(|trouble| self.failed(&trouble))?;
        let AsSocket { socket, spoke } = as_socket(attached, self.spec.instance, words.clone())
            .map_err(|error| RuntimeError::system("make a connection", &error))?;
        self.start(container).await?;
        match timeout(GUEST_PATIENCE, spoke).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Self::unready("its guest ended before it spoke", &words)),
            Err(_) => return Err(Self::unready("its guest did not speak in time", &words)),
        }
        let process = self.first_process(container, &id).await?;
        self.refuse_other_files(process.as_ref())?;
        let pid = process.as_ref().map(|process| process.pid);
        self.instance.runs(process);
        Ok(Made { link: socket, passes_descriptors: false, container_id: id, pid })
    }

    async fn start(&self, container: &str) -> Result<(), Unmade> {
        let started = self
            .shared
            .engine
            .ask(WORK, |docker| async move { docker.start_container(container, None).await })
            .await;
        started.map_err(|trouble| {
            let error = self.failed(&trouble);
            let said = trouble.said();
            if said.contains(GUEST_PATH) && said.contains("no such file") {
                Unmade::NoGround(error)
            } else {
                Unmade::Failed(error)
            }
        })
    }

    /// Its first process, if it can be seen from here.
    async fn first_process(
        &self,
        container: &str,
        id: &str,
    ) -> Result<Option<FirstProcess>, RuntimeError> {
        let found = self.shared.inspect(container, QUICK).await;
        let found = found.map_err(|trouble| self.failed(&trouble))?;
        self.refuse_other_volumes(&found)?;
        Ok(pid_of(&found).and_then(|pid| FirstProcess::find(pid, id)))
    }

    /// Whatever an image brings about, nobody may write to what outlives a use.
    fn refuse_other_volumes(&self, found: &ContainerInspectResponse) -> Result<(), RuntimeError> {
        let places = places(self.spec);
        let is_hidden = |mount: &MountPoint| {
            let at = mount.destination.as_deref();
            places.iter().any(|place| at == Some(place.path))
        };
        let volumes = found.mounts.iter().flatten().filter(|mount| mount.name.is_some());
        let other = volumes
            .filter(|mount| !is_hidden(mount))
            .find(|mount| mount.name.as_ref() != Some(&self.ground.volume));
        let Some(other) = other else { return Ok(()) };
        let at = other.destination.as_deref().unwrap_or("?");
        let cause = format!("the engine gave it a volume of its own at {at}: use another image");
        Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause))
    }

    /// Files of the same name may be those of another machine. Nobody has used the sandbox yet.
    fn refuse_other_files(&self, process: Option<&FirstProcess>) -> Result<(), RuntimeError> {
        let preparation = &self.shared.preparation;
        let mounts = self.spec.mounts.iter().filter(|mount| {
            mount.docker_host_path.is_none()
                && preparation.relies_on_same_files(self.ground, &mount.host_path)
        });
        let mut relied_on: Vec<_> =
            mounts.map(|mount| (mount.path.as_str(), mount.host_path.as_str())).collect();
        if self.spec.root == Root::Host {
            relied_on.push(("/usr", "/usr"));
        }
        for (place, ours) in relied_on {
            let same = process.and_then(|process| process.shows(place, ours));
            if !same.unwrap_or(!self.ground.doubtful) {
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

    fn failed(&self, trouble: &Trouble) -> RuntimeError {
        self.shared.engine.failed(RuntimeErrorCode::LaunchFailed, STEP, trouble)
    }

    fn unready(what: &str, words: &LastWords) -> Unmade {
        let cause = match words.text() {
            Some(said) => format!("{what}; it said: {said}"),
            None => what.to_owned(),
        };
        Unmade::Failed(RuntimeError::new(RuntimeErrorCode::LaunchFailed, STEP, cause))
    }
}

fn pid_of(found: &ContainerInspectResponse) -> Option<i64> {
    found.state.as_ref()?.pid
}
